"""The driver tells targets until when they are complete, some time after commits."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest

from penstock.parked import ParkedTable
from penstock.publish import PublishAfterCommit
from penstock.runner import PySparkRunner
from penstock.runner.driver.complete_marks import CompleteMarks
from penstock.runner.planning.graph import build_plan
from penstock.runner.planning.plan import Origin, Plan
from penstock.runner.protocol.record import CommitRecord, EpochState, ParkedPublications, WatermarkKey


class _MarkingFn(beam.DoFn):
    """Appends each mark to a file; the mark of record 13 fails."""

    def __init__(self, path: str) -> None:
        self._path = path

    def process(self, element: str) -> Any:
        yield element

    def mark_complete(self, job: str, record: int, until_us: int) -> None:
        if record == 13:
            raise OSError("no space")
        with open(self._path, "a") as file:
            file.write(f"{job} {record} {until_us}\n")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class _PacedFn(_MarkingFn):
    """Its marks cost much."""

    mark_seconds = 60.0


class _TableMarkingFn(_MarkingFn):
    """Marks tables that are not parked."""

    def mark_tables_complete(self, job: str, record: int, until_us: int, parked: Any) -> None:
        with open(self._path, "a") as file:
            file.write(f"{job} {record} {until_us} without {' '.join(parked)}\n")


def test_tables_that_are_not_parked_get_the_time_of_the_sink_without_the_parked_ones(tmp_path: Path) -> None:
    plan = plan_of(_TableMarkingFn(str(tmp_path / "marks")))
    (step,) = [stage.step for stage in plan.stages if stage.origin is Origin.PUBLISH]
    table = ParkedPublications(step, ParkedTable("bad", "public.bad", "no", 1, 1, 1, False, b"", 5))
    with closing(CompleteMarks(plan, "job", None, Clock())) as marks:
        state = EpochState(watermarks={WatermarkKey.carried(step): 20}, parked=(table,))
        marks.committed(CommitRecord(1, 1, "writer", None, 0, "epoch", 1, state))
    assert written(tmp_path) == ["job 1 20 without bad"]


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return plan_of(_MarkingFn(str(tmp_path / "marks")))


def plan_of(fn: beam.DoFn) -> Plan:
    pipeline = beam.Pipeline(runner=PySparkRunner())
    _ = pipeline | beam.Create(["x"]).with_output_types(str) | "P" >> PublishAfterCommit(fn)
    environment = PySparkRunner().default_environment(pipeline.options)
    return build_plan(pipeline.to_runner_api(default_environment=environment), streaming=True)


def run(plan: Plan, times: Mapping[int, tuple[float, int]], *, done: int = 0, slow: bool = False) -> None:
    """Commit records by number: the second at which, and the watermark. `slow`: no mark ends before the last record."""
    (step,) = [stage.step for stage in plan.stages if stage.origin is Origin.PUBLISH]
    clock = Clock()
    with closing(CompleteMarks(plan, "job", None, clock)) as marks:
        held = threading.Event()
        if slow:
            marks._thread.submit(held.wait)
        for number, (at, until_us) in times.items():
            clock.now = at
            state = EpochState(watermarks={WatermarkKey.carried(step): until_us}, done=number == done)
            marks.committed(CommitRecord(number, 1, "writer", None, 0, "epoch", number, state))
            if not slow:
                marks._thread.submit(int).result()  # so the mark before it has ended

        held.set()


def written(folder: Path) -> list[str]:
    return (folder / "marks").read_text().splitlines()


def test_marks_are_some_seconds_apart_and_the_last_one_comes_at_the_end(plan: Plan, tmp_path: Path) -> None:
    run(plan, {1: (100, 10), 2: (101, 20), 3: (104, 30), 4: (105, 40), 5: (106, 50)})
    assert written(tmp_path) == ["job 1 10", "job 4 40", "job 5 50"]


def test_a_sink_tells_how_far_apart_its_marks_are(tmp_path: Path) -> None:
    run(plan_of(_PacedFn(str(tmp_path / "marks"))), {1: (100, 10), 2: (159, 20), 3: (160, 30), 4: (170, 40)})
    assert written(tmp_path) == ["job 1 10", "job 3 30", "job 4 40"]


def test_marks_that_are_slow_do_not_queue_up(plan: Plan, tmp_path: Path) -> None:
    run(plan, {1: (100, 10), 2: (110, 20), 3: (120, 30), 4: (130, 40)}, slow=True)
    assert written(tmp_path) == ["job 1 10", "job 4 40"]


def test_the_end_of_the_pipeline_is_marked_at_once(plan: Plan, tmp_path: Path) -> None:
    run(plan, {1: (100, 10), 2: (101, 20)}, done=2)
    assert written(tmp_path) == ["job 1 10", "job 2 20"]


def test_a_time_that_stands_still_is_marked_once(plan: Plan, tmp_path: Path) -> None:
    run(plan, {1: (100, 10), 2: (110, 10), 3: (120, 11)})
    assert written(tmp_path) == ["job 1 10", "job 3 11"]


def test_a_mark_that_fails_is_named_in_the_log_and_the_next_one_is_written(
    plan: Plan, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(plan, {13: (100, 10), 14: (110, 20)})
    assert written(tmp_path) == ["job 14 20"]
    assert "could not say until when its target is complete: no space" in caplog.text
