"""`PartitionStream`: each source implements it, and its partitions are read ahead. Pure.

    class ListStream(PartitionStream):
        lineage = frozenset({Ended})

        def read(self, reading):
            call = reading.opened(self._service.open(self._next))     # after the last step that was yielded
            for message in call:
                yield [(len(message), decode(message), self._after(message))]

`StreamReader` has the thread, the queue and the credit, repeats a stream that breaks off, and hands out batches.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

from penstock.io.change_streams.lazy_records import is_lazy
from penstock.io.change_streams.prefetch import Claim

PendingStep: TypeAlias = tuple[int, Any, Any]
"""(bytes in memory, what is emitted or None, mark). A mark says where the partition stands after the step; it is either
turned into a position, or it is a step of lineage."""


def records_in(step: PendingStep) -> int:
    """Return how many records a step has, if they are lazy; otherwise a step counts as one."""
    emitted = step[1]
    return len(emitted) if is_lazy(emitted) else 1


class Cancellable(Protocol):
    """One running stream."""

    def cancel(self) -> None:
        """Cancel the stream, from any thread; its iteration ends or raises."""


CallT = TypeVar("CallT", bound=Cancellable)


class Reading(Protocol):
    """The reader, as its stream sees it."""

    @property
    def stopped(self) -> bool:
        """Whether the reader was stopped. Then nothing that is yielded is needed."""

    def opened(self, call: CallT) -> CallT:
        """Count a stream that was opened, and let `stop` cancel it; return it."""


class PartitionStream:
    """The streams of one partition, one after another, decoded. Its reader's thread calls `read`.

    A source implements `read`, `step` and `position`, and overrides other methods where its service needs it. The
    consumer calls them with the lock held, unless they say otherwise. `name` is for warnings.
    `received_bytes`, which only `read` changes, counts bytes as the service sent them.
    """

    lineage: ClassVar[Collection[type]]
    """Types of the marks that are steps of lineage. Such a step is the last one that `read` yields."""
    is_exclusive: ClassVar[bool] = False
    """The service lets one reader use a partition. A parked stream that is lost has another reader, so it is not opened
    again."""
    keep_alive_seconds: ClassVar[float | None] = None
    """How often `keep_alive` is called while the reader waits for credit; None: never."""
    max_in_batch: ClassVar[int] = 256
    """Steps that are handed over at once; each record of `LazyRecords` counts as a step."""
    max_in_claim: ClassVar[int] = 16
    """Steps in one claim: few, so that a consumer that is split soon comes to an end."""
    name: str = ""
    received_bytes: int = 0

    def read(self, reading: Reading) -> Iterator[Sequence[PendingStep]]:
        """Open a stream after the last step that was yielded, and yield its steps until it ends. No lock is held.

        Each yield says that the service has answered, also without steps. To return means that the service has ended
        the stream: another one is opened after a pause. `UnreachableError` has the same effect, after a longer pause.
        Other errors are raised in the consumer, after all steps.
        """
        raise NotImplementedError

    def step(self, mark: Any) -> Any:
        """Return the step that is claimed for a mark."""
        raise NotImplementedError

    def position(self, mark: Any) -> Any:
        """Return the position after a mark that is not lineage."""
        raise NotImplementedError

    def records(self, steps: Sequence[PendingStep]) -> list[Any]:
        """Return what is emitted for steps."""
        return [emitted for _, emitted, _ in steps if emitted is not None]

    def is_behind(self, position: Any) -> bool:
        """Return whether the service has more data, although the queue may be empty for a moment."""
        return False

    def awaits_first(self, position: Any) -> bool:
        """Return whether the first data comes soon; asked while nothing was claimed since the stream was opened."""
        return False

    def claimed(self, steps: Sequence[PendingStep], *, more: bool) -> Callable[[], None] | None:
        """Note claimed steps; `more`: others are queued. The result is called without the lock."""
        return None

    def lost(self) -> None:
        """Note that a stream broke off."""

    def keep_alive(self) -> None:
        """Tell the service that the reader is there. Called by the reader's thread, without the lock."""

    def close(self) -> None:
        """Free what the stream holds. Called by the reader's thread when it ends, without the lock."""


class StreamBatch:
    """Steps of one partition in order. The consumer counts in `claimed` how many of them it has claimed."""

    __slots__ = ("claimed", "ends_with_lineage", "partition", "steps", "stream")

    def __init__(self, partition: Any, stream: PartitionStream, steps: list[PendingStep]) -> None:
        self.partition, self.stream, self.steps = partition, stream, steps
        self.claimed = 0
        self.ends_with_lineage = type(steps[-1][2]) in stream.lineage
        """Whether the last step changes which partitions may be read."""

    def claims(self) -> Iterator[Claim]:
        """Yield runs of limited length: the number of steps, the records to emit, the step to claim.

        To claim a step is to claim everything before it in its partition, so one claim serves a whole run.
        """
        steps, stream = self.steps, self.stream
        # A step of lineage is a run of its own, because what follows depends on it.
        count = len(steps) - self.ends_with_lineage
        first = 0
        while first < count:
            emitted, length = steps[first][1], 1
            # Lazy records are a run of their own, because a list of them would make them all.
            if not is_lazy(emitted):
                most = min(stream.max_in_claim, count - first)
                while length < most and not is_lazy(steps[first + length][1]):
                    length += 1
                emitted = stream.records(steps[first : first + length])
            first += length
            yield length, emitted, stream.step(steps[first - 1][2])
        if self.ends_with_lineage:
            yield 1, (), stream.step(steps[-1][2])
