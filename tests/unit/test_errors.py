"""The classes of errors: whose fault each one is, which Python classes they extend, and that they can be pickled."""

from __future__ import annotations

import pickle

import pytest

from penstock import errors
from penstock.cli.configuration import ConfigurationError
from penstock.errors import (
    ChangeStreamError,
    InvariantError,
    PenstockError,
    PositionLostError,
    ServiceError,
    UsageError,
)
from penstock.io import bigtable, spanner
from penstock.io.files import OutputError
from penstock.runner import UnsupportedPipelineError
from penstock.runner.protocol.errors import CheckpointError, EpochFailedError, NotWrittenError
from penstock.runner.spark.java import JavaNotFoundError
from penstock.templates import UnknownTemplateError


@pytest.mark.parametrize("source", [spanner, bigtable])
def test_errors_of_every_source_are_the_same_classes(source: object) -> None:
    for name in ("ChangeStreamError", "SetupError", "PositionLostError", "UnavailableError"):
        assert getattr(source, name) is getattr(errors, name)
    assert issubclass(source.LineageError, ChangeStreamError)  # type: ignore[attr-defined]
    assert issubclass(source.DecodeError, ChangeStreamError)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("error", "branch"),
    [
        (ConfigurationError, UsageError),
        (UnknownTemplateError, UsageError),
        (UnsupportedPipelineError, UsageError),
        (JavaNotFoundError, ServiceError),
        (ChangeStreamError, ServiceError),
        (OutputError, ServiceError),
        (CheckpointError, ServiceError),
        (NotWrittenError, ServiceError),
        (EpochFailedError, PenstockError),
    ],
)
def test_each_error_is_below_the_branch_that_says_whose_fault_it_is(
    error: type[Exception], branch: type[Exception]
) -> None:
    assert issubclass(error, branch)
    others = {UsageError, ServiceError, InvariantError} - {branch}
    assert not any(issubclass(error, other) for other in others)


def test_callers_that_know_only_pythons_own_classes_catch_them() -> None:
    assert issubclass(UsageError, ValueError)
    assert issubclass(ServiceError, RuntimeError)
    assert NotWrittenError(28, "no space left on device").errno == 28


def test_an_error_survives_the_way_from_a_worker() -> None:
    error = pickle.loads(pickle.dumps(PositionLostError("start is too old")))
    assert type(error) is PositionLostError
    assert str(error) == "start is too old"
