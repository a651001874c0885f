"""`VirtualTimestamps` and `Barriers`: the order of a changefeed, and marks that say how far it is complete.

The values are as in YDB's changefeeds. A virtual timestamp is `[step, txId]` and orders the records of a shard. A
barrier with virtual timestamp T says that no record of its shard with an earlier virtual timestamp follows.

Source: YDB documentation, "Change Data Capture", virtual timestamps and barriers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
import msgspec
from apache_beam import coders
from apache_beam.coders import VarIntCoder
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import (
    ReadModifyWriteStateSpec,
    TimerSpec,
    on_timer,
)
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from penstock.coders import VersionedCoder
from penstock.errors import UsageError
from penstock.event import ChangeEvent, Version
from penstock.event.coder import decode_event, encode_event
from penstock.transforms.element_transform import ElementTransform, StatefulTransform
from penstock.transforms.formats.ydb_position import VirtualTimestamp, virtual_timestamp
from penstock.transforms.release import BUFFER, END, MILLISECOND, hold, released, require_global_window
from penstock.transforms.tables import table_name

RESTAMPED_MS = 10
"""How many milliseconds later than its commit time the element of an event may be.

`OrderByKey` adds up to 1. A barrier waits so much longer, because the watermark speaks about the times of elements."""


class ShardRecord(msgspec.Struct, frozen=True):
    """A record of a shard: an event, or a barrier, which has no event.

    `table` is the table of a barrier, with its schema, if the barriers of each table are separate.
    """

    timestamp: VirtualTimestamp
    event: ChangeEvent | None = None
    table: str = ""

    @property
    def is_barrier(self) -> bool:
        """Whether no record with an earlier `timestamp` follows in the shard."""
        return self.event is None

    def __repr__(self) -> str:  # no event: it is someone's data
        kind = "barrier" if self.is_barrier else "event"
        return f"<{kind} at {self.timestamp.step}, {self.timestamp.tx_id}>"


class ShardRecordCoder(VersionedCoder):
    """Beam's coder of `ShardRecord`: a version byte, then a msgpack array."""

    value_type = ShardRecord
    what = "a record of a shard"

    def encode(self, value: ShardRecord) -> bytes:
        event = None if value.event is None else encode_event(value.event)
        return b"\x01" + msgspec.msgpack.encode((value.timestamp, event, value.table))

    def decode(self, encoded: bytes) -> ShardRecord:
        self.check_version(encoded[0] if encoded else None)
        timestamp, event, table = _decode(memoryview(encoded)[1:])
        return ShardRecord(timestamp, None if event is None else decode_event(event), table)


coders.registry.register_coder(ShardRecord, ShardRecordCoder)
_decode = msgspec.msgpack.Decoder(tuple[VirtualTimestamp, bytes | None, str]).decode


class VirtualTimestamps(ElementTransform):
    """Turns each event into a `ShardRecord` with its virtual timestamp.

        records = events | VirtualTimestamps()

    All events of a transaction have one virtual timestamp, and a later commit has a later one. Transactions with
    one commit time have an order that depends on their ids only.
    """

    def __init__(self) -> None:
        super().__init__(_stamp, ShardRecord)


