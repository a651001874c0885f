"""The stream of one partition: records and heartbeats from the service, as steps. Knows neither Beam nor the client.

A stream that breaks off is opened again after the last whole record or heartbeat, and so is a stream that ends with OK
and without a close.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias

from penstock.io.bigtable.decode import Decoder
from penstock.io.bigtable.frontier import Closed, Finished, Position, Step
from penstock.io.bigtable.keys import abbreviate
from penstock.io.bigtable.record import (
    ChangeRecord,
    ChangeStreamMutation,
    CloseStream,
    DamagedMutation,
    Heartbeat,
)
from penstock.io.bigtable.steps import advanced, to_step, undecodable
from penstock.io.change_streams.backoff import Backoff
from penstock.io.change_streams.partition_stream import PartitionStream, PendingStep, Reading
from penstock.io.change_streams.status import UnreachableError
from penstock.timestamps import NANOS

LATE_NANOS = 5 * NANOS
"""Age at which a record is old when it arrives. More than the usual delay of the service, and than the differences of
usual clocks: a bundle whose records are old does not end before its time."""


class Call(Protocol):
    """One running stream."""

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        """Yield (size in bytes, ReadChangeStreamResponse message)."""

    def cancel(self) -> None:
        """Cancel the stream, from any thread; the iteration ends or raises."""


class Opener(Protocol):
    """The service, as the threads use it; see `client.Client`."""

    @property
    def backoff(self) -> Backoff:
        """When to ask again, for all threads of the process."""

    def open(self, position: Position) -> Call:
        """Start a stream; it raises what `errors.classify_status` returns, at the latest when it is iterated."""

    def refused_close(self, position: Position, close: CloseStream) -> Exception:
        """Return the error that a close without tokens means."""


Select: TypeAlias = Callable[[ChangeStreamMutation], ChangeStreamMutation | None]
"""Returns the part of a record that is emitted, or None."""
KeyFilter: TypeAlias = Callable[[bytes], bool]


class BigtableStream(PartitionStream):
    """Reads one partition. A mark is a record, a heartbeat, or a step of lineage."""

    lineage = frozenset({Closed, Finished})

    def __init__(
        self,
        position: Position,
        opener: Opener,
        select: Select | None,
        bounded: bool,
        heartbeat_seconds: float,
    ) -> None:
        self.name = f"partition {abbreviate(position.partition)}"
        self.key_filter: KeyFilter | None = None
        """Says by the row key whether a record is emitted; None: all are. It follows from the frontier, so it may
        change after a record was queued."""
        self._first_position, self._partition = position, position.partition
        self._last: ChangeStreamMutation | DamagedMutation | Heartbeat | None = None
        self._opener, self._select = opener, select
        # An unbounded position is requested without an end time, so a close with OK does not end its partition.
        self._bounded = bounded and position.bounded
        self._heartbeat_seconds = heartbeat_seconds
        self._is_late = False

    # The reader's thread.

    def read(self, reading: Reading) -> Iterator[Sequence[PendingStep]]:
        decoder = Decoder()
        size, silent = 0, True
        # Invariant: `_last` is the last record or heartbeat that was yielded. The next stream continues after it.
        for length, message in reading.opened(self._opener.open(self._next_position)):
            self.received_bytes += length
            size += length
            record = decoder.feed(message)
            if record is None:
                continue
            # The size of all messages of the record: a long one comes in parts, and all of them wait in memory.
            if type(record) is ChangeStreamMutation:
                self._last = record
                # More of old records wait at the service. It says with a heartbeat that there are none.
                self._is_late = time.time_ns() - record.commit_timestamp > LATE_NANOS
                yield ((size, record if self._select is None else self._select(record), record),)
            else:
                self._is_late = False
                yield (self._rare(size, record),)
            size, silent = 0, False
        if reading.stopped:
            return
        decoder.finish()
        if silent:
            # Treated as a failure, so that the pauses grow.
            raise UnreachableError("a stream ended with OK before it had sent anything")

    def _rare(self, size: int, record: ChangeRecord) -> PendingStep:
        step = to_step(self._partition, record, bounded=self._bounded)
        if isinstance(record, CloseStream):
            if step is None:
                # No end of the partition: the stream is opened again after `_last`, or the read fails.
                raise self._opener.refused_close(self._next_position, record)
            return size, None, step
        self._last = record
        # A damaged change is emitted without the selection: it is not known what it changes.
        emitted = undecodable(self._partition, record) if isinstance(record, DamagedMutation) else None
        return size, emitted, record

    @property
    def _next_position(self) -> Position:
        """Where a stream that is opened now must begin: after the last whole record or heartbeat."""
        return self._first_position if self._last is None else self.position(self._last)

    # The consumer.

    def step(self, mark: Any) -> Step:
        # Made here and not with the record: most records are claimed together with a later one.
        return mark if type(mark) in self.lineage else advanced(self._partition, mark)

    def position(self, mark: Any) -> Position:
        return self._first_position.moved(mark.token, mark.estimated_low_watermark)

    def records(self, steps: Sequence[PendingStep]) -> list[Any]:
        records = super().records(steps)
        if (wanted := self.key_filter) is None:
            return records
        return [record for _, record, mark in steps if record is not None and wanted(mark.row_key)]

    def is_behind(self, position: Position) -> bool:
        return self._is_late

    def awaits_first(self, position: Position) -> bool:
        # A watermark ahead of the clock shows that the clock of this computer is wrong. Then it says nothing.
        lag_seconds = (time.time_ns() - position.watermark) / NANOS
        return not -1 < lag_seconds < self._heartbeat_seconds + 1

    def lost(self) -> None:
        # Nothing comes before the next stream is open, so the bundle need not stay for it.
        self._is_late = False
