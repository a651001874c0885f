"""Reads many partitions at once: a thread for each stream, one consumer that takes.

    with Prefetcher(pool) as readers:
        readers.read(frontier.openings)            # let exactly these streams run
        batch = readers.take(timeout=0.05)        # steps of one partition, in order; None: nothing yet
        for run, step in batch.runs(): …          # claim the step, emit the records of the run …
            batch.claimed += len(run)             # … and say so

A stream may outlive the bundle (see `pool`): what it has read ahead and was not claimed stays in its queue,
and the next bundle that asks for exactly that position goes on there.

- **Order**: the steps of a partition come in the order of the service; the partition with the lowest
  watermark comes first.
- **Memory**: decoded records wait under one budget of bytes; a thread over it stops pulling, and gRPC stops
  the server. One record per partition is always let in, so that the lowest partition never starves.
- **Errors** of a thread are raised by `take`, in the consumer. A stream that breaks off is opened again from
  the last whole record or heartbeat, after a pause, which grows while this partition alone is not answered
  too; so is one that ends with OK and without a close.
- **End**: without an error the streams go back to the pool; with one they are cancelled, and all threads end.

Knows neither Beam nor the client.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeAlias

from penstock.errors import LineageError
from penstock.io.bigtable.decode import Decoder
from penstock.io.bigtable.frontier import Advanced, Closed, Finished, Opening, Step
from penstock.io.bigtable.keys import KeyRange, abbreviate
from penstock.io.bigtable.record import ChangeRecord, ChangeStreamMutation, CloseStream, Heartbeat
from penstock.io.change_streams.backoff import Backoff
from penstock.io.change_streams.status import UnreachableError

_PAUSE_AFTER_OK = 0.02
"""Seconds before a stream that ended with OK is opened again."""
MOST_IN_BATCH = 256
"""Steps that are handed over at once."""
MOST_IN_RUN = 16
"""Records in one claim: few, so that a consumer that is cut soon comes to an end."""


class Call(Protocol):
    """One running stream."""

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        """Yield (size in bytes, ReadChangeStreamResponse message)."""

    def cancel(self) -> None:
        """Break off, from any thread; the iteration ends or raises."""


class Source(Protocol):
    """What the threads read from; see `client.Client`."""

    @property
    def backoff(self) -> Backoff:
        """When to ask again, for all threads of the process."""

    def open(self, opening: Opening) -> Call:
        """Start a stream; it raises what `errors.classify_status` returns, when it is iterated at the latest."""

    def refused_close(self, opening: Opening, close: CloseStream) -> Exception:
        """Return what a close without tokens means."""


PendingStep: TypeAlias = tuple[ChangeStreamMutation | None, Step | None]
"""A step to claim, with the record to emit when the claim is granted (None: nothing to emit).

