"""Seeded histories, read in closed slices, with a crash between any two calls of Spark's API.

The table, its shards, its topic and the oracle are those of the Beam reader's histories. Connections break off too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.errors import LineageError, PositionLostError, UnavailableError
from penstock.io.ydb import slice_reader
from penstock.io.ydb.record import ChangefeedRecord
from penstock.io.ydb.slice import (
    Offsets,
    Piece,
    SlicePart,
    ends_of,
    parents_of,
    slice_end,
    slice_parts,
)
from penstock.io.ydb.slice_reader import CheckKept, checks_kept, read_piece
from penstock.io.ydb.source import ChangeStream
from penstock.io.ydb.steps import Rules
from penstock_emulators.ydb.topic import Message, Topic
from tests.simulation.ydb.reading import Reading
from tests.unit.ydb.memory import TABLE, MemoryService, described

HISTORIES = 100


class CrashError(Exception):
    """The process dies at this call."""


class SlicedReading(Reading):
    """Reads one history as Spark's micro-batches do."""

    def __init__(self, seed: int, events: int = 60, crash_at: int | None = None) -> None:
        super().__init__(seed, events, crash_at)
        self.service = MemoryService(self.topic)
        found = described(self.topic)
        self.before = Offsets({each.number: each.first for each in found.partitions})
        self.planned: Offsets | None = None
        self.most = self.draw.choice((None, 1, 3, 20))
        self.tasks = self.draw.choice((1, 2, 16))
        self.batches = self.repeated = self.breaks = 0
        self.writes = True
        self.sink: dict[int, list[ChangefeedRecord]] = {}

    def _epoch(self) -> None:
        """Run one batch, unless the reader crashes in it: the next call runs the same batch again. Often it lags."""
        if self.writes and self.draw.random() < 0.6:
            return
        try:
            self._batch()
        except CrashError:
            self.crashes += 1

    def _batch(self) -> None:
        if self.planned is None:
            self._call()
            found = described(self.topic)
            target = ends_of(found)
            # Meanwhile the topic goes on.
            if self.writes and self.draw.random() < 0.3:
                self._transaction()
            self.planned = slice_end(self.before, target, parents_of(found), self.most)
            if self.planned == self.before:
                self.planned = None
                return
        self._call()
        parts = slice_parts(self.before, self.planned, parents_of(described(self.topic)), self.tasks)
        assert self.most is None or sum(part.size for part in parts) <= self.most
        self.draw.shuffle(parts)
        found_records = [record for part in parts for record in self._records(part)]
        self._call()
        if self.batches in self.sink:
            # Tasks end in any order; within a task the order is the same.
            again = sorted(found_records, key=_place)
            assert sorted(self.sink[self.batches], key=_place) == again, "a repeated batch has other records"
            self.repeated += 1
        self.sink[self.batches] = found_records
        self._call()
        self.before, self.planned = self.planned, None
        self.batches += 1
        self.committed = [record for _, records in sorted(self.sink.items()) for record in records]

    def _records(self, part: SlicePart) -> Iterator[ChangefeedRecord]:
        for piece in part.pieces:
            # Rarely: after a connection that breaks off the reader pauses.
            if self.draw.random() < 0.002:
                self.service.messages_until_failure = self.draw.randrange(3)
                self.breaks += 1
            for records in read_piece(self.service, self.rules, piece, 60, kept(self.topic)):
                yield from records
            self.service.messages_until_failure = None

    def _call(self) -> None:
        self.steps += 1
        if self._crash_at == self.steps or (self._crash_at is None and self.draw.random() < 0.1):
            raise CrashError

    def _settle(self) -> None:
        for shard in range(3):
            self.database.hold("orders", shard, False)
        self.database.scan(1000)
        self.database.emit_barriers()
        self._crash_at, self.writes = -1, False
        for _ in range(5000):
            before = self.batches
            self._epoch()
            if self.batches == before:
                return
        raise AssertionError("the reader makes no progress")


def _place(record: ChangefeedRecord) -> tuple[int, int]:
    return record.partition, record.offset


def test_histories_in_slices_lose_nothing_double_nothing_and_keep_the_order(campaign: Any) -> None:
    crashes = splits = merges = records = repeated = breaks = 0
    histories = campaign.size(HISTORIES, 1000)
    for seed in range(histories):
        run = SlicedReading(seed)
        try:
            run.run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        crashes, splits, merges = crashes + run.crashes, splits + run.splits, merges + run.merges
        records, repeated, breaks = records + len(run.committed), repeated + run.repeated, breaks + run.breaks
    assert min(crashes, splits, merges, repeated) > histories // 2, (
        "the histories are too quiet to show anything"
    )
    campaign.record(
        "ydb-slices",
        histories=histories,
        crashes=crashes,
        splits=splits,
        merges=merges,
        records=records,
        repeated=repeated,
        broken_connections=breaks,
    )


def test_a_crash_at_every_call_of_the_api_changes_nothing() -> None:
    undisturbed = SlicedReading(3, events=15, crash_at=-1)
    undisturbed.run()
    for call in range(1, undisturbed.steps + 1):
        SlicedReading(3, events=15, crash_at=call).run()


def topic(*counts: int) -> Topic:
    """Return a topic with a number of messages in each partition."""
    made = Topic("/local/orders/feed", partitions=len(counts), created_at=(1, 1))
    for number, count in enumerate(counts):
        fill(made, number, count)
    return made


