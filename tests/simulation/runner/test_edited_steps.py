"""A pipeline that is not compatible with its checkpoint is rejected before anything is read or written."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import Coder, StrUtf8Coder, VarIntCoder
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import trigger, userstate, window

from penstock.publish import PublishAfterCommit
from penstock.runner import PySparkRunner
from penstock.runner.protocol.errors import CheckpointError
from penstock.runner.protocol.record import CommitRecord
from penstock.runner.result import Progress, PySparkPipelineResult
from penstock.runner.store.checkpoint import Checkpoint
from penstock.runner.tasks.epoch import MAX_US
from tests.integration.runner.sources import CountFn
from tests.simulation.stream import run_stream

pytestmark = pytest.mark.long(seconds=5)

Build = Callable[[beam.Pipeline], Any]


def numbers(p: beam.Pipeline, key: type = str) -> beam.PCollection:
    pairs = p | beam.Create([7]) | "Read" >> beam.ParDo(CountFn(10_000, 100, defer_every=10))
    return pairs | "By key" >> beam.MapTuple(lambda k, n: (key(k), n)).with_output_types(tuple[key, int])


def grouped(windows: window.WindowFn, key: type = str, **firing: Any) -> Build:
    return lambda p: numbers(p, key) | beam.WindowInto(windows, **firing) | "Group" >> beam.GroupByKey()


def grouped_as(name: str) -> Build:
    return lambda p: numbers(p) | beam.WindowInto(window.FixedWindows(10**6)) | name >> beam.GroupByKey()


def regrouped(p: beam.Pipeline) -> None:
    _ = numbers(p) | beam.WindowInto(window.GlobalWindows(), **COUNTED) | "Keep" >> beam.GroupByKey()


def kept(
    coder: Coder, spec: Callable[..., Any] = userstate.ReadModifyWriteStateSpec, key: type = str
) -> Build:
    given = spec("kept", coder)

    class KeepFn(beam.DoFn):
        """Stores a value for each key; `add` and `write` are the methods of two kinds of state."""

        def process(self, keyed: tuple[Any, int], state: Any = beam.DoFn.StateParam(given)) -> None:
            value: Any = 1 if isinstance(coder, VarIntCoder) else "1"
            (state.add if hasattr(state, "add") else state.write)(value)

    return lambda p: numbers(p, key) | "Keep" >> beam.ParDo(KeepFn())


def ringing(timer: str) -> Build:
    rung = userstate.TimerSpec(timer, beam.TimeDomain.WATERMARK)

    class RingFn(beam.DoFn):
        """Sets its timer to a time that is never reached."""

        def process(self, keyed: tuple[str, int], timer: Any = beam.DoFn.TimerParam(rung)) -> None:
            timer.set(10**6)

        @userstate.on_timer(rung)
        def fire(self) -> None:
            """Do nothing."""

    return lambda p: numbers(p) | "Keep" >> beam.ParDo(RingFn())


class SilentFn(beam.DoFn):
    """A post-commit step that does nothing."""

    def process(self, element: Any) -> None:
        """Do nothing."""


def published(value: Any) -> Build:
    return lambda p: (
        numbers(p)
        | "As" >> beam.Map(lambda pair: value).with_output_types(type(value))
        | "Publish" >> PublishAfterCommit(SilentFn())
    )


def holds_something(record: CommitRecord) -> bool:
    return bool(record.state.publications or record.state.state_runs)


FIXED, SESSIONS, GLOBAL = window.FixedWindows(10), window.Sessions(10), window.GlobalWindows()
EARLY = {
    "trigger": trigger.AfterWatermark(early=trigger.AfterCount(50)),
    "accumulation_mode": trigger.AccumulationMode.DISCARDING,
}
COUNTED = {**EARLY, "trigger": trigger.Repeatedly(trigger.AfterCount(1000))}


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        (
            grouped(FIXED),
            grouped(SESSIONS),
            "Group: windows: written by IntervalWindowCoder, would be read by merging Interval",
        ),
        (
            grouped(SESSIONS),
            grouped(FIXED),
            "Group: windows: written by merging IntervalWindowCoder, would be read by Interval",
        ),
        (
            grouped(GLOBAL, **COUNTED),
            grouped(FIXED),
            "Group: windows: written by GlobalWindowCoder, would be read by Interval",
        ),
        (
            grouped(FIXED),
            grouped(FIXED, int),
            "Group: keys: written by StrUtf8Coder, would be read by VarIntCoder",
        ),
        (
            kept(VarIntCoder()),
            kept(StrUtf8Coder()),
            "Keep: state 'kept': written by read modify write of VarIntCoder",
        ),
        (
            kept(VarIntCoder()),
            kept(VarIntCoder(), userstate.BagStateSpec),
            "of VarIntCoder, would be read by bag of VarInt",
        ),
        (kept(VarIntCoder()), kept(VarIntCoder(), key=int), "Keep: keys: written by StrUtf8Coder"),
        (
            ringing("one"),
            ringing("two"),
            "Keep: timer 'one' is set, and the step no longer has a callback for it",
        ),
        (
            ringing("one"),
            kept(VarIntCoder()),
            "Keep: timer 'one' is set, and the step no longer has a callback for it",
        ),
        (kept(VarIntCoder()), regrouped, "Keep: step: written by stateful DoFn, would be read by grouping"),
        (
            published("text"),
            published(b"bytes"),
            "elements: written by StrUtf8Coder, would be read by BytesCoder",
        ),
    ],
)
def test_a_step_that_would_decode_its_state_differently_is_rejected_by_name(
    before: Build, after: Build, line: str, tmp_path: Path
) -> None:
    stood = run_stream(before, folder=tmp_path, stop=holds_something)
    with pytest.raises(CheckpointError, match="would decode parts of the checkpoint differently") as refused:
        resume(after, tmp_path)
    assert line in str(refused.value)
    assert "give them other names, and delete the old state with --drop_state NAME" in str(refused.value)
    assert Checkpoint.open(f"{tmp_path}/checkpoint").last_record() == stood, "nothing was taken over"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (grouped(FIXED), grouped(window.FixedWindows(3))),
        (grouped(FIXED), grouped(FIXED, **EARLY)),
        (grouped(SESSIONS), grouped(window.Sessions(3))),
        (kept(VarIntCoder()), ringing("one")),
        (kept(VarIntCoder()), lambda p: kept(VarIntCoder())(p) | "More" >> beam.Map(print)),
    ],
)
def test_an_edit_that_changes_no_schema_is_accepted(before: Build, after: Build, tmp_path: Path) -> None:
    run_stream(before, folder=tmp_path, stop=holds_something)
    with pytest.raises(Accepted):
        resume(after, tmp_path)


def test_a_step_without_stored_state_may_change_its_schema(tmp_path: Path) -> None:
    run_stream(kept(VarIntCoder()), folder=tmp_path, stop=lambda record: record.epochs >= 1)
    with pytest.raises(Accepted):
        resume(kept(StrUtf8Coder()), tmp_path)


def test_a_step_that_the_pipeline_has_cannot_be_dropped(tmp_path: Path) -> None:
    run_stream(kept(VarIntCoder()), folder=tmp_path, stop=holds_something)
    with pytest.raises(CheckpointError, match="this pipeline has Keep, Read: their state would be deleted"):
        resume(kept(VarIntCoder()), tmp_path, "--drop_state=Keep", "--drop_state=Read", "--drop_state=Gone")


def read(*steps: str, create: str = "Create", end: int = 10**9) -> Build:
    def build(p: beam.Pipeline) -> None:
        elements = p | create >> beam.Create([7])
        for step in steps:
            _ = elements | step >> beam.ParDo(CountFn(10_000, end, defer_every=10))

    return build


def and_more(p: beam.Pipeline) -> None:
    read("Read")(p)
    read("Read more", create="Create more")(p)


def grouped_at_once(*publish: str) -> Build:
    def build(p: beam.Pipeline) -> None:
        read("Read", create="Other")(p)
        groups = p | beam.Create([("k", 1)]) | "Group" >> beam.GroupByKey()
        for step in publish:
            _ = groups | step >> PublishAfterCommit(SilentFn())

    return build


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        (read("Read"), read("Read", "New"), "New: Create/Impulse has already fired and does not fire again"),
        (
            read("Read"),
            read("Read", create="C"),
            "Read: Create/Impulse has fed it, and C/Impulse would feed it again",
        ),
        (
            grouped_at_once(),
            grouped_at_once("New"),
            "New/Publish: Create/Impulse has already fired and does not fire again",
        ),
        (read("Read", end=9), and_more, "Create more/Impulse: the pipeline has ended or is being drained"),
    ],
)
def test_a_step_that_would_get_no_input_or_the_same_input_twice_is_rejected(
    before: Build, after: Build, line: str, tmp_path: Path
) -> None:
    stood = run_stream(before, folder=tmp_path, stop=lambda record: record.epochs >= 4)
    with pytest.raises(
        CheckpointError, match="would get no elements, or get the same elements twice"
    ) as refused:
        resume(after, tmp_path)
    assert f"- {line}" in str(refused.value)
    assert Checkpoint.open(f"{tmp_path}/checkpoint").last_record() == stood, "nothing was taken over"


def test_an_interrupted_drain_starts_no_new_source(tmp_path: Path) -> None:
    asked = itertools.count()
    run_stream(
        kept(VarIntCoder()),
        folder=tmp_path,
        draining=lambda: next(asked) > 3,
        stop=lambda record: record.state.draining,
    )
    with pytest.raises(
        CheckpointError, match="Create more/Impulse: the pipeline has ended or is being drained"
    ):
        resume(lambda p: (kept(VarIntCoder())(p), read("Read more", create="Create more")(p)), tmp_path)


@pytest.mark.parametrize(
    ("after", "flags"),
    [
        (and_more, []),
        (read("Renamed"), ["--drop_state=Read"]),
        (read("Renamed", create="C"), ["--drop_state=Read"]),
    ],
)
def test_a_source_that_is_new_or_was_dropped_is_read(after: Build, flags: list[str], tmp_path: Path) -> None:
    run_stream(read("Read"), folder=tmp_path, stop=lambda record: record.epochs >= 4)
    with pytest.raises(Accepted):
        resume(after, tmp_path, *flags)


def test_a_dropped_step_is_not_fed_again_under_its_old_name(tmp_path: Path) -> None:
    def once_more(record: CommitRecord) -> bool:
        return record.epochs >= 8

    both, one = read("Read", "Dropped"), read("Read")
    run_stream(both, folder=tmp_path, stop=lambda record: record.epochs >= 4)
    run_stream(one, folder=tmp_path, stop=once_more, dropped=["Dropped"])
    with pytest.raises(
        CheckpointError, match="Dropped: Create/Impulse has already fired and does not fire again"
    ):
        resume(both, tmp_path)


class TotalFn(beam.DoFn):
    """Emits how many numbers the step has seen: in state, so that a step that begins again is noticed."""

    def process(
        self,
        keyed: tuple[str, int],
        seen: Any = beam.DoFn.StateParam(userstate.ReadModifyWriteStateSpec("seen", VarIntCoder())),
    ) -> list[str]:
        seen.write((seen.read() or 0) + 1)
        return [f"{keyed[1]} is number {seen.read()}"]


PUBLISHED: list[str] = []


class PublishFn(beam.DoFn):
    """A post-commit step that remembers what it got."""

    def process(self, line: str) -> None:
        PUBLISHED.append(line)


def with_outputs(*tags: str) -> Build:
    """A read, a stateful step and a post-commit step, each with these outputs besides its main one."""

    def build(p: beam.Pipeline) -> None:
        def step(fn: beam.DoFn) -> beam.PTransform:
            return beam.ParDo(fn).with_outputs(*tags, main="main") if tags else beam.ParDo(fn)

        def main(output: Any) -> beam.PCollection:
            return output["main"] if tags else output

        pairs = main(p | beam.Create([7]) | "Read" >> step(CountFn(10_000, 40, defer_every=5)))
        keyed = pairs | beam.MapTuple(lambda k, n: (str(k), n)).with_output_types(tuple[str, int])
        lines = main(keyed | "Total" >> step(TotalFn())) | beam.Map(str).with_output_types(str)
        _ = lines | "Publish" >> PublishAfterCommit(PublishFn(), tags=tags)

    return build


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (with_outputs(), with_outputs("refused")),
        (with_outputs("refused"), with_outputs()),
        (with_outputs("refused"), with_outputs("refused", "log")),
    ],
    ids=["gets", "loses", "gets one more"],
)
def test_a_step_that_gets_or_loses_outputs_continues(before: Build, after: Build, tmp_path: Path) -> None:
    PUBLISHED.clear()
    run_stream(before, folder=tmp_path, stop=lambda last: last.epochs > 2 and bool(last.state.publications))
    with pytest.raises(Accepted):
        resume(after, tmp_path)
    assert run_stream(after, folder=tmp_path).state.done
    numbers, counts = zip(*(map(int, line.split(" is number ")) for line in PUBLISHED), strict=True)
    assert sorted(numbers) == list(range(40))
    assert sorted(counts) == list(range(1, 41))


def test_a_step_that_takes_the_place_of_another_one_does_not_get_its_state(tmp_path: Path) -> None:
    def within(fn: beam.DoFn) -> Build:
        # Both steps have the name that Beam gives them, in a transform that has it from the user.
        return lambda p: numbers(p) | "Part" >> _Part(fn)

    class _Part(beam.PTransform):
        def __init__(self, fn: beam.DoFn) -> None:
            super().__init__()
            self._fn = fn

        def expand(self, keyed: beam.PCollection) -> Any:
            return keyed | beam.ParDo(self._fn)

    class OtherFn(TotalFn):
        """Another step."""

    run_stream(within(TotalFn()), folder=tmp_path, stop=holds_something)
    with pytest.raises(CheckpointError, match=r"Part/ParDo\(TotalFn\) \(state\)"):
        resume(within(OtherFn()), tmp_path)


def test_the_position_of_a_source_is_not_proposed_for_deletion(tmp_path: Path) -> None:
    run_stream(read("Read"), folder=tmp_path, stop=lambda record: record.epochs >= 4)
    with pytest.raises(CheckpointError, match=r"- Read \(residuals\)") as refused:
        resume(read("Renamed"), tmp_path)
    assert "elete the state" not in str(refused.value)
    assert "its position in the change stream: without them it would begin at its start" in str(refused.value)


def with_sink(*names: str, keeps: bool) -> Build:
    """Numbers, and sinks that keep the last of the first ten in state, or nothing after it."""

    class KeepOneFn(beam.DoFn):
        def process(
            self,
            keyed: tuple[str, int],
            held: Any = beam.DoFn.StateParam(userstate.ReadModifyWriteStateSpec("held", VarIntCoder())),
        ) -> None:
            if keyed[1] < 9 or keeps:
                held.write(keyed[1])
            else:
                held.clear()

    def build(p: beam.Pipeline) -> None:
        found = numbers(p)
        for name in names:
            some = found | f"Some {name}" >> beam.Filter(lambda keyed: keyed[1] < 10)
            _ = some | name >> beam.ParDo(KeepOneFn())

    return build


def test_a_sink_that_was_removed_is_forgotten_if_it_has_nothing_left(tmp_path: Path) -> None:
    run_stream(with_sink("Letters", keeps=False), folder=tmp_path, stop=lambda record: record.epochs > 3)
    with pytest.raises(Accepted):
        resume(with_sink(keeps=False), tmp_path)


def test_a_sink_that_was_removed_with_rows_is_refused(tmp_path: Path) -> None:
    run_stream(with_sink("Letters", keeps=True), folder=tmp_path, stop=lambda record: record.epochs > 3)
    with pytest.raises(
        CheckpointError, match=r"Letters \(state\)[\s\S]*start the pipeline with it once more"
    ):
        resume(with_sink(keeps=True), tmp_path)


class Accepted(Exception):  # noqa: N818 - what `resume` raises instead of starting Spark
    """The checkpoint is compatible with the pipeline."""


class NoSpark:
    """Replaces a Spark session; it must not be used before the checkpoint has been checked."""

    @property
    def sparkContext(self) -> Any:
        raise Accepted


def resume(build: Build, folder: Path, *flags: str) -> None:
    """Start a pipeline as a user does, up to the first use of Spark."""
    options = PipelineOptions([f"--checkpoint_dir={folder}/checkpoint", "--allow_unsafe_triggers", *flags])
    pipeline = beam.Pipeline(runner=PySparkRunner(spark=NoSpark()), options=options)
    build(pipeline)
    pipeline.run()


def progress_of(record: CommitRecord) -> Progress:
    result = PySparkPipelineResult()
    result.committed(record)
    return result.progress()


@pytest.mark.parametrize(
    ("after", "dropped"),
    [
        (grouped_as("Renamed"), ["Old"]),
        (numbers, ["Old"]),
    ],
    ids=["renamed", "dropped"],
)
def test_the_watermark_of_a_removed_step_does_not_hold_back_the_progress(
    after: Build, dropped: list[str], tmp_path: Path
) -> None:
    before = run_stream(grouped_as("Old"), folder=tmp_path, stop=lambda record: record.epochs >= 4)
    resumed = run_stream(after, folder=tmp_path, dropped=dropped)
    assert progress_of(before).watermark_us is not None
    assert {key.step for key in resumed.state.watermarks if key.step == "Old"} == set()
    assert progress_of(resumed).watermark_us == MAX_US
