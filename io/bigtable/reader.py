"""Reads one partition's stream in a thread and queues its steps.

- **Order**: the steps of a partition come in the order of the service.
- **Memory**: over the budget a thread stops receiving, and gRPC stops the server. One record per partition is always
  accepted, so that the lowest partition never starves.
- **Errors** of a thread are raised by `take`, in the consumer. A stream that breaks off is opened again from the last
  whole record or heartbeat, and so is a stream that ends with OK and without a close; see `StreamThread`.

Knows neither Beam nor the client.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeAlias

from penstock.io.bigtable.decode import Decoder
from penstock.io.bigtable.frontier import Advanced, Position, Step
from penstock.io.bigtable.keys import abbreviate
from penstock.io.bigtable.record import (
    ChangeRecord,
    ChangeStreamMutation,
    CloseStream,
    DamagedMutation,
    Heartbeat,
)
from penstock.io.bigtable.steps import PendingStep, advanced, to_steps, undecodable
from penstock.io.change_streams.backoff import Backoff
from penstock.io.change_streams.prefetch import Claim, ReadAhead
from penstock.io.change_streams.refusals import Refusals
from penstock.io.change_streams.status import UnreachableError
from penstock.io.change_streams.stream_thread import StreamThread

LATE_NANOS = 5_000_000_000
"""Age at which a record is old when it arrives. More than the usual delay of the service, and than the differences of
usual clocks: a bundle whose records are old does not end before its time."""
MAX_IN_BATCH = 256
"""Steps that are handed over at once."""
MAX_IN_CLAIM = 16
"""Records in one claim: few, so that a consumer that is split soon comes to an end."""


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


_REFUSALS = Refusals("Bigtable")

Select: TypeAlias = Callable[[ChangeStreamMutation], ChangeStreamMutation | None]
"""Returns the part of a record that is emitted, or None."""
KeyFilter: TypeAlias = Callable[[bytes], bool]


class Batch:
    """Steps of one partition in order, a step of lineage only at the end.

    The consumer counts in `claimed` how many of them it has claimed.
    """

    __slots__ = ("_has_damage", "claimed", "key_filter", "reader", "sizes", "steps")

    def __init__(self, reader: StreamReader, steps: list[PendingStep], sizes: list[int]) -> None:
        self.reader = reader
        self.steps = steps
        self.sizes = sizes
        self.claimed = 0
        # Only a damaged change has both a record and a step. This is computed once, because a search in each run would
        # cost more.
        self._has_damage = any(record is not None and step is not None for record, step in steps)
        self.key_filter: KeyFilter | None = None
        """Says by the row key whether a record is emitted; None: all are."""

    @property
    def ends_with_lineage(self) -> bool:
        """Whether the last step is one of lineage."""
        return type(self.step(-1)) is not Advanced

    def step(self, number: int) -> Step:
        """Return the step that is to be claimed there."""
        record, step = self.steps[number]
        if step is None:
            assert record is not None
            return advanced(self.reader.position.partition, record)
        return step

    def runs(self) -> Iterator[tuple[list[PendingStep], Step]]:
        """Yield the steps in runs of limited length, each with the step to claim, its last.

        To claim a record is to claim everything before it in its partition, so one claim serves a whole run. A step
        of lineage is a run of one step.
        """
        steps, count = self.steps, len(self.steps) - self.ends_with_lineage
        for first in range(0, count, MAX_IN_CLAIM):
            end = min(first + MAX_IN_CLAIM, count)
            yield steps[first:end], self.step(end - 1)
        if count < len(steps):
            yield steps[count:], self.step(count)

    def claims(self) -> Iterator[Claim]:
        """Yield each run: its length, the records to emit, the step to claim."""
        key_filter = self.key_filter
        for run, step in self.runs():
            records = [record for record, _ in run if record is not None]
            if key_filter is not None:
                records = [record for record in records if key_filter(record.row_key)]
            yield len(run), list(map(self._emitted, records)) if self._has_damage else records, step

    def _emitted(self, record: ChangeStreamMutation | DamagedMutation) -> Any:
        partition = self.reader.position.partition
        return undecodable(partition, record) if type(record) is DamagedMutation else record


class StreamReader(StreamThread[Call]):
    """Reads one partition: opens its stream as often as needed.

    `position` is how far steps were claimed, and so where the queue begins.
    """

    def __init__(
        self,
        position: Position,
        opener: Opener,
        select: Select | None,
        bounded: bool,
        unavailable_seconds: float,
        ahead: ReadAhead,
    ) -> None:
        partition = position.partition
        super().__init__(
            opener.backoff,
            _REFUSALS,
            partition,
            f"partition {abbreviate(partition)}",
            unavailable_seconds,
            ahead,
        )
        self.position = position
        self.first_record_pending = True
        """Nothing of this stream was claimed yet, and it has not failed."""
        self.is_behind = False
        """The last record was old when it arrived, so that more of them wait at the service. It says with a heartbeat
        that there are none."""
        self._first_position = position
        self._last: ChangeStreamMutation | DamagedMutation | Heartbeat | None = None
        self._opener = opener
        self._select = select
        self._bounded = bounded and position.bounded
        self._queue: deque[tuple[int, PendingStep]] = deque()
        self.start()

    # The consumer's side; the lock is held.

    @property
    def waiting(self) -> bool:
        """Whether there is a step to take, or an error to raise."""
        return bool(self._queue) or self.error is not None

    @property
    def queued(self) -> int:
        """How many steps there are to take."""
        return len(self._queue)

    def take(self) -> Batch:
        """Return the queued steps, as one batch of limited length.

        Raises what the thread raised, once everything before it has been taken.
        """
        # The steps before the error first: they were received in order and may be claimed.
        if not self._queue and self.error is not None:
            raise self.error
        # Sizes travel with the steps: the credit is returned when they are claimed, and not when they are taken.
        pairs = [self._queue.popleft() for _ in range(min(len(self._queue), MAX_IN_BATCH))]
        return Batch(self, [step for _, step in pairs], [size for size, _ in pairs])

    def settle(self, batch: Batch) -> None:
        """Note what was claimed of a batch, return its credit, and put the rest back into the queue."""
        claimed = batch.claimed
        self.first_record_pending = self.first_record_pending and not claimed
        # After a step of lineage the position does not matter: the stream has ended, and the frontier names its
        # successors.
        if claimed and isinstance(last := batch.step(claimed - 1), Advanced):
            self.position = self.position.moved(last.token, last.watermark)
        self._queue.extendleft(reversed(list(zip(batch.sizes[claimed:], batch.steps[claimed:], strict=True))))
        self._ahead.queued_bytes -= sum(batch.sizes[:claimed])
        self._ahead.changed.notify_all()

    # The thread's side.

    def open_call(self) -> Call:
        return self._opener.open(self._next_position)

    def drop_queue(self) -> list[int]:
        sizes = [size for size, _ in self._queue]
        self._queue.clear()
        return sizes

    def call_lost(self) -> None:
        self.first_record_pending = self.is_behind = False

    def read_stream(self) -> bool:
        """Read one stream to its end; return whether the partition has ended too."""
        call = self._open()
        if call is None:
            return True
        decoder = Decoder()
        size, silent = 0, True
        # Invariant: `_last` is the last record or heartbeat in the queue. A stream that breaks off continues after it,
        # so nothing is queued twice and nothing is left out.
        for length, message in call:
            size += length
            record = decoder.feed(message)
            if record is None:
                continue
            self._answered()
            self.is_behind = (
                type(record) is ChangeStreamMutation and time.time_ns() - record.commit_timestamp > LATE_NANOS
            )
            # Charge the bytes of all messages of the record: a long record comes in parts, and all of them wait in
            # memory.
            if not self._put(size, self._pending_step(record)) or type(record) is CloseStream:
                return True
            size, silent = 0, False
        if self._stopped:
            return True
        decoder.finish()
        if silent:
            # Treated as a failure, so that the pauses grow.
            raise UnreachableError("a stream ended with OK before it had sent anything")
        return False

    @property
    def _next_position(self) -> Position:
        """Return where a stream that is opened now must begin: after the last whole record or heartbeat."""
        last = self._last
        return (
            self._first_position
            if last is None
            else self._first_position.moved(last.token, last.estimated_low_watermark)
        )

    def _pending_step(self, record: ChangeRecord) -> PendingStep:
        if type(record) is ChangeStreamMutation:
            self._last = record
            emitted = record if self._select is None else self._select(record)
            return emitted, None if emitted is not None else advanced(self._first_position.partition, record)
        step = to_steps(self._first_position.partition, record, bounded=self._bounded)
        if type(record) is DamagedMutation:  # no selection: it is not known what it changes
            self._last = record
            return record, step
        if type(record) is Heartbeat:
            self._last = record
        elif step is None:
            assert type(record) is CloseStream
            raise self._opener.refused_close(self._next_position, record)
        return None, step

    def _put(self, size: int, step: PendingStep) -> bool:
        """Queue a step as soon as there is credit for it; False: the reader was stopped."""
        ahead = self._ahead
        # The plain lock: a condition costs a call or two more, and this runs for each record.
        with ahead.lock:
            while self._queue and ahead.queued_bytes + size > ahead.buffer_bytes and not self._stopped:
                ahead.changed.wait()
            if self._stopped:
                return False
            ahead.queued_bytes += size
            self._received_bytes += size
            # The consumer waits only while all queues are empty, so other appends need not wake it.
            if not self._queue:
                ahead.changed.notify_all()
            self._queue.append((size, step))
        return True
