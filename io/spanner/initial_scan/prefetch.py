"""Reads key ranges of a snapshot ahead: threads that read, one consumer that takes.

Implements `Prefetcher` of `io/change_streams`. It may outlive a bundle: between two bundles its threads continue to
read until the budget is used up. The next bundle continues with those ranges that it requests at exactly the key that
was claimed last. The others are read again, after that key.

- **Memory**: decoded messages wait under a budget of bytes. One message per range is always accepted, so that no range
  waits for another one.
- **Errors** of a thread are raised by `take`, in the consumer. After a temporary failure a range is read again, after
  the last row that was queued.
- **Order**: ranges come in any order, the rows of a range in the order of the service. `whole_ranges` hands out one
  range after another, because a range that has begun must be finished by the same bundle.

Knows neither Beam nor the client.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from penstock.errors import UnavailableError
from penstock.io.change_streams.backoff import Backoff
from penstock.io.change_streams.prefetch import Claim, Traffic
from penstock.io.change_streams.status import UnreachableError
from penstock.io.spanner.initial_scan.errors import ExpiredError
from penstock.io.spanner.initial_scan.frontier import KeyRange, RangeRead, RowsRead, ScanFrontier
from penstock.io.spanner.initial_scan.rows import RowReader
from penstock.io.spanner.record import DataChangeRecord

READING_THREADS = 4
"""Ranges that one bundle reads at once. Python decodes in one thread at a time, so more do not read faster."""


class Call(Protocol):
    """One running read."""

    def __iter__(self) -> Iterator[bytes]:
        """Yield encoded PartialResultSets."""

    def cancel(self) -> None:
        """End the read; the iteration ends or raises."""


Openers: TypeAlias = Callable[[KeyRange], Iterator["Opener"]]
"""Returns the reads that together have the rows of a range, to be made one after another."""
Opener: TypeAlias = Callable[[bytes], Call]
"""Starts a read, after the rows that came before a resume token (the empty one: from the start)."""


@dataclass(slots=True)
class RowsBatch:
    """One step of the range `number`: rows, or its end."""

    number: int
    step: RowsRead | RangeRead
    records: Sequence[DataChangeRecord]
    size: int
    claimed: int = 0

    @property
    def ends_with_lineage(self) -> bool:
        """Whether the range is finished with this batch."""
        return type(self.step) is RangeRead

    def claims(self) -> Iterator[Claim]:
        """Return the one claim of this batch: all of its rows have one message of the service in common."""
        return iter([(1, self.records, self.step)])


@dataclass(slots=True, eq=False)
class RangeState:
    """One range that is read. `queued` is what remains after the rows that were queued, `claimed` after the claimed.

    `backoff` grows while this range is refused. The shared one is reset by every answer, so a range that alone is
    refused would be asked almost without a pause.
    """

    number: int
    queued: KeyRange
    claimed: KeyRange
    backoff: Backoff
    batches: deque[RowsBatch] = field(default_factory=deque)
    queued_bytes: int = 0
    call: Call | None = None
    dropped: bool = False


class ScanPrefetcher:
    """Reads the ranges of one bundle after another. `serve`, `take`, then `park` or `close`: one consumer."""

    def __init__(
        self,
        frontier: ScanFrontier,
        openers: Openers,
        backoff: Backoff,
        *,
        unavailable_seconds: float,
        buffer_bytes: int,
        idle_seconds: float = 0.0,
        whole_ranges: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read nothing yet. `idle_seconds`: how long a parked prefetcher waits for the next bundle."""
        self._timestamp, self._tables, self._capture = frontier.timestamp, frontier.tables, frontier.capture
        self._openers = openers
        self._backoff = backoff
        self._unavailable_seconds = unavailable_seconds
        self._buffer_bytes = buffer_bytes
        self._idle_seconds = idle_seconds
        self._whole_ranges = whole_ranges
        self._clock = clock
        self._changed = threading.Condition()
        self._ranges: dict[int, RangeState] = {}
        self._unread: deque[RangeState] = deque()
        self._threads: list[threading.Thread] = []
        self._queued_bytes = 0
        self._in_hand: RowsBatch | None = None
        self._current: int | None = None
        self._error: BaseException | None = None
        self._closed = False
        self._parked_until: float | None = None
        self._requests = self._retries = self._received_bytes = 0

    # During a bundle.

    def serve(self, frontier: ScanFrontier) -> None:
        """Start reading the ranges of `frontier` that are not being read."""
        with self._changed:
            for number, each in frontier.ranges.items():
                if number not in self._ranges:
                    backoff = Backoff("Spanner", UnreachableError, self._clock)
                    self._ranges[number] = state = RangeState(number, each, each, backoff)
                    self._unread.append(state)
            for index in range(len(self._threads), min(READING_THREADS, len(self._ranges))):
                thread = threading.Thread(
                    target=self._run, name=f"penstock-spanner-snapshot-{index}", daemon=True
                )
                self._threads.append(thread)
                thread.start()
            self._changed.notify_all()

    def take(self, timeout: float) -> RowsBatch | None:
        """Return the next batch of a range, or None after `timeout` seconds.

        The last batch comes again if it was not claimed. Raises what a thread raised.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            self._settle()
            while (state := self._next_range()) is None and self._error is None:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return None
                self._changed.wait(remaining)
            if self._error is not None:
                raise self._error
            assert state is not None
            self._current = state.number
            self._in_hand = state.batches.popleft()
            return self._in_hand

    @property
    def data_expected(self) -> bool:
        """Whether a range is not finished and the service answers."""
        with self._changed:
            return bool(self._ranges) and self._backoff.remaining_pause() == 0

    @property
    def first_record_pending(self) -> bool:
        """Never: the watermark of a snapshot does not move before its end."""
        return False

    @property
    def may_stop(self) -> bool:
        """Whether all ranges are finished: a range may have to be read again from its beginning."""
        with self._changed:
            return not self._ranges

    def uncounted(self) -> Traffic:
        """Return the reads that were started and lost since the last call, and the bytes that were received."""
        with self._changed:
            done = Traffic(self._requests, self._retries, self._received_bytes)
            self._requests = self._retries = self._received_bytes = 0
            return done

    # Between bundles.

    def park(self) -> bool:
        """Read ahead for the next bundle, up to the budget; False: there is nothing to continue."""
        with self._changed:
            self._settle()
            # Part of a whole range may have been emitted by a bundle that does not commit.
            if self._whole_ranges or self._error is not None or self._idle_seconds <= 0:
                return False
            self._parked_until = self._clock() + self._idle_seconds
            self._changed.notify_all()
            return bool(self._ranges)

    @property
    def ended(self) -> bool:
        """Whether the read was closed, or parked for too long."""
        with self._changed:
            return self._has_ended()

    def matches(self, ranges: Mapping[int, KeyRange]) -> int:
        """Return how many of these ranges a bundle could continue here, at exactly these keys."""
        with self._changed:
            known = self._ranges
            return sum(number in known and known[number].claimed == each for number, each in ranges.items())

    def resume(self, ranges: Mapping[int, KeyRange]) -> bool:
        """Serve another bundle; drop the ranges that it does not ask for at their claimed key. False: it has none."""
        with self._changed:
            if self._has_ended():
                return False
            for number, state in list(self._ranges.items()):
                if ranges.get(number) != state.claimed:
                    self._drop(state)
            if not self._ranges:
                return False
            self._parked_until = None
            self._changed.notify_all()
            return True

    def stop(self) -> None:
        """End a parked read soon, without waiting for its threads: no bundle will ask for it."""
        with self._changed:
            self._closed = True
            for state in list(self._ranges.values()):
                self._drop(state)
            self._changed.notify_all()

    def close(self) -> None:
        """End the read and all its threads; batches that were not claimed are dropped. May be called again."""
        self.stop()
        for thread in self._threads:
            thread.join()

    # The lock is held below.

    def _settle(self) -> None:
        """Note that the batch in hand was claimed, or put it back."""
        batch, self._in_hand = self._in_hand, None
        if batch is None:
            return
        state = self._ranges[batch.number]
        if not batch.claimed:
            state.batches.appendleft(batch)
            return
        state.queued_bytes -= batch.size
        self._queued_bytes -= batch.size
        if isinstance(batch.step, RowsRead):
            # Invariant: `claimed` is what a checkpoint of this moment has, so `resume` compares with it.
            state.claimed = state.claimed.after(batch.step.key)
        else:
            del self._ranges[batch.number]
            self._current = None
        self._changed.notify_all()

    def _next_range(self) -> RangeState | None:
        """Return a range with a batch: the last batch's range if possible, so that ranges end one after another."""
        # Few ranges that are begun are better than many: a finished one leaves the checkpoint.
        if self._current is not None:
            current = self._ranges[self._current]
            if current.batches:
                return current
            if self._whole_ranges:
                return None
        return next((state for state in self._ranges.values() if state.batches), None)

    def _has_ended(self) -> bool:
        if self._parked_until is not None and self._clock() >= self._parked_until:
            self._closed = True
            self._changed.notify_all()
        return self._closed

    def _drop(self, state: RangeState) -> None:
        state.dropped = True
        self._queued_bytes -= state.queued_bytes
        del self._ranges[state.number]
        if self._current == state.number:
            self._current = None
        if state.call is not None:
            state.call.cancel()
        self._changed.notify_all()

    def _has_credit(self, state: RangeState, size: int) -> bool:
        """Return whether a message fits into the budget. One message per range always does."""
        return not state.queued_bytes or self._queued_bytes + size <= self._buffer_bytes

    # Methods of the threads.

    def _run(self) -> None:
        while (state := self._next_unread()) is not None:
            try:
                self._read_range(state)
            except BaseException as error:  # The consumer must learn of every error: see `take`.
                with self._changed:
                    if not self._unwanted(state):
                        self._error = self._error or error
                    self._changed.notify_all()

    def _next_unread(self) -> RangeState | None:
        """Wait for a range to read; None at the end of the read."""
        with self._changed:
            while not self._has_ended():
                while self._unread:
                    state = self._unread.popleft()
                    if not state.dropped:
                        return state
                self._wait()
        return None

    def _wait(self, seconds: float | None = None) -> None:
        """Wait until something changes; a parked read waits no longer than for the next bundle."""
        if self._parked_until is not None:
            remaining = max(0.0, self._parked_until - self._clock())
            seconds = remaining if seconds is None else min(seconds, remaining)
        self._changed.wait(seconds)

    def _unwanted(self, state: RangeState) -> bool:
        return self._closed or state.dropped

    def _read_range(self, state: RangeState) -> None:
        while not self._unwanted(state):
            # `queued` is replaced by each batch, so identity says whether rows of this attempt were queued.
            before = state.queued
            try:
                for opener in self._openers(state.queued):
                    self._read_call(state, opener)
                self._put(state, RowsBatch(state.number, RangeRead(state.number), (), 0))
                return
            except UnreachableError as error:
                if self._unwanted(state):
                    return
                self._pause(state, str(error))
                if self._whole_ranges and state.queued is not before:
                    # The next time the rows may come in another order, and some were handed out already.
                    raise UnavailableError(
                        f"a read with Data Boost was interrupted in the middle of a key range: {error}. The range is "
                        "read again from its start when the runner repeats the bundle"
                    ) from None

    def _read_call(self, state: RangeState, opener: Opener) -> None:
        reader = RowReader(self._tables[state.queued.table], self._timestamp, self._capture)
        while True:
            try:
                if self._feed(state, reader, opener(reader.resume_token)):
                    reader.finish()
                return
            except ExpiredError:
                raise
            except UnreachableError as error:
                # The read can be continued only after a message with a token: the service repeats all others.
                if not reader.resume_token or self._unwanted(state):
                    raise
                self._pause(state, str(error))

    def _feed(self, state: RangeState, reader: RowReader, call: Call) -> bool:
        """Queue the rows of a read; False: they are unwanted."""
        with self._changed:
            self._requests += 1
            # Known to `_drop`, which cancels it: a thread that waits for the service sees no flag.
            state.call = call
        try:
            for message in call:
                state.backoff.answered()
                found = reader.feed(message)
                for rows in found:
                    batch = RowsBatch(
                        state.number,
                        RowsRead(state.number, rows.last_key),
                        (rows.record,),
                        len(message) // len(found),
                    )
                    if not self._put(state, batch):
                        call.cancel()
                        return False
        finally:
            with self._changed:
                state.call = None
        return not self._unwanted(state)

    def _put(self, state: RangeState, batch: RowsBatch) -> bool:
        """Queue a batch as soon as there is credit for it; False: the range is unwanted."""
        with self._changed:
            while not self._has_ended() and not state.dropped and not self._has_credit(state, batch.size):
                self._wait()
            if self._unwanted(state):
                return False
            state.batches.append(batch)
            state.queued_bytes += batch.size
            self._queued_bytes += batch.size
            self._received_bytes += batch.size
            if isinstance(batch.step, RowsRead):
                # Under the lock with the batch: a retry reads on after exactly the rows in the queue.
                state.queued = state.queued.after(batch.step.key)
            self._changed.notify_all()
            return True

    def _pause(self, state: RangeState, reason: str) -> None:
        """Wait before the next attempt.

        Raises:
            UnavailableError: the service has not answered for `unavailable_seconds`.
        """
        self._backoff.failed(reason, self._unavailable_seconds)
        state.backoff.failed(reason, math.inf)
        with self._changed:
            self._retries += 1
            # In a loop: every batch of another range wakes this thread too.
            while not self._unwanted(state) and (seconds := self._remaining_pause(state)) > 0:
                self._changed.wait(seconds)

    def _remaining_pause(self, state: RangeState) -> float:
        return max(self._backoff.remaining_pause(), state.backoff.remaining_pause())
