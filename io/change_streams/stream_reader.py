"""The thread of a partition: opens its stream, queues decoded steps, and opens the stream again after a pause.

- **Order**: the steps of a partition come in the order in which its `PartitionStream` yields them.
- **Memory**: over the budget a thread stops receiving. One yield per partition is always accepted, so that the lowest
  partition never starves.
- **Errors** of the thread are raised by `take`, in the consumer. A stream that breaks off is opened again after a
  pause, which also grows while only this partition is refused.
- **End**: `stop` returns at once, `join` waits for the thread.

All readers of a process share the lock of `ReadAhead`. Knows neither Beam nor a client.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import closing
from typing import Any

from penstock.io.change_streams.backoff import Backoff
from penstock.io.change_streams.partition_stream import (
    CallT,
    Cancellable,
    PartitionStream,
    PendingStep,
    StreamBatch,
    records_in,
)
from penstock.io.change_streams.prefetch import ReadAhead, Traffic
from penstock.io.change_streams.refusals import Refusals
from penstock.io.change_streams.status import UnreachableError

_PAUSE_AFTER_OK = 0.02
"""Seconds before a stream that ended without an error is opened again."""


class StreamReader:
    """The thread that reads a partition, and its queue. One consumer.

    `position` is how far steps were claimed, and so where the queue begins.
    """

    def __init__(
        self,
        partition: Hashable,
        position: Any,
        stream: PartitionStream,
        ahead: ReadAhead,
        backoff: Backoff,
        refusals: Refusals,
        unavailable_seconds: float,
    ) -> None:
        """`stream` begins at `position`. `backoff` and `refusals` are shared by all threads of the process."""
        self.partition, self.position, self.stream = partition, position, stream
        self.error: BaseException | None = None
        self.made_at = self.running_since = time.monotonic()
        self.unclaimed = True
        """Nothing was claimed yet, and no stream was lost."""
        self._ahead, self._backoff = ahead, backoff
        # Any answer of the service resets the shared back-off. This one grows while this partition alone is refused.
        self._own_backoff = Backoff(refusals.service, UnreachableError)
        self._refusals, self._refusal = refusals, (id(backoff), partition)
        self._unavailable_seconds = unavailable_seconds
        self._queue: deque[PendingStep] = deque()
        self._requests = self._retries = 0
        self._counted = Traffic()
        # `stop` needs the call, to cancel it from the consumer's thread: a thread that waits in gRPC sees no flag.
        self._call: Cancellable | None = None
        self._parked = self._gone = False
        self.stopped = False
        name = f"penstock-{refusals.service.lower()}-reader"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
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

    def at_hand(self, most: int) -> int:
        """Return how much there is to take, at most `most`: steps, and in their place the records of `LazyRecords`."""
        count = 0
        for step in self._queue:
            count += records_in(step)
            if count >= most:
                return most
        return count

    def take(self) -> StreamBatch:
        """Return queued steps as one batch. Raises what the thread raised, once all steps before it were taken."""
        # The steps before the error first: they were received in order and may be claimed.
        if not self._queue and self.error is not None:
            raise self.error
        steps: list[PendingStep] = []
        room = self.stream.max_in_batch
        while self._queue and room > 0:
            steps.append(self._queue.popleft())
            room -= records_in(steps[-1])
        return StreamBatch(self.partition, self.stream, steps)

    def settle(self, batch: StreamBatch) -> Callable[[], None] | None:
        """Note what was claimed of a batch, return its credit, and put the rest back into the queue.

        The result, if there is one, is to be called without the lock.
        """
        done = batch.steps[: batch.claimed]
        # `extendleft` turns the order around, so the steps are reversed first.
        self._queue.extendleft(reversed(batch.steps[batch.claimed :]))
        if not done:
            return None
        self.unclaimed = False
        # Invariant: `position` is the position before the first step in the queue. A step of lineage has none: the
        # stream ends with it, and the frontier knows what follows.
        moved = done[:-1] if type(done[-1][2]) in self.stream.lineage else done
        if moved:
            self.position = self.stream.position(moved[-1][2])
        self._ahead.queued_bytes -= sum(size for size, _, _ in done)
        self._ahead.changed.notify_all()
        return self.stream.claimed(done, more=bool(self._queue))

    def park(self) -> None:
        """Read on until a bundle continues here."""
        self._parked = True

    def resume(self) -> bool:
        """Return whether the reader still reads, or has failed. If not, its stream was lost to another reader."""
        self._parked = False
        return not self._gone

    # The consumer's side; the lock is not held.

    def stop(self) -> None:
        """Cancel the stream and drop what is queued; the thread ends soon."""
        with self._ahead.changed:
            self.stopped = True
            self._ahead.queued_bytes -= sum(size for size, _, _ in self._queue)
            self._queue.clear()
            call = self._call
            self._ahead.changed.notify_all()
        # Outside of the lock: the thread may need it to see that its stream was cancelled.
        if call is not None:
            call.cancel()

    def join(self) -> None:
        """Wait for the thread of a stopped reader."""
        self._thread.join()

    def uncounted(self) -> Traffic:
        """Return the streams that were opened and lost since the last call, and the bytes that were received."""
        # The thread only ever adds to these numbers, so they need no lock.
        total = Traffic(self._requests, self._retries, self.stream.received_bytes)
        before, self._counted = self._counted, total
        return Traffic(*(now - then for now, then in zip(total, before, strict=True)))

    # The thread's side.

    def opened(self, call: CallT) -> CallT:
        """Count a stream that was opened, and let `stop` cancel it; return it."""
        self._requests += 1
        with self._ahead.lock:
            # Together under the lock: either `stop` finds the call, or this sees that the reader was stopped.
            self._call, stopped = call, self.stopped
        if stopped:
            call.cancel()
        return call

    def _run(self) -> None:
        try:
            while self._paused(max(self._backoff.remaining_pause(), self._own_backoff.remaining_pause())):
                try:
                    if self._read():
                        return
                    # The service may end a stream with OK at any time, for example when it restarts a server. Without a
                    # pause a service that always does so would be asked in a loop.
                    self._paused(_PAUSE_AFTER_OK)
                except UnreachableError as error:
                    if self._is_lost_to_another():
                        return
                    self._retry(str(error))
        except BaseException as error:  # The consumer must learn of every error: its `take` raises it.
            with self._ahead.changed:
                # A stream that `stop` cancelled raises too. Its consumer does not wait any more.
                self.error = None if self.stopped else error
                self._ahead.changed.notify_all()
        finally:
            self.stream.close()

    def _read(self) -> bool:
        """Read one stream to its end; return whether the partition has ended too, or the reader was stopped."""
        lineage = self.stream.lineage
        # Invariant: the stream continues after the last step that it yielded, and each of them is queued, so nothing is
        # queued twice and nothing is left out.
        with closing(self.stream.read(self)) as decoded:  # type: ignore[type-var]
            for steps in decoded:
                self._backoff.answered()
                self._own_backoff.answered()
                self._refusals.answered(self._refusal)
                if steps and (not self._put(steps) or type(steps[-1][2]) in lineage):
                    return True
        return self.stopped

    def _put(self, steps: Sequence[PendingStep]) -> bool:
        """Queue steps as soon as there is credit for them; False: the reader was stopped."""
        size, ahead = sum([size for size, _, _ in steps]), self._ahead
        while True:
            # The plain lock: a condition costs a call or two more, and this runs for each record.
            with ahead.lock:
                queue = self._queue
                fits = not queue or ahead.queued_bytes + size <= ahead.buffer_bytes
                if fits or self.stopped or self._wait_for_credit(size):
                    if self.stopped:
                        return False
                    ahead.queued_bytes += size
                    # The consumer waits only while all queues are empty, so other appends need not wake it.
                    if not queue:
                        ahead.changed.notify_all()
                    queue.extend(steps)
                    return True
            self.stream.keep_alive()

    def _wait_for_credit(self, size: int) -> bool:
        """Wait until the queue takes `size` bytes; False: it is time to keep the stream alive."""
        ahead = self._ahead
        return ahead.changed.wait_for(
            lambda: self.stopped or not self._queue or ahead.queued_bytes + size <= ahead.buffer_bytes,
            self.stream.keep_alive_seconds,
        )

    def _paused(self, seconds: float) -> bool:
        """Wait, and return whether to continue."""
        with self._ahead.changed:
            # `wait_for` and not `wait`: every batch of another partition notifies this condition too, and would end the
            # pause.
            return not self._ahead.changed.wait_for(lambda: self.stopped, seconds) and not self.stopped

    def _is_lost_to_another(self) -> bool:
        """Whether another reader has taken the partition. To take it back would end that reader's stream."""
        with self._ahead.lock:
            # Decided under the lock: `resume` either finds a reader that still reads, or learns that it does not.
            self._gone = self._parked and self.stream.is_exclusive
            return self._gone

    def _retry(self, reason: str) -> None:
        if self.stopped:
            return
        self._retries += 1
        with self._ahead.lock:
            self.unclaimed = False
            self.stream.lost()
        # Its own back-off never gives up: `unavailable_seconds` is the limit for the whole service. The shared one
        # checks it, so it comes second: what it raises ends the thread.
        self._own_backoff.failed(reason, math.inf)
        self._backoff.failed(reason, self._unavailable_seconds)
        self._refusals.failed(self._refusal, self.stream.name, reason, self._unavailable_seconds)


def stop_all(readers: Iterable[StreamReader]) -> None:
    """Cancel streams and wait for their threads."""
    stopping = list(readers)
    # All are cancelled before the first is waited for, so that the waits overlap.
    for reader in stopping:
        reader.stop()
    for reader in stopping:
        reader.join()
