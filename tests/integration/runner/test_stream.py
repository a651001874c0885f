"""Streams on Spark: epochs, splits, drains, edited pipelines, retries."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import VarIntCoder
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import userstate, window
from apache_beam.utils.timestamp import Timestamp

from penstock.publish import PublishAfterCommit
from penstock.runner import PySparkRunner
from penstock.runner.protocol.errors import CheckpointError, EpochFailedError
from tests.integration.runner.sources import AppendFn, CountFn, Endless, FailingFn, FinalizingFn, ProcessesFn

pytestmark = pytest.mark.spark

Start = Callable[..., Any]


@pytest.fixture
def start(spark: Any, tmp_path: Path) -> Iterator[Start]:
    """Builds and starts a stream with the test's own checkpoint; streams that still run at the end are cancelled."""
    running = []

    def begin(build: Callable[[beam.Pipeline], Any], *flags: str) -> Any:
        options = [f"--checkpoint_dir={tmp_path / 'checkpoint'}", "--epoch_seconds=0.2", *flags]
        if not any(flag.startswith("--spark_parallelism") for flag in flags):
            options.append("--spark_parallelism=2")
        pipeline = beam.Pipeline(runner=PySparkRunner(spark), options=PipelineOptions(options))
        build(pipeline)
        result = pipeline.run()
        running.append(result)
        return result

    yield begin
    for result in running:
        result.cancel()


@pytest.fixture
def published(tmp_path: Path) -> Path:
    folder = tmp_path / "published"
    folder.mkdir()
    return folder


