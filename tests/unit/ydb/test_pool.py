"""Readers between bundles: what is continued, what is committed, and what a failure does."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.errors import PositionLostError, UnavailableError
from penstock.io.change_streams.options import LimitOptions
from penstock.io.change_streams.settings import Limits
from penstock.io.change_streams.status import UnreachableError
from penstock.io.ydb.frontier import Frontier
from penstock.io.ydb.pool import StreamPool
from penstock.io.ydb.preflight import first_frontier
from penstock.io.ydb.read import Tables
from penstock.io.ydb.source import ChangeStream
from penstock.io.ydb.steps import Rules
from penstock_emulators.ydb.topic import Message, Topic
from tests.support.waiting import PATIENCE_SECONDS, wait_until
from tests.unit.ydb.memory import MemoryService, described

STREAM = ChangeStream("/local", "orders", "feed", 0, None)


def filled(count: int = 10, partitions: int = 1) -> Topic:
    topic = Topic("/local/orders/feed", partitions=partitions, created_at=(1, 1))
    for number in range(count):
        for partition in topic.active:
            value = {"key": [str(number)], "update": {}, "ts": [number, 1]}
            topic.append(partition.number, Message(json.dumps(value).encode(), number, number))
    return topic


class Reading:
    """One pool over a topic in memory, read in bundles."""

    def __init__(self, topic: Topic, **options: Any) -> None:
        self.service = MemoryService(topic)
        limits = {"idle_stream_seconds": 0.2, "unavailable_seconds": 0.0, **options.pop("limits", {})}
        found = described(topic)
        rules = Rules.of(STREAM, found, 10.0, Tables(found.table).at)
        partitions = limits.pop("max_concurrent_partitions", 32)
        checked = Limits.checked(LimitOptions(**limits), max_concurrent_partitions=partitions)
        self.pool = StreamPool(self.service, rules, checked, 0.05, **options)
        self.frontier: Frontier = first_frontier(STREAM, found)

    def bundle(self, most: int, frontier: Frontier | None = None) -> list[int]:
        """Claim up to `most` steps; return the offsets of the records, partition by partition."""
        current = self.frontier if frontier is None else frontier
        offsets: list[int] = []
        with self.pool.prefetching(current) as prefetcher:
            claimed = 0
            while claimed < most and not current.done:
                prefetcher.serve(current)
                batch = prefetcher.take(5.0)
                assert batch is not None, "nothing comes"
                for count, records, step in batch.claims():
                    if claimed >= most:
                        break
                    batch.claimed += count
                    claimed += count
                    current = current.apply(step)
                    offsets += [record.offset for record in records]
        self.frontier = current
        return offsets

    def threads_end(self) -> None:
        wait_until(lambda: not self.pool._running and not self.pool._parked, "readers do not end")


@pytest.fixture
def reading(request: pytest.FixtureRequest) -> Iterator[Reading]:
    made = Reading(filled(200), consumer="c")
    made.service.topic.consumers["c"] = {}
    yield made
    made.threads_end()


def test_a_parked_reader_continues_at_its_position(reading: Reading) -> None:
    assert reading.bundle(16) + reading.bundle(32) == list(range(48))
    assert len(reading.service.opened) == 1


def test_a_bundle_may_end_when_the_messages_that_the_server_has_were_claimed(reading: Reading) -> None:
    frontier = reading.frontier
    with reading.pool.prefetching(frontier) as prefetcher:
        prefetcher.serve(frontier)
        claimed = 0
        while claimed < 200:
            batch = prefetcher.take(PATIENCE_SECONDS)
            assert batch is not None
            assert not prefetcher.may_stop, claimed
            batch.claimed = len(batch.steps)
            claimed += batch.claimed
        prefetcher.take(0)
        assert prefetcher.may_stop


def test_a_bundle_at_another_position_gets_a_new_reader(reading: Reading) -> None:
    before = reading.frontier
    reading.bundle(16)
    assert reading.bundle(16, before) == list(range(16)), "the epoch is repeated"
    assert len(reading.service.opened) == 2


def test_a_partition_at_another_position_gets_a_new_reader_beside_one_that_continues() -> None:
    reading = Reading(filled(40, partitions=2), limits={"idle_stream_seconds": 5.0})
    before = reading.frontier.open[1]
    reading.bundle(64)
    assert reading.frontier.open[1] != before
    reading.bundle(16, reading.frontier.advanced({1: before}))
    assert [partition for partition, _ in reading.service.opened].count(1) == 2
    assert [partition for partition, _ in reading.service.opened].count(0) == 1
    with reading.pool.prefetching(reading.frontier.exhausted()) as prefetcher:
        prefetcher.serve(reading.frontier.exhausted())  # continues none, so the pool stops them
    reading.threads_end()


def test_only_the_offset_that_a_bundle_begins_at_is_committed(reading: Reading) -> None:
    reading.bundle(16)
    wait_until(lambda: reading.pool._worker is None or not reading.pool._to_commit, "no commit")
    assert reading.service.topic.committed("c", 0) == 0, "the first bundle is not in a checkpoint yet"
    reading.bundle(16)
    wait_until(lambda: reading.service.topic.committed("c", 0) == 16, "the offset is not committed")


def test_a_commit_that_fails_does_not_fail_the_read_and_a_later_one_includes_it(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = reading.service.commit

    def failing(*arguments: Any) -> None:
        raise UnreachableError("UNAVAILABLE")

    reading.bundle(16)
    monkeypatch.setattr(reading.service, "commit", failing)
    reading.bundle(16)
    monkeypatch.setattr(reading.service, "commit", real)
    reading.bundle(16)
    wait_until(lambda: reading.service.topic.committed("c", 0) == 32, "the offset is not committed")


def test_an_unexpected_error_of_the_periodic_work_fails_the_next_bundle_and_the_work_continues(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failed = reading.service.commit, threading.Event()

    def failing(*arguments: Any) -> None:
        failed.set()
        raise AttributeError("a bug")

    reading.bundle(16)
    monkeypatch.setattr(reading.service, "commit", failing)
    monkeypatch.setattr("threading.excepthook", lambda arguments: None)
    reading.bundle(16)
    assert failed.wait(PATIENCE_SECONDS)
    monkeypatch.setattr(reading.service, "commit", real)
    committed = reading.frontier
    wait_until(lambda: reading.pool._worker is None, "the work does not end")
    with pytest.raises(AttributeError, match="a bug"):
        reading.bundle(16)
    reading.bundle(16, committed)
    wait_until(lambda: reading.service.topic.committed("c", 0) == 32, "the offset is not committed")


def test_the_token_of_a_running_stream_is_sent_again(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.io.ydb.pool._TOKEN_SECONDS", 0.01)
    reading.pool._token_at = 0.0
    reading.bundle(16)
    wait_until(lambda: reading.service.tokens > 1, "no token is sent")


def test_a_stream_that_breaks_off_is_opened_again_after_the_last_message() -> None:
    """Also if nothing of it was claimed yet, and all of it waits in the queue."""
    reading = Reading(filled(20), limits={"unavailable_seconds": 60.0})
    reading.service.messages_until_failure = 7
    reader = reading.pool.resume(0, reading.frontier.open[0], 1)
    wait_until(lambda: reader.queued == 20 or reader.error is not None, "the stream is not opened again")
    batch = reader.take()
    assert [step.record.offset for step in batch.steps if step.record] == list(range(20))
    assert len(reading.service.opened) == 2
    reading.pool.drop(reader)
    reader.stop()
    reading.threads_end()


def test_a_service_that_does_not_answer_fails_the_bundle() -> None:
    reading = Reading(filled(20))

    def failing() -> None:
        raise UnreachableError("UNAVAILABLE")

    reading.service.failing = failing
    with pytest.raises(UnavailableError, match="unavailable_seconds"):
        reading.bundle(1)
    reading.threads_end()


def test_a_gap_after_retention_fails_the_bundle_after_the_records_before_it() -> None:
    topic = filled(5)
    reading = Reading(topic)
    assert reading.bundle(5) == list(range(5))
    for number in range(5, 10):
        topic.append(0, Message(b'{"key":["k"],"update":{},"ts":[9,9]}', 9, 9))
        topic.trim(0, number)
    with pytest.raises(PositionLostError, match="records are lost"):
        reading.bundle(5)
    reading.threads_end()


def test_the_end_of_a_partition_comes_after_its_last_record_and_names_its_children() -> None:
    topic = filled(3)
    topic.split(0)
    reading = Reading(topic)
    assert reading.bundle(4) == [0, 1, 2]
    assert reading.frontier.open.keys() == {1, 2}
    reading.threads_end()


def test_more_partitions_than_readers_take_turns_and_all_are_read() -> None:
    reading = Reading(filled(3, partitions=5), limits={"max_concurrent_partitions": 2})
    for partition in reading.service.topic.active:
        reading.service.topic.append(partition.number, Message(b'{"resolved":[99,0]}', 99, 99))
    assert sorted(reading.bundle(4) + reading.bundle(4)) == sorted([0, 1, 2] * 2)
    reading.threads_end()
