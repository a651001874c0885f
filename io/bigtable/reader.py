"""Reads one partition's stream in a thread and queues its steps.

- **Order**: the steps of a partition come in the order of the service.
- **Memory**: over the budget a thread stops receiving, and gRPC stops the server. One record per partition is always
  accepted, so that the lowest partition never starves.
- **Errors** of a thread are raised by `take`, in the consumer. A stream that breaks off is opened again from the last
  whole record or heartbeat, after a pause, which also grows while only this partition is refused. So is a stream that
  ends with OK and without a close.

Knows neither Beam nor the client.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeAlias

from penstock.io.bigtable.decode import Decoder
from penstock.io.bigtable.frontier import Advanced, Opening, Step
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
from penstock.io.change_streams.prefetch import Claim, ReadAhead, Traffic
from penstock.io.change_streams.refusals import Refusals
from penstock.io.change_streams.status import UnreachableError

_PAUSE_AFTER_OK = 0.02
"""Seconds before a stream that ended with OK is opened again."""
LATE_NANOS = 5_000_000_000
"""Age at which a record is old when it arrives. More than the usual delay of the service, and than the differences of
usual clocks: a bundle whose records are old does not end before its time."""
MOST_IN_BATCH = 256
"""Steps that are handed over at once."""
MOST_IN_RUN = 16
"""Records in one claim: few, so that a consumer that is split soon comes to an end."""


class Call(Protocol):
    """One running stream."""

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        """Yield (size in bytes, ReadChangeStreamResponse message)."""

    def cancel(self) -> None:
        """Cancel the stream, from any thread; the iteration ends or raises."""


class Source(Protocol):
    """The service, as the threads use it; see `client.Client`."""

    @property
    def backoff(self) -> Backoff:
        """When to ask again, for all threads of the process."""

    def open(self, opening: Opening) -> Call:
        """Start a stream; it raises what `errors.classify_status` returns, at the latest when it is iterated."""

    def refused_close(self, opening: Opening, close: CloseStream) -> Exception:
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
        for first in range(0, count, MOST_IN_RUN):
            end = min(first + MOST_IN_RUN, count)
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


class StreamReader:
    """Reads one partition: opens its stream as often as needed.

    `position` is how far steps were claimed, and so where the queue begins.
    """

    def __init__(
        self,
        opening: Opening,
        source: Source,
        select: Select | None,
        bounded: bool,
        unavailable_seconds: float,
        ahead: ReadAhead,
    ) -> None:
        self.position = opening
        self.error: BaseException | None = None
        self.first_record_pending = True
        """Nothing of this stream was claimed yet, and it has not failed."""
        self.is_behind = False
        """The last record was old when it arrived, so that more of them wait at the service. It says with a heartbeat
        that there are none."""
        self.opened = time.monotonic()
        self.running_since = time.monotonic()
        self._streams = self._retries = self._received_bytes = 0
        self._opening = opening
        self._refusal = id(source), opening.partition
        self._last: ChangeStreamMutation | DamagedMutation | Heartbeat | None = None
        self._source = source
        # Any answer of the service resets the shared back-off. This one grows while this partition alone is refused.
        self._own_backoff = Backoff("Bigtable", UnreachableError)
        self._select = select
        self._bounded = bounded and opening.bounded
        self._unavailable_seconds = unavailable_seconds
        self._ahead = ahead
        self._queue: deque[tuple[int, PendingStep]] = deque()
        # `stop` needs the call, to cancel it from the consumer's thread: a thread that waits in gRPC sees no flag.
        self._call: Call | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="penstock-bigtable-reader", daemon=True)
        self._thread.start()

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
        pairs = [self._queue.popleft() for _ in range(min(len(self._queue), MOST_IN_BATCH))]
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

    # The lock is not held.

    def stop(self) -> None:
        """Cancel the stream and drop what is queued; the thread ends soon."""
        with self._ahead.changed:
            self._stopped = True
            self._ahead.queued_bytes -= sum(size for size, _ in self._queue)
            self._queue.clear()
            call = self._call
            self._ahead.changed.notify_all()
        if call is not None:
            call.cancel()

    def uncounted(self) -> Traffic:
        """Return the streams that were opened and lost since the last call, and the bytes that were received."""
        with self._ahead.lock:
            done = Traffic(self._streams, self._retries, self._received_bytes)
            self._streams = self._retries = self._received_bytes = 0
            return done

    def join(self) -> None:
        """Wait for the thread of a stopped reader."""
        self._thread.join()

    # The thread's side.

    def _run(self) -> None:
        try:
            while self._paused(
                max(self._source.backoff.remaining_pause(), self._own_backoff.remaining_pause())
            ):
                try:
                    if self._read_stream():
                        return
                    # The service may end a stream with OK at any time, for example when it restarts a server. Without a
                    # pause a service that always does so would be asked in a loop.
                    self._paused(_PAUSE_AFTER_OK)
                except UnreachableError as error:
                    self._retry(str(error))
        except BaseException as error:  # The consumer must learn of every error: see `take`.
            with self._ahead.changed:
                self.error = None if self._stopped else error
                self._ahead.changed.notify_all()

    def _paused(self, seconds: float) -> bool:
        """Wait, and return whether to continue."""
        with self._ahead.changed:
            return not self._ahead.changed.wait_for(lambda: self._stopped, seconds) and not self._stopped

    def _retry(self, reason: str) -> None:
        if not self._stopped:
            with self._ahead.lock:
                self._retries += 1
                self.first_record_pending = self.is_behind = False
            self._own_backoff.failed(reason, math.inf)
            self._source.backoff.failed(reason, self._unavailable_seconds)
            name = f"partition {abbreviate(self._opening.partition)}"
            _REFUSALS.failed(self._refusal, name, reason, self._unavailable_seconds)

    def _read_stream(self) -> bool:
        """Read one stream to its end; return whether the partition has ended too."""
        call = self._open()
        if call is None:
            return True
        decoder = Decoder()
        size, silent = 0, True
        for length, message in call:
            size += length
            record = decoder.feed(message)
            if record is None:
                continue
            self._source.backoff.answered()
            self._own_backoff.answered()
            _REFUSALS.answered(self._refusal)
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

    def _open(self) -> Call | None:
        call = self._source.open(self._next_opening)
        with self._ahead.changed:
            self._streams += 1
            self._call = call
            stopped = self._stopped
        # `stop` may have run between the request and the assignment, and then had no call to cancel.
        if stopped:
            call.cancel()
        return None if stopped else call

    @property
    def _next_opening(self) -> Opening:
        """Return where a stream that is opened now must begin: after the last whole record or heartbeat."""
        last = self._last
        return (
            self._opening if last is None else self._opening.moved(last.token, last.estimated_low_watermark)
        )

    def _pending_step(self, record: ChangeRecord) -> PendingStep:
        if type(record) is ChangeStreamMutation:
            self._last = record
            emitted = record if self._select is None else self._select(record)
            return emitted, None if emitted is not None else advanced(self._opening.partition, record)
        step = to_steps(self._opening.partition, record, bounded=self._bounded)
        if type(record) is DamagedMutation:  # no selection: it is not known what it changes
            self._last = record
            return record, step
        if type(record) is Heartbeat:
            self._last = record
        elif step is None:
            assert type(record) is CloseStream
            raise self._source.refused_close(self._next_opening, record)
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


def stop_all(readers: list[StreamReader]) -> None:
    """Cancel streams and wait for their threads."""
    for reader in readers:
        reader.stop()
    for reader in readers:
        reader.join()
