"""The second step of a staged sink: it rolls blocks of records into staged files."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import apache_beam as beam
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import GlobalWindow, TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from penstock.io.staging.blocks import RecordBlock, blocks_of, by_event_time, split_at_watermark
from penstock.io.staging.coders import OpenFileCoder, RecordBlockCoder
from penstock.io.staging.file_stager import FileStager
from penstock.io.staging.format import FileFormat
from penstock.io.staging.rolling import OpenFile, RollingPolicy
from penstock.io.staging.staged_file import StagedFile
from penstock.io.staging.store import FileStore
from penstock.publish import current_watermark_us

RETRY_US = 500_000
"""How long a due file waits whose earliest record is exactly at the watermark."""


@dataclass(frozen=True, slots=True)
class _Bucket:
    """State and timers of one bucket, as Beam passes them to a callback.

    While a file is open, either `roll` or `passed` is set, and that timer holds the output watermark at the earliest
    record of the file.
    """

    name: str
    records: Any
    """The blocks of the open file, in the order in which they arrived."""
    open_file: Any
    roll: Any
    """Processing time: the file is due."""
    full: Any
    """Processing time, in the past: the file became full in this epoch, in event-time order."""
    passed: Any
    """Event time: the watermark has passed the earliest record."""
    end: Any
    """Event time: the input has ended or is drained."""

    def clear(self) -> None:
        """Forget the open file. A bucket without one has no state and no timer."""
        # State that stays would be carried from checkpoint to checkpoint for each hour of each table.
        self.records.clear()
        self.open_file.clear()
        for timer in (self.roll, self.full, self.passed, self.end):
            timer.clear()


_ROLL = TimerSpec("roll", TimeDomain.REAL_TIME)
_FULL = TimerSpec("full", TimeDomain.REAL_TIME)
_PASSED = TimerSpec("passed", TimeDomain.WATERMARK)
_END = TimerSpec("end", TimeDomain.WATERMARK)

_PARAMETERS: dict[str, Any] = {
    "name": beam.DoFn.KeyParam,
    "records": beam.DoFn.StateParam(BagStateSpec("records", RecordBlockCoder())),
    "open_file": beam.DoFn.StateParam(ReadModifyWriteStateSpec("open_file", OpenFileCoder())),
    "roll": beam.DoFn.TimerParam(_ROLL),
    "full": beam.DoFn.TimerParam(_FULL),
    "passed": beam.DoFn.TimerParam(_PASSED),
    "end": beam.DoFn.TimerParam(_END),
}
"""What Beam passes for each field of `_Bucket`."""


def _with_bucket(callback: Callable[[Any, _Bucket], Any]) -> Callable[..., Any]:
    """Pass a `_Bucket` to a timer callback, in place of the seven parameters that Beam passes."""

    @functools.wraps(callback)
    def method(self: Any, *values: Any, **named_values: Any) -> Any:
        return callback(self, _Bucket(*values, **named_values))

    # Beam 2.77 finds the states and timers of a callback with `inspect.signature` (`core.get_function_arguments`), so
    # each of the four callbacks would have to list all seven. `inspect.signature` prefers `__signature__`.
    named = inspect.Parameter.POSITIONAL_OR_KEYWORD
    method.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter("self", named)]
        + [inspect.Parameter(name, named, default=value) for name, value in _PARAMETERS.items()]
    )
    return method


@beam.typehints.with_output_types(StagedFile)
class RollFilesFn(beam.DoFn):
    """(Bucket, block of records) to `StagedFile`: keeps the open file of each bucket in state, and stages it.

    A block whose records are a staged file already passes through. The open file, whose records are older, is staged
    before it.

    Order: blocks of a bucket are kept in the order in which they arrive. With `in_event_time_order` a roll writes the
    records that the watermark has passed, by event time, and keeps the others.
    What repeats: a failed try leaves staged files under names that no other try uses.
    Watermark: an open file holds it at its earliest event time until the file rolls.
    State: for each bucket the records since the last roll; nothing between a roll and the next record.
    """

    _once_an_epoch = False
    """Whether a bucket has at most one file in each epoch. A full file then rolls at the end of the epoch."""

    def __init__(
        self,
        store: FileStore,
        sink: str,
        policy: RollingPolicy,
        format: FileFormat,
        *,
        in_event_time_order: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._stager = FileStager(store, sink, format)
        self._policy = policy
        self._in_event_time_order = in_event_time_order
        self._clock = clock

    def start_bundle(self) -> None:
        self._stager.start()

    def process(
        self,
        element: tuple[str, RecordBlock],
        records: Any = _PARAMETERS["records"],
        open_file: Any = _PARAMETERS["open_file"],
        roll: Any = _PARAMETERS["roll"],
        full: Any = _PARAMETERS["full"],
        passed: Any = _PARAMETERS["passed"],
        end: Any = _PARAMETERS["end"],
    ) -> Iterator[TimestampedValue]:
        name, block = element
        bucket = _Bucket(name, records, open_file, roll, full, passed, end)
        before: OpenFile | None = open_file.read()
        if not block.lengths:  # see `closes` of `CollectRecordsFn`, and `RecordBlock.staged`
            if before is not None:
                yield self._close(bucket, before)
            if block.staged is not None:
                file = replace(block.staged, final=self._stager.final_name(name))
                yield TimestampedValue(file, Timestamp(micros=block.earliest_us))
            return
        now_us = self._now_us()
        opened = (before or self._policy.open(now_us)).with_block(block)
        records.add(block)
        if self._policy.is_full(opened):
            if not (self._in_event_time_order or self._once_an_epoch):
                yield self._close(bucket, opened)
                return
            # A timer in the past fires in this epoch, after all elements. `roll` stays as it is: it may hold the
            # watermark at an earlier record.
            full.set(Timestamp(0))
        open_file.write(opened)
        if before is None or opened.earliest_us < before.earliest_us:
            # Beam holds the watermark of a processing-time timer at the element that sets it, which is the earliest
            # record of this block.
            roll.set(Timestamp(micros=self._policy.due_us(opened, now_us)))
            end.set(GlobalWindow().max_timestamp())
            if self._in_event_time_order:
                passed.clear()

    @on_timer(_ROLL)
    @_with_bucket
    def on_roll(self, bucket: _Bucket) -> Iterator[TimestampedValue]:
        """Roll the file, which is due."""
        file = bucket.open_file.read()
        if file is None:
            return
        if self._in_event_time_order and (watermark_us := current_watermark_us()) is not None:
            yield from self._roll_passed(bucket, file, watermark_us)
        else:
            yield self._close(bucket, file)

    @on_timer(_FULL)
    @_with_bucket
    def on_full(self, bucket: _Bucket) -> Iterator[TimestampedValue]:
        """Roll a full file now, or as soon as the watermark has passed its earliest record."""
        file = bucket.open_file.read()
        if file is None or not self._policy.is_full(file):
            return  # `roll` fired in this epoch too and has staged the records that made the file full
        if not self._in_event_time_order or current_watermark_us() is None:
            yield self._close(bucket, file)
            return
        # `passed` fires in this epoch if the watermark is at the earliest record or above it, and rolls the file. This
        # callback cannot set `roll`: that timer would hold the watermark at the record that filled the file.
        bucket.open_file.write(file.due_at_once())
        bucket.roll.clear()
        bucket.passed.set(Timestamp(micros=file.earliest_us))

    @on_timer(_PASSED)
    @_with_bucket
    def on_passed(self, bucket: _Bucket) -> Iterator[TimestampedValue]:
        """Roll the file if it is due. If not, `roll` waits for that and holds the watermark in the meantime.

        An event-time timer holds the watermark at the time at which it fires. So this callback runs at the earliest
        record of the file, and a processing-time timer that it sets holds the watermark there.
        """
        file, watermark_us = bucket.open_file.read(), current_watermark_us()
        if file is None or watermark_us is None:
            return
        now_us = self._now_us()
        if (due_us := self._policy.due_us(file, now_us)) <= now_us:
            yield from self._roll_passed(bucket, file, watermark_us)
        else:
            bucket.roll.set(Timestamp(micros=due_us))

    @on_timer(_END)
    @_with_bucket
    def on_end(self, bucket: _Bucket) -> Iterator[TimestampedValue]:
        """Roll the file: no more records will arrive."""
        if (file := bucket.open_file.read()) is not None:
            yield self._close(bucket, file)

    def finish_bundle(self) -> None:
        self._stager.finish()

    def _close(self, bucket: _Bucket, file: OpenFile) -> TimestampedValue:
        """Stage the whole open file and forget it."""
        blocks: Iterable[RecordBlock] = bucket.records.read()
        if self._in_event_time_order:
            blocks = blocks_of(by_event_time(blocks))
        publication = self._stage(bucket.name, blocks, file.records)
        bucket.clear()
        return TimestampedValue(publication, Timestamp(micros=file.earliest_us))

    def _roll_passed(self, bucket: _Bucket, file: OpenFile, watermark_us: int) -> Iterator[TimestampedValue]:
        """Stage the records that the watermark has passed; a new open file keeps the others.

        Runs in a callback of the timer that holds the watermark at the earliest record.
        """
        ready, waiting = split_at_watermark(bucket.records.read(), watermark_us)
        if not ready:
            self._wait_for_watermark(bucket, file, watermark_us)
            return
        publication = self._stage(bucket.name, blocks_of(ready), len(ready))
        yield TimestampedValue(publication, Timestamp(micros=file.earliest_us))
        if not waiting:
            bucket.clear()
            return
        rest = self._policy.open(self._now_us())
        bucket.records.clear()
        for block in blocks_of(waiting):
            bucket.records.add(block)
            rest = rest.with_block(block)
        bucket.open_file.write(rest)
        # `passed` and not `roll`, which would hold the watermark at a record that is staged.
        bucket.roll.clear()
        bucket.passed.set(Timestamp(micros=rest.earliest_us))

    def _wait_for_watermark(self, bucket: _Bucket, file: OpenFile, watermark_us: int) -> None:
        """Set the timer that rolls a due file of which the watermark has not passed any record."""
        if file.earliest_us > watermark_us:
            bucket.open_file.write(file.due_at_once())
            bucket.passed.set(Timestamp(micros=file.earliest_us))
        else:  # the watermark is exactly at the record; `passed` would fire again and again in this epoch
            bucket.roll.set(Timestamp(micros=self._now_us() + RETRY_US))

    def _stage(self, bucket: str, blocks: Iterable[RecordBlock], records: int) -> Any:
        file = self._stager.stage(blocks, records)
        return replace(file, final=self._stager.final_name(bucket))

    def _now_us(self) -> int:
        return int(self._clock() * 1e6)
