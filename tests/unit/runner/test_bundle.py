"""One stage's bundle on Beam's worker internals."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import core, userstate
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.timestamp import MIN_TIMESTAMP

from penstock.pace import current_pace
from penstock.publish import PublishAfterCommit
from penstock.runner import PySparkRunner
from penstock.runner.driver import pacing
from penstock.runner.harness.bundle import PlanContext, StageProcessor, dofn_specs_cached
from penstock.runner.harness.elements import encoded_impulse
from penstock.runner.planning.graph import build_plan
from penstock.runner.protocol.errors import EpochFailedError
from penstock.runner.tasks.epoch import EpochLimits
from tests.simulation.stream import run_stream

POSITIONS = 3_000_000
FEWER = 300_000

claimed: list[int] = []
calls: list[int] = []
"""The first position of each call of `EmitOnceFn`."""
longer: list[bool] = []
"""Whether each call of `BehindFn` was in an epoch that is longer than usual."""


class UnsplittableTracker(OffsetRestrictionTracker):
    def try_split(self, fraction_of_remainder: Any) -> Any:
        raise ValueError("these positions cannot be split")


class Positions(core.RestrictionProvider):
    def initial_restriction(self, element: int) -> OffsetRange:
        return OffsetRange(0, POSITIONS)

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return UnsplittableTracker(restriction)

    def restriction_size(self, element: int, restriction: OffsetRange) -> int:
        return restriction.size()


class ClaimFn(beam.DoFn):
    """Claims positions and puts nothing out."""

    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(Positions())) -> Iterator[int]:
        for position in range(POSITIONS):
            if not tracker.try_claim(position):
                return
            claimed[:] = [position]
        yield from ()


def test_a_tracker_whose_try_split_raises_ends_its_bundle() -> None:
    with pytest.raises(EpochFailedError) as failed:
        run_stream(
            lambda p: p | beam.Create([1]) | beam.ParDo(ClaimFn()), limits=EpochLimits(0.01, 1000, 1 << 20)
        )
    assert "these positions cannot be split" in str(failed.value.__cause__)
    assert claimed[0] < POSITIONS - 1


class SplittablePositions(Positions):
    def initial_restriction(self, element: int) -> OffsetRange:
        return OffsetRange(0, FEWER)

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return OffsetRestrictionTracker(restriction)


class EmitOnceFn(beam.DoFn):
    """Emits one element for each call. The first call claims one position, the second one all the others."""

    def process(
        self, element: int, tracker: Any = beam.DoFn.RestrictionParam(SplittablePositions())
    ) -> Iterator[int]:
        position = tracker.current_restriction().start
        calls.append(position)
        tracker.try_claim(position)
        yield position
        while position and tracker.try_claim(position := position + 1):
            pass
        if not position:
            tracker.defer_remainder()


class HoldBackFn(beam.DoFn):
    """Emits nothing before the end of the bundle, like the first step of a staged sink."""

    def process(self, element: int) -> None:
        pass

    def finish_bundle(self) -> Iterator[Any]:
        yield GlobalWindows.windowed_value(("held back", 1), MIN_TIMESTAMP)


def test_a_read_whose_elements_are_held_back_by_a_fused_step_is_not_idle() -> None:
    calls.clear()
    run_stream(
        lambda p: (
            p | beam.Create([1]) | beam.ParDo(EmitOnceFn()) | beam.ParDo(HoldBackFn()) | beam.GroupByKey()
        ),
        limits=EpochLimits(60.0, 200_000, 1 << 20),
    )
    # After an epoch with records, an idle read is split after 20 ms.
    assert calls == [0, 1]


class BatchesFn(beam.DoFn):
    """Emits a hundred changes as one element for each position, and counts them in its pace."""

    def process(
        self, element: int, tracker: Any = beam.DoFn.RestrictionParam(SplittablePositions())
    ) -> Iterator[int]:
        first = tracker.current_restriction().start
        calls.append(first)
        pace = current_pace()
        assert pace is not None
        for position in range(first, 200):
            if not tracker.try_claim(position):
                return
            pace.claimed += 100
            yield position
            time.sleep(0.001)
        for position in itertools.count(max(first, 200)):
            if not tracker.try_claim(position):
                return


def test_a_read_is_split_after_as_many_changes_as_an_epoch_may_read_and_not_elements() -> None:
    calls.clear()
    run_stream(
        lambda p: p | beam.Create([1]) | beam.ParDo(BatchesFn()), limits=EpochLimits(60.0, 1000, 1 << 20)
    )
    # A call that claims no changes, or not yet, may be split as idle.
    assert 3 < len({first for first in calls if first < 200}) <= 21


class SlowPublishFn(beam.DoFn):
    """Publishes for longer than a task without records may wait."""

    def process(self, element: int) -> Iterator[int]:
        time.sleep(0.4)
        yield element


class LateFn(beam.DoFn):
    """Emits the first record of each call late."""

    def process(
        self, element: int, tracker: Any = beam.DoFn.RestrictionParam(SplittablePositions())
    ) -> Iterator[int]:
        first = tracker.current_restriction().start
        calls.append(first)
        time.sleep(0.1)
        if tracker.try_claim(first):
            yield first
            if first < 3:
                tracker.defer_remainder()
            while tracker.try_claim(first := first + 1):
                pass


@pytest.mark.slow
def test_a_task_waits_for_records_after_it_has_published(monkeypatch: pytest.MonkeyPatch) -> None:
    calls.clear()
    monkeypatch.setattr(pacing, "_MIN_SECONDS", 0.3)
    run_stream(
        lambda p: (
            p
            | beam.Create([1])
            | beam.ParDo(LateFn()).with_output_types(int)
            | PublishAfterCommit(SlowPublishFn())
        ),
        limits=EpochLimits(60.0, 200_000, 1 << 20),
    )
    # Without the wait the second call would be split before its first record, and all others.
    assert [first for first in calls if first < 3] == [0, 1, 2]


class HundredPositions(SplittablePositions):
    def initial_restriction(self, element: int) -> OffsetRange:
        return OffsetRange(0, 100)


class CollectFn(beam.DoFn):
    """The first call claims and emits one position. The second one claims the others and emits them as one element."""

    def process(
        self, element: int, tracker: Any = beam.DoFn.RestrictionParam(HundredPositions())
    ) -> Iterator[int]:
        first = tracker.current_restriction().start
        calls.append(first)
        pace = current_pace()
        assert pace is not None
        tracker.try_claim(first)
        pace.claimed += 1
        if not first:
            yield first
            tracker.defer_remainder()
            return
        for position in range(first + 1, 100):
            if not tracker.try_claim(position):
                return
            pace.claimed += 1
            time.sleep(0.002)
        yield first
        tracker.try_claim(100)


def test_a_read_that_collects_a_batch_is_not_idle() -> None:
    calls.clear()
    run_stream(
        lambda p: p | beam.Create([1]) | beam.ParDo(CollectFn()), limits=EpochLimits(60.0, 200_000, 1 << 20)
    )
    # After an epoch with records, an idle read is split after 20 ms.
    assert calls == [0, 1]


class BehindFn(beam.DoFn):
    """Claims one position in each call, and says in the first two that it is behind."""

    def process(
        self, element: int, tracker: Any = beam.DoFn.RestrictionParam(HundredPositions())
    ) -> Iterator[int]:
        first = tracker.current_restriction().start
        pace = current_pace()
        assert pace is not None
        longer.append(pace.catches_up)
        pace.claimed += 1
        pace.is_behind = first < 2
        position = first
        while tracker.try_claim(position) and first >= 3:
            position += 1
        yield first
        if first < 3:
            tracker.defer_remainder()


def test_the_epochs_after_one_that_left_its_reader_behind_are_longer() -> None:
    longer.clear()
    run_stream(
        lambda p: p | beam.Create([1]) | beam.ParDo(BehindFn()), limits=EpochLimits(0.1, 200_000, 1 << 20)
    )
    assert longer == [False, True, True, False]


class HeldFn(beam.DoFn):
    """Emits nothing, and says that it holds a kilobyte for each position."""

    def process(
        self, element: int, tracker: Any = beam.DoFn.RestrictionParam(HundredPositions())
    ) -> Iterator[int]:
        first = tracker.current_restriction().start
        calls.append(first)
        pace = current_pace()
        assert pace is not None
        for position in range(first, 101):
            if not tracker.try_claim(position):
                return
            pace.claimed += 1
            pace.held_bytes += 1024
            time.sleep(0.002)
        yield first


def test_bytes_that_a_step_holds_are_limited_as_those_that_are_written() -> None:
    calls.clear()
    run_stream(
        lambda p: p | beam.Create([1]) | beam.ParDo(HeldFn()), limits=EpochLimits(60.0, 200_000, 20 << 10)
    )
    assert 3 < len(set(calls)) <= 6


def processor() -> StageProcessor:
    pipeline = beam.Pipeline(runner=PySparkRunner(), options=PipelineOptions([]))
    _ = pipeline | beam.Impulse() | beam.Map(len)
    environment = PySparkRunner().default_environment(pipeline.options)
    plan = build_plan(pipeline.to_runner_api(default_environment=environment), streaming=False)
    return StageProcessor(PlanContext(plan), plan.stages[0])


def test_the_end_of_a_bundle_does_not_wait_for_the_thread_that_samples_its_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    joined: list[threading.Thread] = []
    join = threading.Thread.join
    stage = processor()
    for bundle in range(2):
        stage.start(0, 1, lambda edge, target, block: None)
        for element in stage.elements(encoded_impulse()):
            stage.process(element)
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "join", lambda self, timeout=None: joined.append(self))
            assert stage.finish()
        assert joined == [], f"bundle {bundle}"
    assert threading.Thread.join is join


def test_a_dofn_is_inspected_once_however_often_its_state_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inspected: list[Any] = []

    def inspect(dofn: Any) -> tuple[set[Any], set[Any]]:
        inspected.append(dofn)
        return set(), set()

    monkeypatch.setattr(userstate, "get_dofn_specs", inspect)
    first, second = ClaimFn(), ClaimFn()
    with dofn_specs_cached():
        for dofn in (first, second, first):
            assert not userstate.is_stateful_dofn(dofn)
    assert inspected == [first, second]
    assert userstate.get_dofn_specs is inspect


def test_two_threads_that_inspect_at_a_time_leave_beam_as_it_was() -> None:
    before = userstate.get_dofn_specs, core.get_function_arguments
    with ExitStack() as first, ExitStack() as second:
        first.enter_context(dofn_specs_cached())
        second.enter_context(dofn_specs_cached())
        first.close()
        assert userstate.get_dofn_specs is not before[0], "the second one still inspects"
    assert (userstate.get_dofn_specs, core.get_function_arguments) == before