class Barriers(StatefulTransform):
    """Orders the events of each shard by their virtual timestamps, and adds barriers: (shard, `ShardRecord`).

        records = events | ShardByKey(8) | Barriers(shards=8, interval_seconds=1)

    Barriers have the whole multiples of `interval_seconds` as timestamps. Each shard gets one barrier for each interval
    in which any shard has an event, also a shard without events. Intervals without events have no barrier: the barrier
    after the last event already covers them. Barriers come from the watermark, never from the clock. With `per_table` a
    shard of each table is a separate shard, as each changefeed of YDB has its own partitions: order and barriers hold
    within the table, and `ShardRecord.table` names the table of a barrier.

    - Order: within a shard, events have the order of their virtual timestamps, then of their versions. No event follows
      a barrier with a later timestamp. There is no order between shards. The next step sees the order if it is fused
      with this one, as a sink is.
    - Repeats: an event that comes twice is emitted twice. A bundle that runs again after a crash gives the same output,
      and no barrier comes twice.
    - Watermark: held at the earliest event in the buffer and at the next barrier. A barrier is emitted when the
      watermark has passed it by 10 milliseconds. If the watermark jumps over several barriers, a runner may fire their
      timers in any order (Beam's FnApiRunner does): a barrier is left out if a later one was emitted before it.
    - State: the events that the watermark has not passed, removed when they are emitted, and the last barrier of each
      shard: one number per shard (per table and shard), which stays.

    Raises ValueError while running for an event that comes after a barrier that covers it. That happens if
    the source's watermark is wrong, or if a step before it delays elements by more than 10 milliseconds against
    their commit times. `with_exception_handling` sends events of a shard that does not exist to a second output.
    """

    def __init__(self, *, shards: int, interval_seconds: float = 1, per_table: bool = False) -> None:
        super().__init__()
        if shards < 1:
            raise UsageError(f"Barriers needs at least 1 shard, not {shards}")
        if round(interval_seconds * 1000) < 1:
            raise UsageError(f"Barriers needs an interval of at least 0.001 seconds, not {interval_seconds}")
        self._shards, self._interval_seconds, self._per_table = shards, interval_seconds, per_table

    def expand(self, pcoll: beam.PCollection[tuple[int, ChangeEvent]]) -> Any:
        """Apply the transform to (shard, event) in the global window, as `ShardByKey` makes them."""
        require_global_window(self, pcoll)
        interval_ms = round(self._interval_seconds * 1000)
        requests = beam.ParDo(_RequestBarriersFn(self._shards, interval_ms, self._per_table))
        output_type = tuple[tuple[str, int], ShardRecord]
        records, failed = self._enter(pcoll, "RequestBarriersFn", requests, output_type)
        ordered = records | "BarriersFn" >> beam.ParDo(_BarriersFn()).with_output_types(
            tuple[int, ShardRecord]
        )
        return (ordered, *failed) if failed else ordered

    def display_data(self) -> dict[str, Any]:
        return {
            "shards": self._shards,
            "interval_seconds": self._interval_seconds,
            "per_table": self._per_table,
        }


