"""Transforms are asked before a pipeline starts whether they can do their work."""

from __future__ import annotations

import pickle

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from penstock.errors import SetupError, SeveralProblemsError, UnavailableError, UsageError
from penstock.preflight import preflight
from penstock.runner import PySparkRunner
from penstock.setup_warning import SetupWarning


class Checked(beam.PTransform):
    """Notes that it was asked; raises what it is told to."""

    def __init__(self, asked: list[str], name: str, error: Exception | None = None) -> None:
        super().__init__()
        self._asked = asked
        self._name = name
        self._error = error

    def check_start(self) -> None:
        self._asked.append(f"start of {self._name}")

    def check(self) -> None:
        self._asked.append(self._name)
        if self._error:
            raise self._error

    def expand(self, begin: beam.pvalue.PBegin) -> beam.PCollection:
        return begin | beam.Create([1])


def test_every_transform_that_can_check_is_asked_once_also_inside_others() -> None:
    asked: list[str] = []

    class Outer(beam.PTransform):
        def expand(self, begin: beam.pvalue.PBegin) -> beam.PCollection:
            return begin | "Inner" >> Checked(asked, "inner")

    pipeline = beam.Pipeline()
    _ = pipeline | "Outer" >> Outer()
    _ = pipeline | "Plain" >> Checked(asked, "plain")
    preflight(pipeline)
    assert asked == ["start of inner", "inner", "start of plain", "plain"]


def test_the_start_of_a_pipeline_that_resumes_is_not_checked() -> None:
    asked: list[str] = []
    pipeline = beam.Pipeline()
    _ = pipeline | Checked(asked, "x")
    preflight(pipeline, resuming=True)
    assert asked == ["x"]


def test_an_error_of_a_check_is_raised_unchanged() -> None:
    pipeline = beam.Pipeline()
    _ = pipeline | Checked([], "x", LookupError("no such stream"))
    with pytest.raises(LookupError, match="no such stream"):
        preflight(pipeline)


def test_every_problem_is_reported_at_once_and_a_repeated_one_only_once() -> None:
    asked: list[str] = []
    pipeline = beam.Pipeline()
    for number, error in enumerate(
        (SetupError("no slot", run=["A"]), UsageError("no column"), SetupError("no slot"))
    ):
        _ = pipeline | f"Step{number}" >> Checked(asked, str(number), error)
    with pytest.raises(SeveralProblemsError) as raised:
        preflight(pipeline, resuming=True)
    assert asked == ["0", "1", "2"]
    assert raised.value.problems == ("no slot. Run: A", "no column", "no slot")


def test_a_service_that_does_not_answer_is_not_asked_again() -> None:
    asked: list[str] = []
    pipeline = beam.Pipeline()
    _ = pipeline | "A" >> Checked(asked, "a", UnavailableError("no answer"))
    _ = pipeline | "B" >> Checked(asked, "b")
    with pytest.raises(UnavailableError, match="no answer"):
        preflight(pipeline, resuming=True)
    assert asked == ["a"]


def test_the_statements_of_all_problems_are_one_block() -> None:
    errors = [
        SetupError("the role may not read the log", run=["ALTER ROLE penstock REPLICATION"]),
        SetupError("there is no publication"),
        SetupError("the slot does not exist", run=["SELECT 1"]),
    ]
    error = SeveralProblemsError.of(errors, "shop")
    assert str(error) == (
        "3 problems\n  - the role may not read the log\n  - there is no publication\n  - the slot does not exist\n"
        "Run in the database shop, as a superuser:\n\n  ALTER ROLE penstock REPLICATION;\n  SELECT 1;"
    )
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.problems) == (str(error), error.problems)
    alone = pickle.loads(pickle.dumps(errors[0]))
    assert str(alone) == "the role may not read the log. Run: ALTER ROLE penstock REPLICATION"
    assert alone.run == ("ALTER ROLE penstock REPLICATION",)


def test_a_runner_is_asked_too() -> None:
    class Runner(beam.runners.DirectRunner):
        def check(self, pipeline: beam.Pipeline) -> None:
            raise UsageError("no folder")

    pipeline = beam.Pipeline(runner=Runner())
    _ = pipeline | Checked([], "x", SetupError("no slot"))
    with pytest.raises(SeveralProblemsError, match="(?s)no slot.*no folder"):
        preflight(pipeline)


class Warned(beam.PTransform):
    """Warns of two things before each start, and of one before the first."""

    def setup_warnings(self) -> list[str]:
        return [SetupWarning("log", "the log has no limit"), "the slot is late"]

    def start_warnings(self) -> list[str]:
        return ["the slot was read before"]

    def expand(self, begin: beam.pvalue.PBegin) -> beam.PCollection:
        return begin | beam.Create([1])


def test_an_accepted_warning_is_not_repeated_and_a_warning_of_a_first_start_neither() -> None:
    def told(*flags: str, resuming: bool = False) -> list[str]:
        pipeline = beam.Pipeline(runner=PySparkRunner(), options=PipelineOptions(list(flags)))
        _ = pipeline | Warned()
        return preflight(pipeline, resuming=resuming)

    log = "the log has no limit. Or accept it with accept_warnings=log"
    assert told() == [log, "the slot is late", "the slot was read before"]
    assert told(resuming=True) == [log, "the slot is late"]
    assert told("--accept_warnings=log", "--accept_warnings=other", resuming=True) == ["the slot is late"]