def fill(made: Topic, number: int, count: int) -> None:
    for _ in range(count):
        made.append(number, Message(b'{"key":["k"],"update":{},"ts":[1,1]}', 1, 1))


def end(made: Topic, start: Offsets, most: int | None = None) -> Offsets:
    found = described(made)
    return slice_end(start, ends_of(found), parents_of(found), most)


def rules(stream: ChangeStream, made: Topic) -> Rules:
    return Rules.of(stream, described(made), 0, lambda schema: TABLE)


STREAM = ChangeStream("/local", "orders", "feed", 0, None)


def kept(made: Topic) -> CheckKept:
    return checks_kept(STREAM, MemoryService(made).describe, made.created_at)


def test_a_limit_is_divided_evenly_and_a_short_partition_leaves_its_rest() -> None:
    assert end(topic(100, 2, 100), Offsets({}), 22).open == {0: 10, 1: 2, 2: 10}
    assert end(topic(100, 200), Offsets({}), 1).open == {0: 0, 1: 1}
    assert end(topic(3, 4), Offsets({}), 100).open == {0: 3, 1: 4}


def test_a_child_is_read_only_when_its_parents_are_finished() -> None:
    made = topic(10, 10)
    child = made.merge(0, 1)
    fill(made, child, 5)
    assert end(made, Offsets({}), 15) == Offsets({1: 8}, {}) or end(made, Offsets({}), 15) == Offsets(
        {0: 7, 1: 8}
    )
    assert end(made, Offsets({0: 7, 1: 8}), 6) == Offsets({2: 1}, {0: 10, 1: 10})
    assert end(made, Offsets({2: 1}, {0: 10, 1: 10})) == Offsets({2: 5}, {0: 10, 1: 10})


def test_a_server_that_lags_moves_no_offset_back() -> None:
    assert end(topic(3), Offsets({0: 5})) == Offsets({0: 5})
    with pytest.raises(LineageError, match="begins at offset 5 of partition 0 and ends at 3"):
        slice_parts(Offsets({0: 5}), Offsets({0: 3}), {}, 1)


def test_partitions_that_continue_each_other_are_one_part_with_the_parents_first() -> None:
    made = topic(10, 10, 30)
    child = made.merge(0, 1)
    fill(made, child, 5)
    found = described(made)
    parts = slice_parts(Offsets({}), end(made, Offsets({})), parents_of(found), 8)
    assert [[piece.partition for piece in part.pieces] for part in parts] == [[2], [0, 1, 3]]
    finished = Offsets({2: 0}, {0: 10, 1: 10})
    parts = slice_parts(finished, end(made, finished), parents_of(found), 8)
    assert [[piece.partition for piece in part.pieces] for part in parts] == [[2], [3]]


def test_parts_are_as_equal_as_they_can_be() -> None:
    made = topic(10, 9, 5, 3, 2)
    parts = slice_parts(Offsets({}), end(made, Offsets({})), {}, 2)
    assert [part.size for part in parts] == [15, 14]


def test_a_finished_partition_that_retention_has_removed_is_forgotten() -> None:
    made = topic(3)
    low, high = made.split(0)
    whole = end(made, Offsets({0: 0}))
    assert whole == Offsets({low: 0, high: 0}, {0: 3})
    del made.partitions[0]
    fill(made, low, 2)
    assert end(made, whole) == Offsets({low: 2, high: 0})


def test_messages_that_retention_has_deleted_are_an_error_also_at_the_end_of_a_partition() -> None:
    made = topic(10)
    made.trim(0, 5)
    with pytest.raises(PositionLostError, match="should have offset 3, and the first one that is left has 5"):
        list(read_piece(MemoryService(made), rules(STREAM, made), Piece(0, 3, 8), 60, kept(made)))
    made.trim(0, 10)
    made.split(0)
    with pytest.raises(PositionLostError, match="2 records are lost"):
        list(read_piece(MemoryService(made), rules(STREAM, made), Piece(0, 6, 8), 60, kept(made)))


def test_a_task_whose_last_messages_are_deleted_while_it_reads_does_not_wait_for_later_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slice_reader, "STREAM_SECONDS", 0.05)
    made = topic(10)
    service = MemoryService(made)
    # The server is slower than the retention: it has started the stream, and sends nothing any more.
    service.failing = lambda: made.trim(0, 10)
    with pytest.raises(
        PositionLostError, match="should have offset 3, and the first one that is left has 10"
    ):
        list(read_piece(service, rules(STREAM, made), Piece(0, 3, 8), 60, kept(made)))


def test_a_server_that_sends_nothing_of_a_slice_has_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slice_reader, "STREAM_SECONDS", 0.01)
    made = topic(5)
    with pytest.raises(UnavailableError, match="has not answered"):
        list(read_piece(MemoryService(made), rules(STREAM, made), Piece(0, 3, 8), 0.1, kept(made)))


def test_a_piece_ends_at_its_end_and_continues_after_a_lost_connection() -> None:
    made = topic(10)
    service = MemoryService(made)
    service.messages_until_failure = 3
    records = [
        each
        for group in read_piece(service, rules(STREAM, made), Piece(0, 2, 8), 60, kept(made))
        for each in group
    ]
    assert [record.offset for record in records] == [2, 3, 4, 5, 6, 7]
    assert len(service.opened) == 2
