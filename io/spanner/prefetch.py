"""Reads many partitions at once: threads that ask, one consumer that takes.

    with pool.checkout(frontier.open) as readers:
        readers.read(frontier.open)              # start reading these, if they are not being read
        batch = readers.take(timeout=0.05)       # steps of one partition, in order; None: nothing yet
        for record, step in batch.steps: …       # claim the step, emit the record …
            batch.claimed += 1                   # … and say so

Each thread asks one short bounded query after another, always for the partition that has been read least far,
and follows its position by itself; the consumer claims later. The threads may outlive the bundle (see `pool`):
what they have read and was not claimed stays in its queue, and the next bundle goes on with those partitions
that it asks for at exactly their claimed position.

- **Memory**: decoded messages wait under one budget of bytes: no query starts while it is used up, and within
  a query a thread over its share stops pulling. One message per partition is always let in, so that the
  lowest partition never starves.
- **Errors** of a thread are raised by `take`, in the consumer. What passes is asked again after a pause, which grows
  while this partition alone is not answered too.
- **End**: `close` starts no further query, lets the running ones end (they look ahead by `poll` at most), and
  returns when all threads have. A query is broken off only after its end_timestamp has passed: the emulator
  would go on working at it until then. Threads that were kept and are not needed end by themselves.

Knows neither Beam nor the client; times are nanoseconds of the clock that is passed in.
"""

from __future__ import annotations

import heapq
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from penstock.io.change_streams.backoff import Backoff
from penstock.io.change_streams.status import UnreachableError
from penstock.io.spanner.decode import Decoder
from penstock.io.spanner.frontier import Advanced, Announced, Ended, Finished, Position
from penstock.io.spanner.query import window_end
from penstock.io.spanner.steps import FIRST_SPAN, PendingStep, last_step, next_span, to_steps
from penstock.timestamps import NANOS

_MILLI = 1_000_000
_LATE = 1000 * _MILLI
_GRACE = 500 * _MILLI
"""How long after its end_timestamp a query may still run when the bundle ends."""


class Window(Protocol):
    """One running query."""

    def __iter__(self) -> Iterator[bytes]:
        """Yield encoded PartialResultSets."""

    def cancel(self) -> None:
        """Break off; the iteration ends or raises."""


Ask: TypeAlias = Callable[[str, int, int], Window]
"""Start the query of (token, start_timestamp, end_timestamp)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How the reading is bounded: how far a query looks ahead, how long the service may stay away (seconds),
    how many queries run at once, how much may be read ahead of the consumer, and how long a reading whose
    bundle has ended waits for the next one (seconds)."""

    poll_seconds: float
    unavailable_seconds: float
    max_concurrent_partitions: int
    buffer_bytes: int
    idle_stream_seconds: float


@dataclass(slots=True)
class Batch:
    """Steps of one partition in order, none below `low`; the consumer counts in `claimed` how many of them it has
    claimed. `size` is that of the message they came in."""

    token: str
    low: int
    steps: list[PendingStep]
    size: int
    claimed: int = 0


@dataclass(slots=True, eq=False)
class _Partition:
    """`position` is where its thread has come to, `claimed` where the consumer has: None from the first child that
    was announced on, of which a position says nothing. Nobody wants what comes of a `dropped` one.

    What has passed already is asked for by itself, for it comes at once: the emulator sends nothing before a
    query's end. Later queries look ahead.
    """

    token: str
    position: Position
    claimed: Position | None
    backoff: Backoff
    """Its own, while others are answered."""
    caught_up: bool = False
    awaited: bool = True
    """Nothing of it has been claimed yet, and no query of it has failed."""
    over: bool = False
    dropped: bool = False
    span: int = FIRST_SPAN
    queued_bytes: int = 0
    queue: deque[Batch] = field(default_factory=deque)


