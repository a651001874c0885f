"""The state of a cancelled pipeline, for cancellations at different times."""

from __future__ import annotations

import threading

import pytest

from penstock.runner.result import PySparkPipelineResult


def test_a_stream_that_is_cancelled_between_two_epochs_is_cancelled_not_stopped() -> None:
    result = PySparkPipelineResult()
    asked = threading.Event()

    def wait_for_an_epoch() -> str:
        asked.wait(10)
        return "STOPPED"

    result.run_in_background(wait_for_an_epoch, asked.set)
    assert result.cancel() == "CANCELLED"
    assert result.wait_until_finish() == "CANCELLED"


def test_a_stream_that_is_stopped_is_not_cancelled() -> None:
    result = PySparkPipelineResult()
    result.run_in_background(lambda: "STOPPED", lambda: None)
    assert result.wait_until_finish() == "STOPPED"
    assert result.cancel() == "STOPPED"


def test_a_job_that_starts_after_the_first_try_to_cancel_it_is_cancelled_too() -> None:
    result = PySparkPipelineResult()
    tries: list[int] = []
    cancelled = threading.Event()

    def cancel_job() -> None:
        tries.append(1)
        if len(tries) == 2:
            cancelled.set()

    def job() -> str:
        if cancelled.wait(30):
            raise RuntimeError("the job was cancelled")
        return "DONE"

    result.run_in_background(job, cancel_job)
    assert result.cancel() == "CANCELLED"


def test_an_error_before_a_cancellation_is_raised() -> None:
    result = PySparkPipelineResult()

    def fail() -> str:
        raise OSError("no space")

    result.run_in_background(fail, lambda: None)
    with pytest.raises(OSError, match="no space"):
        result.wait_until_finish()
    assert result.state == "FAILED"


def test_a_pipeline_that_is_being_cancelled_cannot_be_drained() -> None:
    result = PySparkPipelineResult()

    def job() -> str:
        assert asked.wait(30)
        raise RuntimeError("the job was cancelled")

    def drain_too() -> None:
        result.drain()
        asked.set()

    asked = threading.Event()
    result.run_in_background(job, drain_too)
    assert result.cancel() == "CANCELLED"
    assert result.wait_until_finish() == "CANCELLED"
