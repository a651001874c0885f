"""A topic: partitions of messages, which split and merge, with retention and consumers. Pure.

    topic = Topic("/local/orders/feed", partitions=2)
    topic.write(hash_of(key), Message(b"{}", created_at=now, written_at=now))
    topic.split(0)                # 0 takes no more messages; 2 and 3 do

Sources: YDB documentation, "Topic" (partitions, offsets, retention, auto-partitioning); ydb_topic.proto,
DescribeTopicResult.PartitionInfo and EndPartitionSession; `ydb/services/lib/sharding/sharding.cpp`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace

KEY_SPACE = 2**128


class TopicError(ValueError):
    """The topic cannot do what was asked."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message. Times are nanoseconds since 1970; `written_at` never falls within a partition."""

    data: bytes
    created_at: int
    written_at: int
    metadata: tuple[tuple[str, bytes], ...] = ()
    producer: str = ""
    seq_no: int = 0


@dataclass(slots=True)
class Partition:
    """A partition for the hashes from `low` (inclusive) to `high` (exclusive).

    `first` is the offset of the first message that retention has left. An inactive partition takes no more messages.
    """

    number: int
    low: int
    high: int
    parents: tuple[int, ...] = ()
    children: tuple[int, ...] = ()
    active: bool = True
    first: int = 0
    messages: list[Message] = field(default_factory=list)

    @property
    def end(self) -> int:
        """The offset of the next message."""
        return self.first + len(self.messages)

    def message(self, offset: int) -> Message:
        """Return the message at an offset from `first` to before `end`."""
        return self.messages[offset - self.first]


class Topic:
    """The partitions of a topic. Numbers of partitions are never used again."""

    def __init__(
        self,
        path: str,
        *,
        partitions: int = 1,
        retention_seconds: float = 86_400,
        created_at: tuple[int, int] = (0, 0),
    ) -> None:
        self.path, self.retention_seconds, self.created_at = path, retention_seconds, created_at
        # As YDB divides the hashes of keys.
        size = (KEY_SPACE - 1) // partitions
        bounds = [number * size for number in range(partitions)] + [KEY_SPACE]
        self.partitions = {
            number: Partition(number, bounds[number], bounds[number + 1]) for number in range(partitions)
        }
        self.consumers: dict[str, dict[int, int]] = {}
        """Committed offsets by consumer and partition."""

    @property
    def active(self) -> list[Partition]:
        """The partitions that take messages."""
        return [partition for partition in self.partitions.values() if partition.active]

    def partition_for(self, hashed: int) -> Partition:
        """Return the active partition of a hash."""
        return next(each for each in self.active if each.low <= hashed < each.high)

    def write(self, hashed: int, message: Message) -> tuple[int, int]:
        """Append a message to the partition of a hash; return partition and offset."""
        return self.append(self.partition_for(hashed).number, message)

    def append(self, number: int, message: Message) -> tuple[int, int]:
        """Append a message to a partition; return partition and offset.

        Raises:
            TopicError: the partition takes no more messages.
        """
        partition = self._partition(number)
        if not partition.active:
            raise TopicError(f"partition {number} of {self.path} is inactive: write to {partition.children}")
        # The clock of the writer may be set back; times within a partition never fall.
        if partition.messages and message.written_at < partition.messages[-1].written_at:
            message = replace(message, written_at=partition.messages[-1].written_at)
        partition.messages.append(message)
        return number, partition.end - 1

    def split(self, number: int) -> tuple[int, int]:
        """Divide a partition in the middle of its hashes; return the two new ones.

        Raises:
            TopicError: the partition is inactive.
        """
        parent = self._active(number)
        # In the middle of the hashes, because a hash spreads keys evenly.
        middle = (parent.low + parent.high) // 2
        low = self._add(parent.low, middle, (number,))
        high = self._add(middle, parent.high, (number,))
        parent.active, parent.children = False, (low, high)
        return low, high

    def merge(self, first: int, second: int) -> int:
        """Join two neighbours; return the new partition.

        Raises:
            TopicError: they are inactive, or are not neighbours.
        """
        left, right = sorted((self._active(first), self._active(second)), key=lambda each: each.low)
        # A merged partition has one range of hashes.
        if left.high != right.low:
            raise TopicError(f"partitions {first} and {second} of {self.path} are not neighbours")
        child = self._add(left.low, right.high, (left.number, right.number))
        for parent in (left, right):
            parent.active, parent.children = False, (child,)
        return child

    def adjacent(self, number: int) -> tuple[int, ...]:
        """Return the partitions that were merged with this one."""
        # All parents of the children: a merge needs each of them to be read.
        parents = {p for child in self.partitions[number].children for p in self.partitions[child].parents}
        return tuple(sorted(parents - {number}))

    def trim(self, number: int, before: int) -> None:
        """Delete the messages of a partition before an offset, as retention does."""
        partition = self._partition(number)
        count = min(max(before - partition.first, 0), len(partition.messages))
        del partition.messages[:count]
        partition.first += count

    def expire(self, now: int) -> None:
        """Delete the messages that were written longer ago than the retention period. `now` is in nanoseconds."""
        oldest = now - round(self.retention_seconds * 1e9)
        for partition in self.partitions.values():
            # The first message that is young enough; none means that all have expired.
            kept = next((n for n, m in enumerate(partition.messages) if m.written_at >= oldest), None)
            self.trim(partition.number, partition.end if kept is None else partition.first + kept)

    def commit(self, consumer: str, number: int, offset: int) -> None:
        """Set the committed offset of a consumer.

        Raises:
            TopicError: there is no such consumer or partition, or the offset is after the end.
        """
        if consumer not in self.consumers:
            raise TopicError(f"topic {self.path} has no consumer {consumer!r}")
        partition = self._partition(number)
        if not 0 <= offset <= partition.end:
            raise TopicError(f"offset {offset} is not in partition {number}, which ends at {partition.end}")
        self.consumers[consumer][number] = offset

    def committed(self, consumer: str, number: int) -> int:
        """Return the committed offset of a consumer; 0 if it has committed none."""
        return self.consumers.get(consumer, {}).get(number, 0)

    def _add(self, low: int, high: int, parents: tuple[int, ...]) -> int:
        number = max(self.partitions) + 1
        self.partitions[number] = Partition(number, low, high, parents)
        return number

    def _partition(self, number: int) -> Partition:
        if number not in self.partitions:
            raise TopicError(f"topic {self.path} has no partition {number}")
        return self.partitions[number]

    def _active(self, number: int) -> Partition:
        partition = self._partition(number)
        if not partition.active:
            raise TopicError(f"partition {number} of {self.path} is inactive already")
        return partition


def hash_of(key: bytes) -> int:
    """Return the number by which a key's partition is found: the MD5 of the compact JSON array of the key."""
    return int(hashlib.md5(key, usedforsecurity=False).hexdigest(), 16)