A record that is emitted comes without its step, which `Batch.step` makes: most of them are never claimed one by one.
"""

Select: TypeAlias = Callable[[ChangeStreamMutation], ChangeStreamMutation | None]


class Shared:
    """What all threads of a pool share: one lock, one budget of `buffer_bytes`.

    `changed` is the lock too. It is a call or two slower to take, so only those who wait or notify do.
    """

    def __init__(self, buffer_bytes: int) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.buffer_bytes = buffer_bytes
        self.queued_bytes = 0


class Batch:
    """Steps of one partition in order, a step of lineage only at the end; the consumer counts in `claimed` how many of
    them it has claimed."""

    __slots__ = ("claimed", "reader", "sizes", "steps")

    def __init__(self, reader: StreamReader, steps: list[PendingStep], sizes: list[int]) -> None:
        self.reader = reader
        self.steps = steps
        self.sizes = sizes
        self.claimed = 0

    @property
    def ends_stream(self) -> bool:
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
        """Yield the steps in runs of limited length, each with the one to claim: its last; a step of lineage by itself.

        To claim a record is to claim all that comes before it in its partition: one claim does for many.
        """
        steps, count = self.steps, len(self.steps) - self.ends_stream
        for first in range(0, count, MOST_IN_RUN):
            end = min(first + MOST_IN_RUN, count)
            yield steps[first:end], self.step(end - 1)
        if count < len(steps):
            yield steps[count:], self.step(count)


class StreamReader:
    """One partition's stream, opened again as often as needed, in a thread of its own, and its queue.

    `position` is where the claimed steps have come to, and so where the queue begins.
    """

    def __init__(
        self,
        opening: Opening,
        source: Source,
        select: Select | None,
        bounded: bool,
        unavailable_seconds: float,
        shared: Shared,
    ) -> None:
        self.position = opening
        self.error: BaseException | None = None
        self.heard = False
        self.since = time.monotonic()
        self._streams = self._retries = 0
        self._opening = opening
        self._last: ChangeStreamMutation | Heartbeat | None = None
        self._source = source
        self._own = Backoff("Bigtable", UnreachableError)  # of this partition, while others are answered
        self._select = select
        self._bounded = bounded and opening.bounded
        self._timeout = unavailable_seconds
        self._shared = shared
        self._queue: deque[tuple[int, PendingStep]] = deque()
        self._call: Call | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="penstock-bigtable-reader", daemon=True)
        self._thread.start()

    # The consumer's side; the lock is held.

    @property
    def waiting(self) -> bool:
        """Whether there is something to take, or an error to raise."""
        return bool(self._queue) or self.error is not None

    @property
    def queued(self) -> int:
        """How many steps there are to take."""
        return len(self._queue)

    def take(self) -> Batch:
        """Return what is queued, as one batch of limited length.

        Raises what the thread raised, once all that came before it has been taken.
        """
        if not self._queue and self.error is not None:
            raise self.error
        pairs = [self._queue.popleft() for _ in range(min(len(self._queue), MOST_IN_BATCH))]
        return Batch(self, [taken for _, taken in pairs], [size for size, _ in pairs])

    def settle(self, batch: Batch) -> None:
        """Note what was claimed of a batch, give its credit back, and put the rest back into the queue."""
        claimed = batch.claimed
        if claimed and isinstance(last := batch.step(claimed - 1), Advanced):
            self.position = self.position.moved(last.token, last.watermark)
        self._queue.extendleft(reversed(list(zip(batch.sizes[claimed:], batch.steps[claimed:], strict=True))))
        self._shared.queued_bytes -= sum(batch.sizes[:claimed])
        self._shared.changed.notify_all()

    def stop(self) -> None:
        """Cancel the stream and drop what is queued; the thread ends soon. The lock is *not* held."""
        with self._shared.changed:
            self._stopped = True
            self._shared.queued_bytes -= sum(size for size, _ in self._queue)
            self._queue.clear()
            call = self._call
            self._shared.changed.notify_all()
        if call is not None:
            call.cancel()

    def uncounted(self) -> tuple[int, int]:
        """Return how many streams were opened and how many were lost since the last call. The lock is *not* held."""
        with self._shared.lock:
            done = self._streams, self._retries
            self._streams = self._retries = 0
            return done

    def join(self) -> None:
        """Wait for the thread of a stopped reader."""
        self._thread.join()

    # The thread's side.

    def _run(self) -> None:
        try:
            while self._paused(max(self._source.backoff.remaining_pause(), self._own.remaining_pause())):
                try:
                    if self._read_stream():
                        return
                    self._paused(_PAUSE_AFTER_OK)
                except UnreachableError as error:
                    self._retry(str(error))
        except BaseException as error:  # whatever it is, the consumer must hear of it
            with self._shared.changed:
                self.error = None if self._stopped else error
                self._shared.changed.notify_all()

    def _paused(self, seconds: float) -> bool:
        """Wait, and return whether to go on."""
        with self._shared.changed:
            return not self._shared.changed.wait_for(lambda: self._stopped, seconds) and not self._stopped

    def _retry(self, reason: str) -> None:
        if not self._stopped:
            with self._shared.lock:
                self._retries += 1
            self._own.failed(reason, math.inf)
            self._source.backoff.failed(reason, self._timeout)

    def _read_stream(self) -> bool:
        """Read one stream to its end; return whether the partition is at its end too."""
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
            self._own.answered()
            if not self._put(size, self._taken(record)) or type(record) is CloseStream:
                return True
            size, silent = 0, False
        if self._stopped:
            return True
        decoder.finish()
        if silent:
            raise UnreachableError("a stream ended with OK before it had sent anything")
        return False

    def _open(self) -> Call | None:
        call = self._source.open(self._ahead)
        with self._shared.changed:
            self._streams += 1
            self._call = call
            stopped = self._stopped
        if stopped:
            call.cancel()
        return None if stopped else call

    @property
    def _ahead(self) -> Opening:
        """Where a stream that is opened now must begin: behind the last whole record or heartbeat."""
        last = self._last
        return (
            self._opening if last is None else self._opening.moved(last.token, last.estimated_low_watermark)
        )

    def _taken(self, record: ChangeRecord) -> PendingStep:
        if type(record) is ChangeStreamMutation:
            self._last = record
            emitted = record if self._select is None else self._select(record)
            return emitted, None if emitted is not None else advanced(self._opening.partition, record)
        step = to_steps(self._opening.partition, record, bounded=self._bounded)
        if type(record) is Heartbeat:
            self._last = record
        elif step is None:
            assert type(record) is CloseStream
            raise self._source.refused_close(self._ahead, record)
        return None, step

    def _put(self, size: int, taken: PendingStep) -> bool:
        """Queue a step as soon as there is credit for it; False: the reader was stopped."""
        shared = self._shared
        with shared.lock:
            while self._queue and shared.queued_bytes + size > shared.buffer_bytes and not self._stopped:
                shared.changed.wait()
            if self._stopped:
                return False
            shared.queued_bytes += size
            self.heard = True
            if not self._queue:
                shared.changed.notify_all()
            self._queue.append((size, taken))
        return True


def to_steps(partition: KeyRange, record: ChangeRecord, *, bounded: bool) -> Step | None:
    """Return the step that a record of the stream of `partition` means; None: a close that leads nowhere.

    A close with status OK and nothing else says that an end_time was reached, so it counts only in a `bounded`
    reading. Tokens are followed whatever the status says.

    Raises:
        LineageError: a heartbeat of another partition.
    """
    if isinstance(record, ChangeStreamMutation):
        return advanced(partition, record)
    if isinstance(record, Heartbeat):
        if record.partition != partition:
            raise LineageError(
                f"a heartbeat of {abbreviate(record.partition)} in the stream of {abbreviate(partition)}"
            )
        return advanced(partition, record)
    if record.continuations:
        return Closed(partition, record.continuations)
    return Finished(partition) if record.code == 0 and bounded else None


def advanced(partition: KeyRange, record: ChangeStreamMutation | Heartbeat) -> Advanced:
    """Return the step that a record or heartbeat of the stream of `partition` means."""
    return Advanced(partition, record.token, record.estimated_low_watermark)


def by_watermark(openings: Mapping[KeyRange, Opening]) -> list[Opening]:
    """Return the openings, the one that lies lowest first."""
    return sorted(openings.values(), key=lambda opening: (opening.watermark, opening.partition))