def barrier_after(timestamp: int, interval_ms: int) -> int:
    """Return the first barrier, in milliseconds since the epoch, that is later than `timestamp` (nanoseconds)."""
    # An event on a boundary belongs to the next barrier: a barrier says that no earlier timestamp follows.
    return (timestamp // 1_000_000 // interval_ms + 1) * interval_ms


def in_shard_order(records: Iterable[ShardRecord]) -> list[ShardRecord]:
    """Return the events of one shard in the order of their virtual timestamps, then of their versions."""
    return sorted(records, key=_shard_order)


def _stamp(event: ChangeEvent) -> tuple[ShardRecord]:
    return (ShardRecord(virtual_timestamp(event), event),)


def _shard_order(record: ShardRecord) -> tuple[VirtualTimestamp, Version]:
    assert record.event is not None
    return record.timestamp, record.event.version


class _RequestBarriersFn(beam.DoFn):  # type: ignore[misc, unused-ignore]
    """Stamps events, and asks every shard once per bundle for the barrier after each event."""

    def __init__(self, shards: int, interval_ms: int, per_table: bool) -> None:
        super().__init__()
        self._shards, self._interval_ms, self._per_table = shards, interval_ms, per_table
        self._requested: set[tuple[str, int]] = set()

    # A set per bundle keeps requests few. Requests of other bundles are repeats, which the timer's tag makes
    # one.
    def start_bundle(self) -> None:
        self._requested = set()

    def process(self, element: tuple[int, ChangeEvent]) -> Iterator[tuple[tuple[str, int], ShardRecord]]:
        shard, event = element
        if not 0 <= shard < self._shards:
            raise ValueError(f"Barriers(shards={self._shards}) got an event of shard {shard}")
        table = table_name(event.source) if self._per_table else ""
        # By the event's own time, so that each worker asks for the same barriers whatever its bundles are.
        step = barrier_after(event.timestamp, self._interval_ms)
        if (table, step) not in self._requested:
            self._requested.add((table, step))
            # A request has the timestamp of its event, so it is there before the watermark passes the barrier.
            for each in range(self._shards):
                yield (table, each), ShardRecord(VirtualTimestamp(step, 0))
        yield (table, shard), ShardRecord(virtual_timestamp(event), event)


class _BarriersFn(beam.DoFn):  # type: ignore[misc, unused-ignore]
    LAST = ReadModifyWriteStateSpec("last", VarIntCoder())
    RELEASE = TimerSpec("release", TimeDomain.WATERMARK)
    BARRIER = TimerSpec("barrier", TimeDomain.WATERMARK)

    def process(
        self,
        element: tuple[tuple[str, int], ShardRecord],
        at: Any = beam.DoFn.TimestampParam,
        buffer: Any = beam.DoFn.StateParam(BUFFER),
        last: Any = beam.DoFn.StateParam(LAST),
        release: Any = beam.DoFn.TimerParam(RELEASE),
        barrier: Any = beam.DoFn.TimerParam(BARRIER),
    ) -> None:
        (_, shard), record = element
        reached = last.read()
        if record.event is None:
            # A late request would repeat a barrier. Its event fails or follows a later barrier.
            if reached is None or record.timestamp.step > reached:
                due = min(Timestamp(micros=(record.timestamp.step + RESTAMPED_MS) * MILLISECOND), END)
                barrier.set(due, dynamic_timer_tag=str(record.timestamp.step))
            return
        # Emitting it would break the promise of the barrier, and dropping it would lose data, so the pipeline
        # fails.
        if reached is not None and record.timestamp.step < reached:
            raise ValueError(
                f"an event of commit time {record.event.timestamp} came to shard {shard} after the barrier at "
                f"{reached} ms: the watermark passed it, or a step before Barriers delayed it"
            )
        hold(encode_event(record.event), at, buffer, release)

    @on_timer(RELEASE)
    def emit_events(
        self,
        key: Any = beam.DoFn.KeyParam,
        fired: Any = beam.DoFn.TimestampParam,
        buffer: Any = beam.DoFn.StateParam(BUFFER),
    ) -> Iterator[TimestampedValue]:
        yield from _in_shard_order(key[1], fired, buffer)

    @on_timer(BARRIER)
    def emit_barrier(
        self,
        key: Any = beam.DoFn.KeyParam,
        step: Any = beam.DoFn.DynamicTimerTagParam,
        fired: Any = beam.DoFn.TimestampParam,
        buffer: Any = beam.DoFn.StateParam(BUFFER),
        last: Any = beam.DoFn.StateParam(LAST),
    ) -> Iterator[TimestampedValue]:
        table, shard = key
        # A runner may fire two timers of one time in any order, so the barrier first emits what it covers.
        yield from _in_shard_order(shard, fired, buffer)
        reached = last.read()
        # Beam's FnApiRunner does not fire the timers of one jump of the watermark in the order of their times.
        if reached is None or int(step) > reached:
            last.write(int(step))
            barrier = ShardRecord(VirtualTimestamp(int(step), 0), table=table)
            yield TimestampedValue((shard, barrier), fired)


def _in_shard_order(shard: int, fired: Any, buffer: Any) -> Iterator[TimestampedValue]:
    events = map(decode_event, released(buffer, fired))
    for record in in_shard_order(ShardRecord(virtual_timestamp(event), event) for event in events):
        yield TimestampedValue((shard, record), fired)
