"""The thread of a reader: opens a stream, reads it to its end, and opens it again after a pause. Knows no client.

A source's `StreamReader` adds the queue and decodes. All readers of a process share the lock of `ReadAhead`.

- **Errors** of the thread are in `error`, for the consumer. A stream that breaks off is opened again after a pause,
  which also grows while only this partition is refused.
- **End**: `stop` returns at once, `join` waits for the thread.
"""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable
from typing import Generic, Protocol, TypeVar

from penstock.io.change_streams.backoff import Backoff
from penstock.io.change_streams.prefetch import ReadAhead, Traffic
from penstock.io.change_streams.refusals import Refusals
from penstock.io.change_streams.status import UnreachableError

_PAUSE_AFTER_OK = 0.02
"""Seconds before a stream that ended without an error is opened again."""


class Cancellable(Protocol):
    """One running stream."""

    def cancel(self) -> None:
        """Cancel the stream, from any thread; its iteration ends or raises."""


CallT = TypeVar("CallT", bound=Cancellable)


class StreamThread(ABC, Generic[CallT]):
    """Reads one partition in a thread. The lock of `ahead` guards the attributes that both sides write."""

    def __init__(
        self,
        backoff: Backoff,
        refusals: Refusals,
        partition: Hashable,
        name: str,
        unavailable_seconds: float,
        ahead: ReadAhead,
    ) -> None:
        """`backoff` is shared by all threads of the process. `partition`, `name`: for `refusals` and its warnings."""
        self.error: BaseException | None = None
        self.opened = self.running_since = time.monotonic()
        self._backoff, self._ahead = backoff, ahead
        # Any answer of the service resets the shared back-off. This one grows while this partition alone is refused.
        self._own_backoff = Backoff(refusals.service, UnreachableError)
        self._refusals, self._refusal, self._name = refusals, (id(backoff), partition), name
        self._unavailable_seconds = unavailable_seconds
        self._requests = self._retries = self._received_bytes = 0
        # `stop` needs the call, to cancel it from the consumer's thread: a thread that waits in gRPC sees no flag.
        self._call: CallT | None = None
        self._stopped = False
        self._thread = threading.Thread(
            target=self._run, name=f"penstock-{refusals.service.lower()}-reader", daemon=True
        )

    def start(self) -> None:
        """Start the thread. The constructor of the subclass calls it last: the thread needs all attributes."""
        self._thread.start()

    # Methods that a source implements.

    @abstractmethod
    def open_call(self) -> CallT:
        """Open the stream where the last one broke off."""

    @abstractmethod
    def read_stream(self) -> bool:
        """Read one stream to its end; return whether the partition, or the read, has ended too."""

    @abstractmethod
    def drop_queue(self) -> Iterable[int]:
        """Empty the queue; return the sizes of its steps. The lock is held."""

    def call_lost(self) -> None:
        """Note that a stream broke off. The lock is held."""

    # The consumer's side; the lock is not held.

    def stop(self) -> None:
        """Cancel the stream and drop what is queued; the thread ends soon."""
        with self._ahead.changed:
            self._stopped = True
            self._ahead.queued_bytes -= sum(self.drop_queue())
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
        with self._ahead.lock:
            traffic = Traffic(self._requests, self._retries, self._received_bytes)
            self._requests = self._retries = self._received_bytes = 0
            return traffic

    # The thread's side.

    def _run(self) -> None:
        try:
            while self._paused(max(self._backoff.remaining_pause(), self._own_backoff.remaining_pause())):
                try:
                    if self.read_stream():
                        return
                    # The service may end a stream with OK at any time, for example when it restarts a server. Without a
                    # pause a service that always does so would be asked in a loop.
                    self._paused(_PAUSE_AFTER_OK)
                except UnreachableError as error:
                    self._retry(str(error))
        except BaseException as error:  # The consumer must learn of every error: its `take` raises it.
            with self._ahead.changed:
                # A stream that `stop` cancelled raises too. Its consumer does not wait any more.
                self.error = None if self._stopped else error
                self._ahead.changed.notify_all()

    def _paused(self, seconds: float) -> bool:
        """Wait, and return whether to continue."""
        with self._ahead.changed:
            # `wait_for` and not `wait`: every batch of another partition notifies this condition too, and would end the
            # pause.
            return not self._ahead.changed.wait_for(lambda: self._stopped, seconds) and not self._stopped

    def _answered(self) -> None:
        """End the back-offs: the service has sent something on this stream."""
        self._backoff.answered()
        self._own_backoff.answered()
        self._refusals.answered(self._refusal)

    def _retry(self, reason: str) -> None:
        if self._stopped:
            return
        with self._ahead.lock:
            self._retries += 1
            self.call_lost()
        # Its own back-off never gives up: `unavailable_seconds` is the limit for the whole service. The shared one
        # checks it, so it comes second: what it raises ends the thread.
        self._own_backoff.failed(reason, math.inf)
        self._backoff.failed(reason, self._unavailable_seconds)
        self._refusals.failed(self._refusal, self._name, reason, self._unavailable_seconds)

    def _open(self) -> CallT | None:
        """Return the running call; None: the reader was stopped."""
        call = self.open_call()
        with self._ahead.changed:
            self._requests += 1
            # Together under the lock: either `stop` finds the call, or this sees that it was stopped.
            self._call = call
            stopped = self._stopped
        # `stop` may have run between the request and the assignment, and then had no call to cancel.
        if stopped:
            call.cancel()
        return None if stopped else call


def stop_all(readers: Iterable[StreamThread[CallT]]) -> None:
    """Cancel streams and wait for their threads."""
    stopping = list(readers)
    # All are cancelled before the first is waited for, so that the waits overlap.
    for reader in stopping:
        reader.stop()
    for reader in stopping:
        reader.join()
