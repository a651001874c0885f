"""The driver publishes right after a commit, and leaves errors to the next epoch."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

from penstock.publish import PublishAfterCommit
from penstock.runner import PySparkRunner
from penstock.runner.driver.publish_early import EarlyPublisher
from penstock.runner.harness.bundle import PlanContext
from penstock.runner.planning.graph import build_plan
from penstock.runner.planning.plan import Origin, Plan
from penstock.runner.protocol.record import CommitRecord, EpochState, Publication


class _AppendFn(beam.DoFn):
    """Appends each early publication to a file; "bad" cannot be published."""

    def __init__(self, path: str) -> None:
        self._path = path

    def process(self, element: str) -> Any:
        yield element

    def publish_early(self, publications: Collection[str]) -> None:
        for each in publications:
            if each == "bad":
                raise OSError(each)
            with open(self._path, "a") as file:
                file.write(f"{each}\n")


class _PlainFn(beam.DoFn):
    def process(self, element: str) -> Any:
        yield element


def _plan(fn: beam.DoFn) -> Plan:
    pipeline = beam.Pipeline(runner=PySparkRunner())
    _ = pipeline | beam.Create(["x"]).with_output_types(str) | "P" >> PublishAfterCommit(fn)
    environment = PySparkRunner().default_environment(pipeline.options)
    return build_plan(pipeline.to_runner_api(default_environment=environment), streaming=True)


def _record(plan: Plan, number: int, *elements: str) -> CommitRecord:
    (stage,) = [stage for stage in plan.stages if stage.origin is Origin.PUBLISH]
    coder = PlanContext(plan).coder(plan.edges[stage.inputs[0]].collection).get_impl()
    named = tuple(
        Publication(stage.step, coder.encode_nested(WindowedValue(each, 0, (GlobalWindow(),))))
        for each in elements
    )
    return CommitRecord(number, 1, "writer", None, 0, "epoch", number, EpochState(publications=named))


def test_publications_of_a_record_are_published_right_after_its_commit(tmp_path: Path) -> None:
    plan = _plan(_AppendFn(str(tmp_path / "published")))
    with closing(EarlyPublisher(plan)) as early:
        early.committed(_record(plan, 1, "a", "b"))
        early.committed(_record(plan, 2))
    assert (tmp_path / "published").read_text().split() == ["a", "b"]


def test_an_error_of_early_publishing_is_reported_by_the_next_epoch(tmp_path: Path) -> None:
    plan = _plan(_AppendFn(str(tmp_path / "published")))
    with closing(EarlyPublisher(plan)) as early:
        early.committed(_record(plan, 1, "bad", "left"))
    with closing(EarlyPublisher(plan)) as early:
        early.committed(_record(plan, 2, "later"))
    assert (tmp_path / "published").read_text().split() == ["later"]


def test_a_step_that_does_not_ask_for_it_is_not_published_early() -> None:
    plan = _plan(_PlainFn())
    with closing(EarlyPublisher(plan)) as early:
        early.committed(_record(plan, 1, "a"))
