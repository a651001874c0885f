"""How errors of a running pipeline are described."""

from __future__ import annotations

import errno

from penstock.errors import ServiceError
from penstock.failures import describe_failure
from penstock.runner.protocol.errors import EpochFailedError, NotWrittenError


def test_the_first_cause_comes_first() -> None:
    error = ServiceError("epoch 7 failed")
    error.__cause__ = ServiceError("step Read: the stream was dropped")
    assert describe_failure(error) == "step Read: the stream was dropped (epoch 7 failed)"


def test_an_error_of_other_code_is_shown_by_type_and_line_without_its_text() -> None:
    error = ServiceError("epoch 7 failed")
    try:
        raise ValueError("row 17 has the value hunter2")
    except ValueError as cause:
        error.__cause__ = cause
    described = describe_failure(error)
    assert described.startswith(f"ValueError in {__file__}:")
    assert described.endswith(" (epoch 7 failed). Add --debug to see its message and traceback")
    assert "hunter2" not in described


def test_a_cycle_of_causes_ends() -> None:
    first, second = ServiceError("first"), ServiceError("second")
    first.__cause__, second.__cause__ = second, first
    assert describe_failure(first) == "second (first)"


def test_the_text_of_a_user_s_error_is_not_shown_through_the_message_of_the_failed_epoch() -> None:
    failed = EpochFailedError(
        "epoch 5 failed: ValueError in Parse: row 4711 is bad", redacted="epoch 5 failed: ValueError in Parse"
    )
    failed.__cause__ = ValueError("row 4711 is bad")
    described = describe_failure(failed)
    assert "epoch 5 failed: ValueError in Parse" in described
    assert "4711" not in described


def test_a_system_error_that_our_error_explains_is_not_named_again() -> None:
    error = NotWrittenError(errno.ENOSPC, "cannot write /c/records/1: No space left on device. Free space")
    error.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    assert describe_failure(error) == (
        "[Errno 28] cannot write /c/records/1: No space left on device. Free space"
    )


def test_a_system_error_of_another_kind_is_named() -> None:
    error = NotWrittenError(errno.ENOSPC, "cannot write")
    error.__cause__ = OSError(errno.EIO, "Input/output error")
    assert describe_failure(error).startswith("OSError ([Errno 28] cannot write)")