def _until(holds: Callable[[], bool], result: Any, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not holds():
        if result.state == "FAILED":
            result.wait_until_finish()
        assert time.monotonic() < end, f"still {result.state} at {result.progress()}"
        time.sleep(0.05)


def _files(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def _numbers(folder: Path, element: str) -> list[int]:
    return sorted(int(name.split("-")[1]) for name in _files(folder) if name.startswith(element))


def test_equal_elements_are_not_merged_and_a_drain_publishes_everything_read(
    start: Start, published: Path
) -> None:
    def build(p: beam.Pipeline) -> None:
        counts = (
            p
            | beam.Create(["a", "a"])
            | beam.ParDo(CountFn(300))
            | beam.WindowInto(window.FixedWindows(0.5))
            | beam.combiners.Count.PerKey()
            | beam.Map(lambda kv, w=beam.DoFn.WindowParam: (kv[0], float(w.start), kv[1]))
        )
        _ = counts | PublishAfterCommit(AppendFn(str(published)))

    result = start(build)
    _until(lambda: len(_files(published)) >= 4, result)
    assert len(result.residuals()) == 2
    assert len({r.element_id for r in result.residuals()}) == 2
    result.drain()
    assert result.wait_until_finish(120_000) == "DRAINED"
    whole = [name.split("-")[2] for name in _files(published)][:-2]
    assert set(whole) == {"100"}, "each window counts 50 of each of two equal elements"


@pytest.mark.slow(seconds=12)
def test_a_read_stays_in_the_process_that_has_its_streams(start: Start, published: Path) -> None:
    def build(p: beam.Pipeline) -> None:
        numbers = p | beam.Create(["a", "b"]) | beam.Reshuffle() | beam.ParDo(CountFn(200))
        _ = numbers | beam.ParDo(ProcessesFn(str(published)))

    def processes(element: str) -> list[str]:
        file = published / element
        return file.read_text().split() if file.exists() else []

    result = start(build)
    _until(lambda: min(len(processes(element)) for element in "ab") >= 44, result)
    result.stop()
    for element in "ab":
        # The first epochs start the workers. Without the exchange of inputs a process changes every two to four epochs.
        settled = processes(element)[4:44]
        changes = sum(before != after for before, after in itertools.pairwise(settled))
        assert changes <= 5, settled


@pytest.mark.slow
def test_after_a_stop_an_edited_pipeline_continues_from_its_checkpoint(start: Start, published: Path) -> None:
    def build(p: beam.Pipeline, extra: bool = False) -> None:
        numbers = p | beam.Create(["a"]) | beam.ParDo(CountFn(200))
        if extra:
            numbers = numbers | "One more Map" >> beam.Map(lambda pair: pair)
        _ = numbers | "Publish" >> PublishAfterCommit(AppendFn(str(published)))

    first = start(build)
    _until(lambda: len(_files(published)) > 20, first)
    first.stop()
    assert first.wait_until_finish(120_000) == "STOPPED"
    before = first.progress()
    second = start(lambda p: build(p, extra=True))
    _until(lambda: second.progress().epochs > before.epochs + 2, second)
    second.drain()
    assert second.wait_until_finish(120_000) == "DRAINED"
    numbers = _numbers(published, "a")
    assert numbers == list(range(len(numbers))), "nothing lost, nothing read twice"
    assert second.progress().generation > before.generation


@pytest.mark.slow
def test_a_step_with_residuals_cannot_be_removed_unless_it_is_dropped(start: Start, published: Path) -> None:
    def build(p: beam.Pipeline, name: str) -> None:
        numbers = p | beam.Create(["a"]) | name >> beam.ParDo(CountFn(200))
        _ = numbers | "Publish" >> PublishAfterCommit(AppendFn(str(published)))

    first = start(lambda p: build(p, "Read"))
    _until(lambda: len(first.progress().residuals) == 1, first)
    first.stop()
    first.wait_until_finish(120_000)
    with pytest.raises(CheckpointError, match=r"Read \(residuals\)[\s\S]*--drop_state"):
        start(lambda p: build(p, "Renamed"))
    second = start(lambda p: build(p, "Renamed"), "--drop_state=Read")
    _until(lambda: second.progress().epochs > first.progress().epochs, second)
    assert {r.transform for r in second.residuals()} <= {"Renamed"}


@pytest.mark.slow
def test_a_failing_publication_is_retried_and_finally_fails_the_pipeline(
    start: Start, published: Path, tmp_path: Path
) -> None:
    switch, log = tmp_path / "target is down", tmp_path / "tries"
    switch.touch()

    def build(p: beam.Pipeline) -> None:
        numbers = p | beam.Create(["a"]) | beam.ParDo(CountFn(100))
        done = numbers | "Publish" >> PublishAfterCommit(FailingFn(str(switch), str(log)))
        _ = done | "And then" >> PublishAfterCommit(AppendFn(str(published)))

    failed = start(build, "--epoch_retries=1")
    with pytest.raises(EpochFailedError) as caught:
        failed.wait_until_finish(120_000)
    assert failed.state == "FAILED"
    assert isinstance(caught.value.__cause__, OSError)
    assert len(log.read_text().splitlines()) >= 2
    assert not _files(published)
    switch.unlink()
    resumed = start(build, "--epoch_retries=1")
    _until(lambda: len(_files(published)) > 20, resumed)
    resumed.drain()
    assert resumed.wait_until_finish(120_000) == "DRAINED"
    numbers = _numbers(published, "a")
    assert numbers == list(range(len(numbers)))


class _WindowedReadFn(beam.DoFn):
    """Observes windows; Beam's own split of an element in several windows is wrong for such a DoFn."""

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        element: str,
        w: Any = beam.DoFn.WindowParam,
        tracker: Any = beam.DoFn.RestrictionParam(Endless(end=12)),
    ) -> Iterator[Any]:
        n = tracker.current_restriction().start
        while tracker.try_claim(n):
            yield element, f"{float(w.start)}_{n}"
            n += 1
            time.sleep(0.05)


@pytest.mark.slow
def test_an_element_in_three_windows_is_split_without_repeats(start: Start, published: Path) -> None:
    def build(p: beam.Pipeline) -> None:
        timed = p | beam.Create(["a"]) | beam.Map(lambda each: window.TimestampedValue(each, 100))
        three = timed | beam.WindowInto(window.SlidingWindows(3, 1))
        _ = three | beam.ParDo(_WindowedReadFn()) | PublishAfterCommit(AppendFn(str(published)))

    result = start(build)
    assert result.wait_until_finish(240_000) == "DONE"
    names = _files(published)
    assert len(names) == 3 * 12
    assert all((published / name).read_text() == "x" for name in names), "each came once"


class _IdleTracker(OffsetRestrictionTracker):
    """Reports complete progress (no backlog); Beam's split of a bundle ignores such a tracker."""

    def is_bounded(self) -> bool:
        return False


class _Idle(Endless):
    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return _IdleTracker(restriction)


class _TickingFn(beam.DoFn):
    """Has nothing to read; claims a tick every 50 ms."""

    @beam.DoFn.unbounded_per_element()
    def process(self, element: str, tracker: Any = beam.DoFn.RestrictionParam(_Idle())) -> Iterator[Any]:
        begun, n = time.time(), tracker.current_restriction().start
        while tracker.try_claim(n):
            n += 1
            time.sleep(0.05)
        yield element, f"{n}-{time.time() - begun:.3f}"


@pytest.mark.slow
def test_an_idle_ticking_reader_is_split_within_200_ms(start: Start, published: Path) -> None:
    def build(p: beam.Pipeline) -> None:
        ticks = p | beam.Create(["a"]) | beam.ParDo(_TickingFn())
        _ = ticks | PublishAfterCommit(AppendFn(str(published)))

    result = start(build, "--epoch_seconds=0.3")
    _until(lambda: len(_files(published)) >= 6, result)
    lasted = sorted(float(name.split("-")[2]) for name in _files(published))
    assert lasted[len(lasted) // 2] < 0.3 + 0.2


class _CountPerKeyFn(beam.DoFn):
    SEEN = userstate.ReadModifyWriteStateSpec("seen", VarIntCoder())
    ROLL = userstate.TimerSpec("roll", userstate.TimeDomain.REAL_TIME)

    def process(
        self,
        element: tuple[int, int],
        seen: Any = beam.DoFn.StateParam(SEEN),
        roll: Any = beam.DoFn.TimerParam(ROLL),
    ) -> None:
        before = seen.read() or 0
        if before != element[1]:
            raise AssertionError(f"state of key {element[0]} is {before}, the stream is at {element[1]}")
        seen.write(before + 1)
        if before % 40 == 0:
            roll.set(Timestamp.now() + 0.1)

    @userstate.on_timer(ROLL)
    def rolled(self, key: Any = beam.DoFn.KeyParam, seen: Any = beam.DoFn.StateParam(SEEN)) -> Iterator[Any]:
        yield key, seen.read()


@pytest.mark.slow
def test_state_and_processing_time_timers_survive_a_stop_and_a_change_of_parallelism(
    start: Start, published: Path
) -> None:
    def build(p: beam.Pipeline) -> None:
        keyed = (
            p
            | beam.Create(["a"])
            | beam.ParDo(CountFn(400))
            | beam.Map(lambda pair: (pair[1] % 7, pair[1] // 7))
        )
        _ = keyed | "Count" >> beam.ParDo(_CountPerKeyFn()) | PublishAfterCommit(AppendFn(str(published)))

    epochs = 0
    for parallelism in (2, 3, 1):
        result = start(build, f"--spark_parallelism={parallelism}")
        wanted = epochs + 6
        _until(lambda wanted=wanted, result=result: result.progress().epochs >= wanted, result)
        result.stop()
        assert result.wait_until_finish(120_000) == "STOPPED"
        epochs = result.progress().epochs
    assert _files(published), "timers fired"


class BoundedCountFn(CountFn):
    """The same DoFn, declared as bounded."""

    def process(
        self,
        element: Any,
        tracker: Any = beam.DoFn.RestrictionParam(Endless(600)),
        watermark: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> Iterator[Any]:
        return super().process(element, tracker, watermark)


def test_an_epoch_that_is_cancelled_is_not_retried(start: Start, tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    def hang(element: str) -> None:
        with begun.open("a") as file:
            file.write(element)
        time.sleep(600)

    result = start(lambda p: p | beam.Create(["a"], reshuffle=False) | beam.Map(hang))
    _until(begun.exists, result)
    epoch = result.progress().epoch
    assert result.cancel() == "CANCELLED"
    assert (begun.read_text(), result.progress().epoch) == ("a", epoch)


@pytest.mark.slow
def test_a_bounded_pipeline_continues_from_its_checkpoint(start: Start, published: Path) -> None:
    def build(p: beam.Pipeline) -> None:
        numbers = p | beam.Create(["a"]) | "Read" >> beam.ParDo(BoundedCountFn(300, 600))
        _ = numbers | "Publish" >> PublishAfterCommit(AppendFn(str(published)))

    first = start(build)
    _until(lambda: first.progress().epochs > 4 and len(_files(published)) > 100, first)
    first.cancel()  # nothing is committed any more, as after a kill
    second = start(build)
    assert second.wait_until_finish(120_000) == "DONE"
    assert _numbers(published, "a") == list(range(600))
    assert second.progress().epochs > 2
    tries = [(published / f"a-{n}").read_text() for n in range(20)]
    assert tries == ["x"] * 20, "what was committed long ago is not read again"


def test_a_cancelled_stream_ends_at_once_and_does_not_change_its_checkpoint(start: Start, spark: Any) -> None:
    stream = start(lambda p: p | beam.Create(["a"]) | beam.ParDo(CountFn(100)), "--epoch_seconds=600")
    jobs = spark.sparkContext.statusTracker()
    _until(lambda: bool(stream.residuals() and jobs.getActiveJobsIds()), stream)
    before = stream.progress().epoch
    assert stream.cancel() == "CANCELLED"
    assert stream.wait_until_finish(1000) == "CANCELLED"
    assert stream.progress().epoch == before


def test_fresh_refuses_a_folder_that_is_not_empty(start: Start, tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "mine").write_text("x")
    with pytest.raises(CheckpointError):
        start(lambda p: p | beam.Create(["a"]) | beam.ParDo(CountFn()), "--fresh")


@pytest.mark.slow
def test_bundle_finalizers_of_the_last_epoch_run_before_done_and_stopped(
    start: Start, tmp_path: Path
) -> None:
    folder = tmp_path / "finalized"
    folder.mkdir()

    def build(p: beam.Pipeline) -> None:
        _ = p | beam.Create([1, 2, 3]) | beam.Reshuffle() | beam.ParDo(FinalizingFn(str(folder)))

    result = start(build)
    assert result.wait_until_finish(120_000) == "DONE"
    assert _files(folder) == ["1", "2", "3"]