class Prefetcher:
    """The threads of one reading and what they have read. `read`, `take`, then `keep` or `close`: one consumer."""

    def __init__(
        self,
        ask: Ask,
        backoff: Backoff,
        limits: Limits,
        end: int | None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """Read nothing yet. `end` is the last timestamp to read, inclusive, None for no end.

        After an UnreachableError `backoff` says when to ask again; other errors end the reading.
        """
        self._ask = ask
        self._backoff = backoff
        self._limits = limits
        self._poll = round(limits.poll_seconds * NANOS)
        self._end = end
        self._clock = clock
        self._changed = threading.Condition()
        self._partitions: dict[str, _Partition] = {}
        self._idle: list[tuple[int, int, _Partition]] = []
        self._rested = 0
        self._full: dict[str, _Partition] = {}
        self._running: dict[_Partition, tuple[Window, int]] = {}
        self._threads: list[threading.Thread] = []
        self._queued_bytes = 0
        self._in_hand: Batch | None = None
        self._error: BaseException | None = None
        self._closing = False
        self._parked_until: float | None = None
        self._queries = self._retries = 0

    def read(self, partitions: Mapping[str, Position]) -> None:
        """Start reading the partitions that are not being read."""
        with self._changed:
            for token in partitions.keys() - self._partitions.keys():
                position = partitions[token]
                partition = _Partition(token, position, position, Backoff("Spanner", UnreachableError))
                self._partitions[token] = partition
                # A start that lies ahead is waited for here: a query for it would not end before.
                self._rest(partition, position.timestamp - self._poll)
            for _ in range(
                min(len(self._partitions), self._limits.max_concurrent_partitions) - len(self._threads)
            ):
                self._start_thread()

    def take(self, timeout: float) -> Batch | None:
        """Return the batch of the partition that lies lowest; None when there is none within `timeout` seconds.

        Whatever of the last batch was not counted as claimed comes again. Raises what a thread raised.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            self._settle()
            while not self._full and self._error is None:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return None
                self._changed.wait(remaining)
            if self._error is not None:
                raise self._error
            return self._hand_out(min(self._full.values(), key=lambda partition: partition.queue[0].low))

    @property
    def data_expected(self) -> bool:
        """A partition lies more than a second behind, and the service, which answers, is at work for it."""
        with self._changed:
            return self._lowest_behind() is not None and self._backoff.remaining_pause() == 0

    @property
    def first_record_pending(self) -> bool:
        """As `data_expected`, and nothing of that partition has been claimed: a cut now would drop it as it began."""
        with self._changed:
            lowest = self._lowest_behind()
            return lowest is not None and lowest.awaited and self._backoff.remaining_pause() == 0

    def uncounted(self) -> tuple[int, int]:
        """Return how many queries were asked and how many of them were lost since the last call."""
        with self._changed:
            done = self._queries, self._retries
            self._queries = self._retries = 0
            return done

    def park(self) -> bool:
        """Go on reading ahead for the next bundle, for `idle_stream_seconds`; False: there is nothing to go on with.

        What lies behind is dropped: its queries may take long, and one that was left running for a bundle which
        begins elsewhere would stand in the way of that bundle's own.
        """
        with self._changed:
            self._settle()
            for token in [token for token, each in self._partitions.items() if self._lies_behind(each)]:
                self._drop(token)
            self._parked_until = time.monotonic() + self._limits.idle_stream_seconds
            self._changed.notify_all()
            return bool(self._partitions) and not self._check_ended()

    @property
    def ended(self) -> bool:
        """Whether the reading was closed, or kept in vain for too long."""
        with self._changed:
            return self._check_ended()

    def matches(self, partitions: Mapping[str, Position]) -> int:
        """Return how many of these partitions the next bundle can go on with, at exactly these positions."""
        with self._changed:
            return 0 if self._check_ended() else sum(map(self._stands_at, partitions, partitions.values()))

    def resume(self, partitions: Mapping[str, Position]) -> bool:
        """Serve another bundle, and forget what it does not ask for at that position; False: it is too late."""
        with self._changed:
            if self._check_ended():
                return False
            self._parked_until = None
            for token in list(self._partitions):
                if token not in partitions or not self._stands_at(token, partitions[token]):
                    self._drop(token)
            self._changed.notify_all()
            return True

    def discard(self) -> None:
        """Let a kept reading end soon by itself: nobody will ask for it."""
        with self._changed:
            self._parked_until = time.monotonic()
            self._check_ended()

    def close(self) -> None:
        """End the reading and all its threads; what was not claimed is dropped. May be called again."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            while thread.is_alive():
                thread.join(self._until_overdue())
                self._break_off_overdue()

    # The consumer's side; the lock is held.

    def _lowest_behind(self) -> _Partition | None:
        """Return the partition that lies lowest, if that is more than a second behind."""
        left = (partition for partition in self._partitions.values() if not partition.over)
        lowest = min(left, key=lambda partition: partition.position.timestamp, default=None)
        late = self._clock() - _LATE
        return lowest if lowest is not None and lowest.position.timestamp < late else None

    def _start_thread(self) -> None:
        name = f"penstock-spanner-reader-{len(self._threads)}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _hand_out(self, partition: _Partition) -> Batch:
        self._in_hand = partition.queue.popleft()
        if not partition.queue:
            del self._full[partition.token]
        return self._in_hand

    def _settle(self) -> None:
        """Note what was claimed of the batch in hand, and put back the rest, or else its credit."""
        batch, self._in_hand = self._in_hand, None
        if batch is None:
            return
        partition = self._partitions[batch.token]
        partition.awaited = partition.awaited and not batch.claimed
        for _, step in batch.steps[: batch.claimed]:
            if type(step) is not Advanced:
                partition.claimed = None
            elif partition.claimed is not None:
                partition.claimed = step.position
        if batch.claimed < len(batch.steps):
            partition.queue.appendleft(
                Batch(batch.token, batch.low, batch.steps[batch.claimed :], batch.size)
            )
            self._full[batch.token] = partition
        else:
            partition.queued_bytes -= batch.size
            self._queued_bytes -= batch.size
        if partition.over and not partition.queue:
            del self._partitions[batch.token]
        self._changed.notify_all()

    # From one bundle to the next; the lock is held.

    def _lies_behind(self, partition: _Partition) -> bool:
        """Whether a query asks for what has passed already, or should have ended long ago."""
        _, end = self._running.get(partition, (None, self._clock()))
        return not partition.caught_up or self._clock() > end + _GRACE

    def _stands_at(self, token: str, position: Position) -> bool:
        return token in self._partitions and self._partitions[token].claimed == position

    def _drop(self, token: str) -> None:
        """Forget a partition; break off its query, unless that ends soon by itself."""
        partition = self._partitions.pop(token)
        partition.dropped = True
        partition.queue.clear()
        self._queued_bytes -= partition.queued_bytes
        self._full.pop(token, None)
        window, end = self._running.get(partition, (None, 0))
        if window is not None and self._clock() > end:
            window.cancel()

    def _check_ended(self) -> bool:
        """Whether the reading is at its end; the end of what was kept too long comes here."""
        if not self._closing and self._parked_until is not None and time.monotonic() >= self._parked_until:
            self._closing = True
            for token in list(self._partitions):
                self._drop(token)
            self._changed.notify_all()
        return self._closing

    def _wait(self, seconds: float | None) -> None:
        """Wait until something changes, at most so long, and not longer than the reading is kept."""
        if self._parked_until is not None:
            left = max(0.0, self._parked_until - time.monotonic())
            seconds = left if seconds is None else min(left, seconds)
        self._changed.wait(seconds)

    # The end.

    def _until_overdue(self) -> float:
        with self._changed:
            ends = [end for _, end in self._running.values()]
        return max(0.01, (min(ends, default=0) + _GRACE - self._clock()) / 1e9)

    def _break_off_overdue(self) -> None:
        with self._changed:
            overdue = [window for window, end in self._running.values() if self._clock() > end + _GRACE]
        for window in overdue:
            window.cancel()

    # The threads' side.

    def _run(self) -> None:
        while (partition := self._next_partition()) is not None:
            try:
                self._read_window(partition)
            except UnreachableError as error:
                self._retry(partition, str(error))
            except BaseException as error:  # whatever it is, the consumer must hear of it
                if not self._unwanted(partition):
                    self._fail(error)

    def _next_partition(self) -> _Partition | None:
        """Wait until a partition may be asked; return the one asked least far, or None at the end."""
        with self._changed:
            while not self._check_ended() and self._error is None:
                wait = self._until_next()
                if wait is not None and wait <= 0:
                    return heapq.heappop(self._idle)[2]
                self._wait(wait)
        return None

    def _until_next(self) -> float | None:
        """Return the seconds until a query may start; None: not before something changes."""
        while self._idle and self._idle[0][2].dropped:
            heapq.heappop(self._idle)
        if not self._idle or self._queued_bytes >= self._limits.buffer_bytes:
            return None
        return max((self._idle[0][0] - self._clock()) / 1e9, self._backoff.remaining_pause())

    def _read_window(self, partition: _Partition) -> None:
        token, start = partition.token, partition.position.timestamp
        until = self._clock() + (self._poll if partition.caught_up else 0)
        end = min(window_end(start, until, self._end), start + partition.span)
        window = self._ask(token, start, end)
        with self._changed:
            self._queries += 1
            self._running[partition] = window, end
        try:
            announced = self._drain(partition, window, start, end)
        finally:
            with self._changed:
                del self._running[partition]
        if self._unwanted(partition):
            return
        step = last_step(token, partition.position, end, self._end, announced=announced)
        over = isinstance(step, Finished | Ended)
        if isinstance(step, Advanced):
            partition.position = step.position
        if step is not None:
            self._put(partition, Batch(token, start, [(None, step)], 0), over=over)
        partition.caught_up = end >= until
        if not over:
            with self._changed:
                self._rest(partition, end)

    def _unwanted(self, partition: _Partition) -> bool:
        return self._closing or partition.dropped

    def _drain(self, partition: _Partition, window: Window, start: int, end: int) -> bool:
        """Queue what the window sends, or drop it when unwanted. True: a child partitions record was sent."""
        announced, received = False, 0
        decoder = Decoder()
        for message in window:
            partition.backoff.answered()
            received += len(message)
            unwanted = self._unwanted(partition)
            if unwanted and self._clock() > end:
                window.cancel()
                break
            if not unwanted:
                steps, partition.position = to_steps(
                    partition.token, partition.position, decoder.feed(message)
                )
                announced = announced or any(isinstance(step, Announced) for _, step in steps)
                self._put(partition, Batch(partition.token, start, steps, len(message)))
        if not self._unwanted(partition):
            decoder.finish()
            partition.span = next_span(partition.span, received)
        return announced

    def _put(self, partition: _Partition, batch: Batch, *, over: bool = False) -> None:
        """Queue a batch as soon as the partition has credit for it, or drop it when unwanted."""
        if not batch.steps:
            return
        with self._changed:
            while (
                not self._check_ended()
                and not partition.dropped
                and not self._has_credit(partition, batch.size)
            ):
                self._wait(None)
            if self._unwanted(partition):
                return
            partition.over = over
            partition.queued_bytes += batch.size
            self._queued_bytes += batch.size
            partition.queue.append(batch)
            self._full[partition.token] = partition
            self._changed.notify_all()

    def _has_credit(self, partition: _Partition, size: int) -> bool:
        credit = self._limits.buffer_bytes // max(1, len(self._running))
        return not partition.queued_bytes or partition.queued_bytes + size <= credit

    def _rest(self, partition: _Partition, asked_until: int) -> None:
        """Let the partition be asked again when the clock has passed `asked_until`; the lock is held.

        With a clock that lags behind the service's, a window ends at once; this keeps the pace all the same.
        """
        self._rested += 1
        heapq.heappush(self._idle, (asked_until, self._rested, partition))
        self._changed.notify_all()

    def _retry(self, partition: _Partition, reason: str) -> None:
        if self._unwanted(partition):
            return
        try:
            self._backoff.failed(reason, self._limits.unavailable_seconds)
        except Exception as error:
            self._fail(error)
            return
        partition.backoff.failed(reason, math.inf)
        with self._changed:
            partition.awaited = False
            self._retries += 1
            self._rest(partition, self._clock() + round(partition.backoff.remaining_pause() * NANOS))

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()
