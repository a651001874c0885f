"""The threads of a prefetcher: each runs one short bounded query after another and queues what it sends.

A thread always picks the partition that may be asked first, so partitions beyond the number of threads take turns.
It follows the partition's position while it reads; the consumer claims later.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import TypeAlias

from penstock import timeline
from penstock.io.change_streams.backoff import Backoff
from penstock.io.change_streams.refusals import Refusals
from penstock.io.change_streams.status import UnreachableError
from penstock.io.spanner.decode import Decoder
from penstock.io.spanner.frontier import Advanced, Announced, Ended, Finished, abbreviate
from penstock.io.spanner.placements import PlacementList, step_of
from penstock.io.spanner.query import query_end
from penstock.io.spanner.state import Batch, Call, PartitionState, ReadState
from penstock.io.spanner.steps import Wanted, announces_end, closes, last_step, next_span, to_steps
from penstock.timestamps import NANOS

Opener: TypeAlias = Callable[[str, int, int], Call]
"""Starts the query of (key of the partition, start_timestamp, end_timestamp)."""

_REFUSALS = Refusals("Spanner")


class StreamReader:
    """Runs queries in threads. An UnreachableError is retried after a pause; other errors end the read."""

    def __init__(
        self,
        state: ReadState,
        opener: Opener,
        backoff: Backoff,
        *,
        poll: int,
        end: int | None,
        unavailable_seconds: float,
        wanted: Wanted | None = None,
        placements: PlacementList | None = None,
    ) -> None:
        """`poll`: how far a query looks ahead; `end`: last timestamp to read; both in nanoseconds.

        `wanted`: which records are emitted; None: all. `placements`: the list of placements, if the stream has one.
        """
        self._state = state
        self._open = opener
        self._backoff = backoff
        self._poll = poll
        self._end = end
        self._unavailable_seconds = unavailable_seconds
        self._wanted = wanted
        self._placements = placements
        self.threads: list[threading.Thread] = []

    def start_threads(self, count: int) -> None:
        """Start threads until there are `count`."""
        for number in range(len(self.threads), count):
            # A daemon, because Beam gives a DoFn no chance to end its threads when a worker process is stopped.
            thread = threading.Thread(target=self._run, name=f"penstock-spanner-reader-{number}", daemon=True)
            self.threads.append(thread)
            thread.start()

    def _run(self) -> None:
        while (partition := self._next_partition()) is not None:
            try:
                if partition.lists_placements:
                    self._look_at_placements(partition)
                else:
                    self._read_call(partition)
            except UnreachableError as error:
                self._retry(partition, str(error))
            except BaseException as error:  # The consumer must learn of every error: see `take`.
                # A query that was cancelled, because its rows are not needed any more, raises too. Ignore that error.
                if not self._state.unwanted(partition):
                    self._state.fail(error)

    def _next_partition(self) -> PartitionState | None:
        """Wait until a query may start; return its partition, or None at the end of the read."""
        state = self._state
        with state.changed:
            while not state.check_ended() and state.error is None:
                # A read whose queue is empty may always ask. Otherwise parked reads, which hold the budget, could keep
                # it from its first row.
                if state.queued_bytes and state.ahead.queued_bytes >= state.ahead.buffer_bytes:
                    state.wait_for_credit()
                    continue
                wait = self._seconds_until_next()
                if wait is not None and wait <= 0:
                    return state.start_next()
                state.wait_until_due(wait)
        return None

    def _seconds_until_next(self) -> float | None:
        """Return when a query may start; None: not before something changes."""
        start = self._state.schedule.next_start()
        if start is None:
            return None
        return max((start - self._state.clock()) / NANOS, self._backoff.remaining_pause())

    def _read_call(self, partition: PartitionState) -> None:
        # Only this thread has the partition until `rest`: it is in no schedule while its query runs, so its position
        # needs no lock.
        state, token, start = self._state, partition.token, partition.position.timestamp
        until = state.clock() + (self._poll if partition.caught_up else 0)
        # A long backlog is read in several queries: the more time a query covers, the later its first row comes.
        end = min(query_end(start, until, self._end), start + partition.span)
        call = self._open(token, start, end)
        with state.changed:
            state.queries += 1
            state.running[partition] = call, end
            state.ahead.streams += 1
        try:
            announced = self._drain(partition, call, start, end)
        finally:
            with state.changed:
                del state.running[partition]
                state.ahead.streams -= 1
        # A partition that a record has closed is read again only when the frontier opens it.
        if state.unwanted(partition) or partition.finished:
            return
        # After the drain, because the position has then passed every record of the query.
        step = last_step(token, partition.position, end, self._end, announced=announced)
        finished = isinstance(step, Finished | Ended)
        if isinstance(step, Advanced):
            partition.position = step.position
        if step is not None:
            self._put(partition, Batch(token, start, [([], step)], 0), finished=finished)
        # Only a query that was not cut short by `span` or the end shows that the partition is caught up.
        partition.caught_up = end >= until
        if not finished:
            with state.changed:
                state.rest(partition, end)

    def _look_at_placements(self, partition: PartitionState) -> None:
        """Claim time up to the look, or a function that was not known."""
        state, key, since = self._state, partition.token, partition.position.timestamp
        assert self._placements is not None
        looked = self._placements.look(key, since)
        partition.backoff.answered()
        _REFUSALS.answered((id(self._backoff), key))
        step = step_of(key, looked, self._end)
        with state.changed:
            state.queries += 1
        finished = not isinstance(step, Advanced)
        if isinstance(step, Advanced):
            partition.position = step.position
        partition.caught_up = True
        self._put(partition, Batch(key, since, [([], step)], 0), finished=finished)
        if not finished:
            following = looked.time + self._placements.every
            with state.changed:
                state.rest(partition, following if self._end is None else min(following, self._end))

    def _drain(self, partition: PartitionState, call: Call, start: int, end: int) -> bool:
        """Queue what the query sends, or discard it when unwanted. True: the partition ends with the query.

        A record that closes the partition ends the query. The rest of its answer is asked for again when the frontier
        opens the partition again: a queue that waits for other partitions would hold memory and a thread that these
        may need.
        """
        state, announced, received = self._state, False, 0
        decoder = Decoder()
        for message in call:
            partition.backoff.answered()
            _REFUSALS.answered((id(self._backoff), partition.token))
            received += len(message)
            unwanted = state.unwanted(partition)
            # Until its end_timestamp the emulator works on a cancelled query too, so the rows are drained instead.
            if unwanted and state.clock() > end:
                call.cancel()
                break
            if not unwanted:
                steps, partition.position = to_steps(
                    partition.token, partition.position, decoder.feed(message), self._wanted
                )
                announced = announced or any(type(s) is Announced and announces_end(s) for _, s in steps)
                closed = bool(steps) and closes(steps[-1][1])
                if timeline.enabled:
                    commits = [record.commit_timestamp for records, _ in steps for record in records]
                    timeline.trace("received", commits=commits)
                self._put(partition, Batch(partition.token, start, steps, len(message)), finished=closed)
                if closed:
                    call.cancel()
                    return announced
        if not state.unwanted(partition):
            decoder.finish()
            # Only after a whole query: one that was cut off says nothing about the density of the history.
            partition.span = next_span(partition.span, received)
        return announced

    def _put(self, partition: PartitionState, batch: Batch, *, finished: bool = False) -> None:
        """Queue a batch as soon as the partition has credit for it, or discard it when unwanted."""
        if not batch.steps:
            return
        state = self._state
        with state.changed:
            while (
                not state.check_ended()
                and not partition.dropped
                and not self._has_credit(partition, batch.size)
            ):
                state.wait_for_credit()
            if state.unwanted(partition):
                return
            # With the batch, under the lock: `_settle` forgets a partition that is finished and has an empty queue.
            partition.finished = finished
            # Charged also if the batch is absorbed: its bytes stay in memory in either case.
            state.charge(partition, batch.size)
            state.received_bytes += batch.size
            # Only a batch that is still in the queue can absorb another: the consumer removes a batch before it reads
            # its steps.
            if partition.queue and partition.queue[-1].absorbs(batch):
                return
            # Invariant: a partition is in `ready` if its queue is not empty. The heap may have old entries, which it
            # drops.
            partition.queue.append(batch)
            if len(partition.queue) == 1:
                state.ready.add(partition)
                state.arrived.notify()

    def _has_credit(self, partition: PartitionState, size: int) -> bool:
        """Return whether a message fits into the partition's share and the budget. One message always does.

        So no partition starves because of the bytes that others hold.
        """
        ahead = self._state.ahead
        share = ahead.buffer_bytes // max(1, ahead.streams)
        fits = partition.queued_bytes + size <= share and ahead.queued_bytes + size <= ahead.buffer_bytes
        return fits or not partition.queued_bytes

    def _retry(self, partition: PartitionState, reason: str) -> None:
        state = self._state
        if state.unwanted(partition):
            return
        try:
            self._backoff.failed(reason, self._unavailable_seconds)
        except Exception as error:
            state.fail(error)
            return
        # The shared back-off is reset by any answer. The partition's own grows while it alone is refused.
        # No limit here: `unavailable_seconds` applies to the whole service, and the shared back-off has just checked
        # it.
        partition.backoff.failed(reason, math.inf)
        refusal = id(self._backoff), partition.token
        _REFUSALS.failed(refusal, abbreviate(partition.token), reason, self._unavailable_seconds)
        with state.changed:
            partition.unclaimed = False
            state.retries += 1
            # Put the partition back into the schedule instead of waiting, so that this thread can read another one.
            state.rest(partition, state.clock() + round(partition.backoff.remaining_pause() * NANOS))
