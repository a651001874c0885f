"""The stream of one partition of the topic: messages from the server, as steps. Knows neither Beam nor the client.

- **Order**: the order of offsets.
- **Memory**: the server sends as many bytes as the stream has granted; claimed steps are granted again.

A stream that breaks off is opened again after the last message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from penstock.io.change_streams.backoff import Backoff
from penstock.io.change_streams.partition_stream import PartitionStream, PendingStep, Reading
from penstock.io.ydb.frontier import Advanced, Ended, Finished, Position, Step
from penstock.io.ydb.steps import Message, PartitionSteps, Rules

DAY = 86_400.0
"""Seconds after which a stream is opened again."""


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

    def open(self, partition: int, read_from: int, seconds: float = DAY) -> Call:
        """Start a stream that skips messages written before `read_from` (nanoseconds); 0 skips none.

        After `seconds` the iteration raises an UnreachableError.
        """


class YdbStream(PartitionStream):
    """Reads one partition. A mark is a position, or a step of lineage."""

    lineage = frozenset({Finished, Ended})

    def __init__(
        self, partition: int, position: Position, rules: Rules, opener: Opener, share_bytes: int
    ) -> None:
        """`share_bytes`: how many bytes the server may send ahead."""
        self.name = f"partition {partition}"
        self._partition, self._opener = partition, opener
        self._steps = PartitionSteps(rules, partition, position)
        self._start_of_read = rules.stream.start
        # Bytes that were claimed are returned to the server as a grant, some of them later.
        self._share, self._returned, self._unreturned = share_bytes, 0, 0
        self._end_offset: int | None = None
        self._call: Call | None = None

    # The reader's thread.

    def read(self, reading: Reading) -> Iterator[Sequence[PendingStep]]:
        read_from = self._start_of_read if self._steps.position.sought else 0
        call = reading.opened(self._opener.open(self._partition, read_from))
        try:
            # Invariant: `_steps.position` follows the last message that was yielded.
            for event in call:
                steps = self._steps_of(call, event)
                if self._steps.has_ended:
                    steps.append((0, None, Ended(self._partition)))
                yield steps
        finally:
            # Before the cancel, so that no grant goes to a call that has ended. The next stream grants the whole share
            # again.
            self._call = None
            call.cancel()

    def _steps_of(self, call: Call, event: Event) -> list[PendingStep]:
        if type(event) is Data:
            return self._messages(event)
        if type(event) is Status:
            self._end_offset = event.end
            step = self._steps.idle(event.end, event.next_write)
            return [] if step is None else [step]
        if type(event) is Started:
            self._start(call, event)
            return []
        assert type(event) is EndOfPartition
        return [(0, None, Finished(self._partition, event.children, event.adjacent))]

    def _start(self, call: Call, event: Started) -> None:
        self._end_offset = event.end
        # The position of the thread and not of the consumer: queued steps must not come again.
        call.start(self._steps.position.offset)
        # The bytes of steps that were not claimed were granted by the previous stream.
        call.grant(max(1, self._share - (self.received_bytes - self._returned)))
        self._call = call
        # Do not wait for the next tick: an idle partition holds the watermark of the whole read.
        call.ask_status()

    def _messages(self, data: Data) -> list[PendingStep]:
        # The server counts a little more than the messages. The first one carries it, so that all of it is granted
        # again.
        sizes = [len(message.data) for message in data.messages]
        surplus = data.size - sum(sizes)
        steps: list[PendingStep] = []
        for message, size in zip(data.messages, sizes, strict=True):
            steps.append(self._steps.message(message, size + surplus))
            # In the server's count, because grants use the same.
            self.received_bytes += size + surplus
            surplus = 0
            if self._steps.has_ended:
                break
        return steps

    # The consumer.

    def step(self, mark: Any) -> Step:
        return mark if type(mark) in self.lineage else Advanced(self._partition, mark)

    def position(self, mark: Any) -> Position:
        position: Position = mark
        return position

    def is_behind(self, position: Position) -> bool:
        return self._call is not None and self.awaits_first(position)

    def awaits_first(self, position: Position) -> bool:
        return self._end_offset is None or position.offset < self._end_offset

    def claimed(self, steps: Sequence[PendingStep], *, more: bool) -> Callable[[], None] | None:
        self._unreturned += sum(size for size, _, _ in steps)
        # Few grants, because each is a message to the server.
        if not self._unreturned or (more and self._unreturned * 4 < self._share):
            return None
        granted, self._unreturned = self._unreturned, 0
        self._returned += granted
        return lambda: self._grant(granted)

    # The lock is not held.

    def _grant(self, size: int) -> None:
        if (call := self._call) is not None:
            call.grant(size)

    def ask_status(self) -> None:
        """Ask the server how far the partition is."""
        if (call := self._call) is not None:
            call.ask_status()

    def refresh_token(self) -> None:
        """Send the present token to the server."""
        if (call := self._call) is not None:
            call.refresh_token()
