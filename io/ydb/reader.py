"""Reads one partition of the topic in a thread and queues its steps.

- **Order**: the order of offsets.
- **Memory**: the server sends as many bytes as the reader has granted; claimed steps are granted again.
- **Errors** of the thread are raised by `take`, in the consumer. A stream that breaks off is opened again from the last
  message; see `StreamThread`.

Knows neither Beam nor the client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, Protocol, TypeAlias

from penstock.io.change_streams.backoff import Backoff
from penstock.io.change_streams.prefetch import Claim, ReadAhead
from penstock.io.change_streams.refusals import Refusals
from penstock.io.change_streams.stream_thread import StreamThread
from penstock.io.ydb.frontier import Advanced, Ended, Finished, Position
from penstock.io.ydb.steps import Message, PartitionSteps, PendingStep, Rules

MAX_IN_BATCH = 256
"""Steps that are handed over at once."""
MAX_IN_CLAIM = 16
"""Records in one claim: few, so that a consumer that is split soon comes to an end."""


class Started(NamedTuple):
    """The server is ready to send; `end` is the offset after the last message."""

    end: int


class Data(NamedTuple):
    """Messages, and their size as the server counts it."""

    messages: list[Message]
    size: int


class Status(NamedTuple):
    """The partition ends at offset `end`; later messages are written at `next_write` (nanoseconds) or later."""

    end: int
    next_write: int


class EndOfPartition(NamedTuple):
    """No more messages will come; see `frontier.Finished`."""

    children: tuple[int, ...]
    adjacent: tuple[int, ...]


Event: TypeAlias = Started | Data | Status | EndOfPartition


class Call(Protocol):
    """One running stream of one partition. All methods may be called from any thread."""

    def __iter__(self) -> Iterator[Event]:
        """Yield what the server sends; the first event is `Started`. Raises what `errors.classify_status` returns."""

    def start(self, offset: int) -> None:
        """Answer to `Started`: send messages from this offset on."""

    def grant(self, size: int) -> None:
        """Let the server send `size` more bytes."""

    def ask_status(self) -> None:
        """Ask for a `Status`."""

    def refresh_token(self) -> None:
        """Send the present token: the server checks the token of a stream again while it runs."""

    def cancel(self) -> None:
        """Cancel the stream; the iteration ends or raises."""


class Opener(Protocol):
    """YDB, as the threads use it; see `client.Client`."""

    @property
    def backoff(self) -> Backoff:
        """When to ask again, for all threads of the process."""

    def open(self, partition: int, read_from: int) -> Call:
        """Start a stream. `read_from`: skip messages that were written before, in nanoseconds; 0: none."""


_REFUSALS = Refusals("YDB")


class Batch:
    """Steps of one partition in order. The consumer counts in `claimed` how many of them it has claimed."""

    __slots__ = ("claimed", "last", "reader", "steps")

    def __init__(self, reader: StreamReader, steps: list[PendingStep], last: Finished | Ended | None) -> None:
        self.reader, self.steps, self.last = reader, steps, last
        self.claimed = 0

    @property
    def ends_with_lineage(self) -> bool:
        """Whether the partition ends with this batch."""
        return self.last is not None

    def claims(self) -> Iterator[Claim]:
        """Yield runs of records with the position after each run, then the end of the partition."""
        steps, partition = self.steps, self.reader.partition
        for first in range(0, len(steps), MAX_IN_CLAIM):
            run = steps[first : first + MAX_IN_CLAIM]
            records = [record for _, record, _ in run if record is not None]
            yield len(run), records, Advanced(partition, run[-1].position)
        if self.last is not None:
            yield 1, (), self.last


class StreamReader(StreamThread[Call]):
    """The thread that reads a partition, and its queue. One consumer.

    `position` is how far steps were claimed, and so where the queue begins.
    """

    def __init__(
        self,
        partition: int,
        position: Position,
        rules: Rules,
        opener: Opener,
        unavailable_seconds: float,
        ahead: ReadAhead,
        share: int,
    ) -> None:
        """`share`: how many bytes may be read ahead."""
        super().__init__(
            opener.backoff, _REFUSALS, partition, f"partition {partition}", unavailable_seconds, ahead
        )
        self.partition, self.position = partition, position
        self._steps = PartitionSteps(rules, partition, position)
        self._start_of_read = rules.stream.start
        self._opener = opener
        self._share, self._unreturned = share, 0
        self._queue: deque[PendingStep] = deque()
        self._last: Finished | Ended | None = None
        self._end_offset: int | None = None
        self._claimed_any = False
        self._is_started = False
        self.start()

    # The consumer's side; the lock is held.

    @property
    def waiting(self) -> bool:
        """Whether there is a step to take, or an error to raise."""
        return bool(self._queue) or self._last is not None or self.error is not None

    @property
    def queued(self) -> int:
        """How many steps there are to take."""
        return len(self._queue)

    @property
    def first_record_pending(self) -> bool:
        """Whether the first message will come soon: the partition is behind, and nothing was claimed yet."""
        if self._claimed_any or self.error is not None:
            return False
        return self._end_offset is None or self.position.offset < self._end_offset

    @property
    def is_behind(self) -> bool:
        """Whether the server has more messages, by what it said last, although the queue may be empty for a moment."""
        return self._is_started and self._end_offset is not None and self.position.offset < self._end_offset

    def take(self) -> Batch:
        """Return queued steps as one batch. Raises what the thread raised, once all steps before it were taken."""
        if not self._queue and self._last is None and self.error is not None:
            raise self.error
        count = min(len(self._queue), MAX_IN_BATCH)
        steps = [self._queue.popleft() for _ in range(count)]
        # The end of the partition only with the last steps: it must be claimed after all of them.
        return Batch(self, steps, None if self._queue else self._last)

    def settle(self, batch: Batch) -> int:
        """Note what was claimed of a batch and put the rest back. Return how many bytes to grant to the server."""
        claimed = batch.claimed
        done = batch.steps[:claimed]
        # `extendleft` turns the order around, so the steps are reversed first.
        self._queue.extendleft(reversed(batch.steps[claimed:]))
        if done:
            # Invariant: `position` is the position before the first step in the queue.
            self.position, self._claimed_any = done[-1].position, True
            size = sum(step.size for step in done)
            self._ahead.queued_bytes -= size
            self._unreturned += size
        # Few grants, because each is a message to the server.
        if self._unreturned * 4 >= self._share or (self._unreturned and not self._queue):
            granted, self._unreturned = self._unreturned, 0
            return granted
        return 0

    # The lock is not held.

    def grant(self, size: int) -> None:
        """Let the server send more."""
        call = self._call
        if call is not None and self._is_started:
            call.grant(size)

    def ask_status(self) -> None:
        """Ask the server how far the partition is."""
        call = self._call
        if call is not None and self._is_started:
            call.ask_status()

    def refresh_token(self) -> None:
        """Send the present token to the server."""
        call = self._call
        if call is not None and self._is_started:
            call.refresh_token()

    # The thread's side.

    def open_call(self) -> Call:
        position = self._steps.position
        return self._opener.open(self.partition, self._start_of_read if position.sought else 0)

    def drop_queue(self) -> list[int]:
        sizes = [step.size for step in self._queue]
        self._queue.clear()
        return sizes

    def read_stream(self) -> bool:
        """Read one stream to its end; return whether the partition, or the read, has ended too."""
        call = self._open()
        if call is None:
            return True
        try:
            # Invariant: `_steps.position` follows the last queued message, so a new stream continues exactly after it.
            for event in call:
                self._answered()
                if self._handle(call, event):
                    return True
        finally:
            # Before the cancel, so that no grant goes to a call that has ended. The next stream grants the whole share
            # again.
            self._is_started = False
            call.cancel()
        return self._stopped

    def _handle(self, call: Call, event: Event) -> bool:
        """Queue the steps of an event; return whether the partition has ended."""
        if type(event) is Data:
            return self._put(self._steps_of(event))
        if type(event) is Status:
            with self._ahead.changed:
                self._end_offset = event.end
            step = self._steps.idle(event.end, event.next_write)
            return False if step is None else self._put([step])
        if type(event) is Started:
            with self._ahead.changed:
                self._end_offset = event.end
                # The bytes of queued messages were granted by the previous stream.
                granted = max(1, self._share - sum(step.size for step in self._queue) - self._unreturned)
            # The position of the thread and not of the consumer: queued steps must not come again.
            call.start(self._steps.position.offset)
            call.grant(granted)
            self._is_started = True
            # Do not wait for the next tick: an idle partition holds the watermark of the whole read.
            call.ask_status()
            return False
        assert type(event) is EndOfPartition
        self._finish(Finished(self.partition, event.children, event.adjacent))
        return True

    def _steps_of(self, data: Data) -> list[PendingStep]:
        # The server counts a little more than the messages. The first one carries it, so that all of it is granted
        # again.
        sizes = [len(message.data) for message in data.messages]
        surplus = data.size - sum(sizes)
        steps: list[PendingStep] = []
        for message, size in zip(data.messages, sizes, strict=True):
            steps.append(self._steps.message(message, size + surplus))
            surplus = 0
            if self._steps.has_ended:
                break
        return steps

    def _put(self, steps: list[PendingStep]) -> bool:
        """Queue steps; return whether the read of the partition has ended."""
        with self._ahead.changed:
            if self._stopped:
                return True
            if not self._queue:
                self._ahead.changed.notify_all()
            # No wait for room: the server sends no more than was granted, so the queue is bounded by the share.
            self._queue.extend(steps)
            size = sum(step.size for step in steps)
            # The size in the server's count, because grants use the same.
            self._received_bytes += size
            self._ahead.queued_bytes += size
        if self._steps.has_ended:
            self._finish(Ended(self.partition))
        return self._steps.has_ended

    def _finish(self, last: Finished | Ended) -> None:
        with self._ahead.changed:
            self._last = last
            self._ahead.changed.notify_all()
