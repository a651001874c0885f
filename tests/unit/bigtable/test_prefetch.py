"""The threads, their queue and the pool, with a service of scripts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.errors import DecodeError, LineageError
from penstock.io.bigtable.frontier import Advanced, Closed, Finished, Position
from penstock.io.bigtable.keys import EVERYTHING, KeyRange
from penstock.io.bigtable.pool import Limits, Prefetcher, StreamPool
from penstock.io.change_streams.partition_stream import StreamBatch
from penstock.io.change_streams.status import UnreachableError
from tests.support.waiting import PATIENCE_SECONDS, wait_until

LOW, HIGH = KeyRange(b"", b"m"), KeyRange(b"m", b"")
START = Position(EVERYTHING, (), 0)
SECOND = 1_000_000_000


@pytest.fixture
def pool(source: Any) -> Iterator[Callable[..., StreamPool]]:
    made: list[StreamPool] = []

    def make(*, bounded: bool = False, **changed: Any) -> StreamPool:
        given = {
            "unavailable_seconds": 5.0, "max_concurrent_partitions": 8, "buffer_bytes": 1 << 20,
            "idle_stream_seconds": 5.0,
            "merge_wait_seconds": 0.05,
            "heartbeat_seconds": 1.0,
        }  # fmt: skip
        made.append(StreamPool(source, Limits(**{**given, **changed}), None, bounded))
        return made[-1]

    yield make
    for each in made:
        each.clear()
    wait_until(lambda: not names(), names)


def names() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "bigtable-reader" in thread.name]


def taken(prefetcher: Prefetcher, steps: int, timeout: float = PATIENCE_SECONDS) -> list[Any]:
    """Claim `count` steps and return them."""
    found: list[Any] = []
    until = time.monotonic() + timeout
    while len(found) < steps:
        assert time.monotonic() < until, f"only {len(found)} of {steps} steps came"
        batch = prefetcher.take(0.05)
        if batch is not None:
            new = [batch.stream.step(mark) for _, _, mark in batch.steps][: steps - len(found)]
            batch.claimed = len(new)
            found += new
    return found


def test_records_and_heartbeats_come_as_steps_in_order(source: Any, say: Any, pool: Any) -> None:
    source.will_say(EVERYTHING, say.change("a", low=2), say.heartbeat(EVERYTHING, "b", 3))
    with Prefetcher(pool()) as prefetcher:
        prefetcher.read({EVERYTHING: START})
        assert taken(prefetcher, 2) == [
            Advanced(EVERYTHING, "a", 2 * SECOND),
            Advanced(EVERYTHING, "b", 3 * SECOND),
        ]


@pytest.mark.parametrize("lag", [0, 10])
def test_a_bundle_reads_on_although_its_queue_is_empty_while_the_service_sends_old_records(
    source: Any, say: Any, pool: Any, lag: int
) -> None:
    # Times are in whole seconds, and the reader compares with its clock a moment later: far from the limit of 5 s.
    now = time.time_ns() // SECOND
    source.will_say(EVERYTHING, say.change("a", seconds=now - lag))
    with Prefetcher(pool()) as prefetcher:
        prefetcher.read({EVERYTHING: START})
        taken(prefetcher, 1)
        assert prefetcher.may_stop is (lag < 5)


def test_a_bundle_may_end_after_a_heartbeat_or_a_lost_stream(source: Any, say: Any, pool: Any) -> None:
    old = say.change("a", seconds=1), say.change("b", seconds=1)
    source.will_say(EVERYTHING, old[0], say.heartbeat(EVERYTHING, "h", 1))
    source.will_say(LOW, old[1], UnreachableError("reset"))
    for part in (EVERYTHING, LOW):
        with Prefetcher(pool()) as prefetcher:
            prefetcher.read({part: Position(part, (), 0)})
            taken(prefetcher, 1)
            wait_until(lambda prefetcher=prefetcher: prefetcher.may_stop)


def test_an_interrupted_stream_continues_after_the_last_complete_record(
    source: Any, say: Any, pool: Any
) -> None:
    half = say.change("never")
    half.data_change.done = False
    source.will_say(EVERYTHING, say.change("a"), half, UnreachableError("reset"))
    source.will_say(EVERYTHING, say.change("b"))
    with Prefetcher(pool()) as prefetcher:
        prefetcher.read({EVERYTHING: START})
        assert [step.token for step in taken(prefetcher, 2)] == ["a", "b"]
    assert [position.tokens for position in source.opened] == [(), ((EVERYTHING, "a"),)]


def test_a_stream_that_ends_with_ok_and_no_close_is_opened_again(source: Any, say: Any, pool: Any) -> None:
    source.will_say(EVERYTHING, say.change("a"), ends=True)
    source.will_say(EVERYTHING, say.change("b"))
    with Prefetcher(pool()) as prefetcher:
        prefetcher.read({EVERYTHING: START})
        assert [step.token for step in taken(prefetcher, 2)] == ["a", "b"]


@pytest.mark.parametrize("code", [11, 13, 0, 99])
def test_a_close_without_tokens_never_ends_the_read(source: Any, say: Any, pool: Any, code: int) -> None:
    source.will_say(EVERYTHING, say.change("a"), say.close(code), ends=True)
    source.will_say(EVERYTHING, say.change("b"))
    with Prefetcher(pool()) as prefetcher:
        prefetcher.read({EVERYTHING: START})
        assert [step.token for step in taken(prefetcher, 2)] == ["a", "b"]


def test_a_close_with_ok_ends_only_a_bounded_read(source: Any, say: Any, pool: Any) -> None:
    source.will_say(EVERYTHING, say.close(0), ends=True)
    with Prefetcher(pool(bounded=True)) as prefetcher:
        prefetcher.read({EVERYTHING: START})
        assert taken(prefetcher, 1) == [Finished(EVERYTHING)]


def test_tokens_are_followed_for_every_status(source: Any, say: Any, pool: Any) -> None:
    source.will_say(EVERYTHING, say.close(13, (LOW, "l", LOW), (HIGH, "h", HIGH)), ends=True)
    with Prefetcher(pool()) as prefetcher:
        prefetcher.read({EVERYTHING: START})
        (step,) = taken(prefetcher, 1)
        assert isinstance(step, Closed)
        assert [each.target for each in step.continuations] == [LOW, HIGH]


def test_damage_is_raised_in_the_consumer_after_the_records_before_it(
    source: Any, say: Any, pool: Any
) -> None:
    bad = say.change("b")
    bad.data_change.token = ""
    source.will_say(EVERYTHING, say.change("a"), bad)
    prefetcher = Prefetcher(pool())
    prefetcher.read({EVERYTHING: START})
    assert [step.token for step in taken(prefetcher, 1)] == ["a"]
    with pytest.raises(DecodeError, match="without a token"):
        taken(prefetcher, 1)
    prefetcher.close()


def test_a_heartbeat_of_another_partition_is_refused(source: Any, say: Any, pool: Any) -> None:
    source.will_say(LOW, say.heartbeat(HIGH, "x"))
    prefetcher = Prefetcher(pool())
    prefetcher.read({LOW: Position(LOW, (), 0)})
    with pytest.raises(LineageError, match="a heartbeat of"):
        taken(prefetcher, 1)
    prefetcher.close()


def test_one_refused_partition_is_retried_with_backoff_while_the_others_are_read(
    source: Any, say: Any, pool: Any
) -> None:
    source.backoff.most = 10**6  # an answer to anybody ends the outage of all, and its pause
    for _ in range(500):
        source.will_say(HIGH, UnreachableError("this one only"))
    source.will_say(LOW, say.change("a"))
    with Prefetcher(pool()) as prefetcher:
        prefetcher.read({LOW: Position(LOW, (), 0), HIGH: Position(HIGH, (), 0)})
        assert [step.token for step in taken(prefetcher, 1)] == ["a"]
        time.sleep(0.4)
    assert 2 <= len([position for position in source.opened if position.partition == HIGH]) < 10


def test_batches_of_other_partitions_do_not_end_the_pause_of_a_refused_one(
    source: Any, say: Any, pool: Any
) -> None:
    source.backoff.most = 10**6
    for _ in range(500):
        source.will_say(HIGH, UnreachableError("this one only"))
    source.will_say(LOW, *[say.change(str(number)) for number in range(2000)])
    with Prefetcher(pool()) as prefetcher:
        prefetcher.read({LOW: Position(LOW, (), 0), HIGH: Position(HIGH, (), 0)})
        until, claimed = time.monotonic() + 0.4, 0
        while time.monotonic() < until and claimed < 2000:
            if batch := prefetcher.take(0.01):
                # One claim of each batch, so that many batches wake the waiting thread.
                batch.claimed = 1
                claimed += 1
    assert len([position for position in source.opened if position.partition == HIGH]) < 10


def test_an_unavailable_service_fails_the_read_after_the_timeout(source: Any, pool: Any) -> None:
    for _ in range(9):
        source.will_say(EVERYTHING, UnreachableError("refused"))
    prefetcher = Prefetcher(pool())
    prefetcher.read({EVERYTHING: START})
    with pytest.raises(TimeoutError, match="refused"):
        taken(prefetcher, 1)
    prefetcher.close()
    assert len(source.opened) == source.backoff.most


def test_a_parked_stream_continues_where_the_last_bundle_stopped(source: Any, say: Any, pool: Any) -> None:
    source.will_say(EVERYTHING, *[say.change(str(number)) for number in range(6)])
    kept = pool()
    with Prefetcher(kept) as prefetcher:
        prefetcher.read({EVERYTHING: START})
        assert [step.token for step in taken(prefetcher, 3)] == ["0", "1", "2"]
    with Prefetcher(kept) as prefetcher:
        prefetcher.read({EVERYTHING: Position(EVERYTHING, ((EVERYTHING, "2"),), None)})
        assert [step.token for step in taken(prefetcher, 3)] == ["3", "4", "5"]
    assert len(source.opened) == 1


def test_each_stream_and_each_retry_is_counted_once(
    source: Any, say: Any, pool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those of a thread that is faster than its consumer, or that runs while its stream is parked."""
    source.will_say(EVERYTHING, say.change("a"), UnreachableError("reset"))
    source.will_say(EVERYTHING, say.change("b"))
    kept = pool()
    resume = kept.resume

    def resume_late(*asked: Any) -> Any:
        reader = resume(*asked)
        wait_until(lambda: reader.queued >= 2)
        return reader

    monkeypatch.setattr(kept, "resume", resume_late)
    with Prefetcher(kept) as first:
        first.read({EVERYTHING: START})
        taken(first, 1)
        counted = [first.uncounted()]
    monkeypatch.undo()
    with Prefetcher(kept) as second:
        second.read({EVERYTHING: Position(EVERYTHING, ((EVERYTHING, "a"),), None)})
        taken(second, 1)
        counted.append(second.uncounted())
    assert [each[:2] for each in counted] == [(2, 1), (0, 0)]
    assert counted[0].received_bytes > 0


def test_a_position_other_than_that_of_the_parked_stream_opens_a_new_stream(
    source: Any, say: Any, pool: Any
) -> None:
    source.will_say(LOW, say.change("a"))
    source.will_say(HIGH, say.change("b"), say.change("c"))
    source.will_say(HIGH, say.change("c"))
    kept = pool()
    low, high = Position(LOW, (), 0), Position(HIGH, (), 0)
    with Prefetcher(kept) as prefetcher:
        prefetcher.read({LOW: low, HIGH: high})
        taken(prefetcher, 3)
    with Prefetcher(kept) as prefetcher:  # the epoch was repeated from an earlier record of one of the two
        prefetcher.read({LOW: low.moved("a", 5), HIGH: high.moved("b", 5)})
        assert [step.token for step in taken(prefetcher, 1, timeout=120)] == ["c"]
    assert [position.partition for position in source.opened].count(LOW) == 1
    assert [position.partition for position in source.opened].count(HIGH) == 2


def test_an_error_in_the_bundle_cancels_its_streams_and_ends_its_threads(
    source: Any, say: Any, pool: Any
) -> None:
    source.will_say(EVERYTHING, say.change("a"))

    def fail() -> None:
        with Prefetcher(pool()) as prefetcher:
            prefetcher.read({EVERYTHING: START})
            taken(prefetcher, 1)
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fail()
    assert names() == []
    assert source.calls[0].cancelled.is_set()


def test_a_parked_stream_that_no_bundle_asks_for_is_cancelled(source: Any, say: Any, pool: Any) -> None:
    with Prefetcher(pool(idle_stream_seconds=0.05)) as prefetcher:
        prefetcher.read({EVERYTHING: START})
        assert prefetcher.take(0.01) is None
    wait_until(lambda: not names(), names)


def test_a_bundle_of_another_part_cancels_parked_streams(source: Any, say: Any, pool: Any) -> None:
    """Another worker reads that part now; two readers would receive all changes twice."""
    source.will_say(LOW, say.change("a"))
    kept = pool()
    with Prefetcher(kept) as prefetcher:
        prefetcher.read({LOW: Position(LOW, (), 0)})
        taken(prefetcher, 1)
    assert not source.calls[0].cancelled.is_set()
    with Prefetcher(kept) as prefetcher:
        prefetcher.read({HIGH: Position(HIGH, (), 0)})
        assert source.calls[0].cancelled.is_set()


def test_the_partition_with_the_lowest_position_is_read_first(source: Any, say: Any, pool: Any) -> None:
    source.will_say(LOW, say.change("low"))
    source.will_say(HIGH, say.change("high"))
    with Prefetcher(pool()) as prefetcher:
        prefetcher.read({LOW: Position(LOW, (), 9, watermark=9), HIGH: Position(HIGH, (), 3, watermark=3)})
        time.sleep(0.1)
        batch = prefetcher.take(1)
        assert batch is not None
        assert batch.partition == HIGH


def test_several_partitions_with_few_records_share_one_wait(
    source: Any, say: Any, pool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    sleep = time.sleep
    monkeypatch.setattr(
        "penstock.io.change_streams.partition_prefetch.time.sleep",
        lambda seconds: (waited.append(seconds), sleep(0.05)),
    )
    ready = {}
    for number in range(5):
        partition = KeyRange(b"%d" % number, b"%d" % (number + 1))
        source.will_say(partition, say.change("a"), say.change("b"))
        ready[partition] = Position(partition, (), 0)
    with Prefetcher(pool()) as prefetcher:
        prefetcher.read(ready)
        assert len(taken(prefetcher, 10)) == 10
    assert waited.count(Prefetcher.gather_seconds) == 1  # other threads of the process sleep too


def test_a_partition_that_is_no_longer_ready_is_cancelled(source: Any, pool: Any) -> None:
    with Prefetcher(pool()) as prefetcher:
        prefetcher.read({LOW: Position(LOW, (), 0), HIGH: Position(HIGH, (), 0)})
        assert prefetcher.take(0.05) is None
        prefetcher.read({LOW: Position(LOW, (), 0)})
        by_partition = {o.partition: c for o, c in zip(source.opened, source.calls, strict=True)}
        assert by_partition[HIGH].cancelled.is_set()
        assert not by_partition[LOW].cancelled.is_set()


def test_more_partitions_than_streams_take_turns(
    source: Any, say: Any, pool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Prefetcher, "turn_seconds", 0.02)
    for partition in (LOW, HIGH):
        source.will_say(partition, say.change("x"))
    with Prefetcher(pool(max_concurrent_partitions=1)) as prefetcher:
        ready = {LOW: Position(LOW, (), 0), HIGH: Position(HIGH, (), 0)}
        seen = set()
        until = time.monotonic() + PATIENCE_SECONDS
        while len(seen) < 2:
            assert time.monotonic() < until
            prefetcher.read(ready)
            batch = prefetcher.take(0.05)
            if batch is not None:
                batch.claimed = len(batch.steps)
                seen.add(batch.partition)
                ready[batch.partition] = ready[batch.partition].moved("x", 5)


def test_prefetched_data_stays_within_the_budget(source: Any, say: Any, pool: Any) -> None:
    message = say.change("t")
    message.data_change.chunks[0].mutation.set_cell.value = b"x" * 1000
    source.will_say(EVERYTHING, *[message] * 50)
    bounded = pool(buffer_bytes=5000)
    with Prefetcher(bounded) as prefetcher:
        prefetcher.read({EVERYTHING: START})
        wait_until(lambda: bounded.ahead.queued_bytes >= 4000)
        time.sleep(0.05)
        assert 4000 <= bounded.ahead.queued_bytes <= 5000
        assert len(taken(prefetcher, 50)) == 50
    assert bounded.ahead.queued_bytes == 0


def test_unclaimed_steps_are_delivered_again(source: Any, say: Any, pool: Any) -> None:
    source.will_say(EVERYTHING, *[say.change(str(number)) for number in range(4)])
    with Prefetcher(pool()) as prefetcher:
        prefetcher.read({EVERYTHING: START})
        assert [step.token for step in taken(prefetcher, 1)] == ["0"]
        time.sleep(0.05)
        batch = prefetcher.take(1)
        assert isinstance(batch, StreamBatch)
        batch.claimed = 1
        assert [step.token for step in taken(prefetcher, 2)] == ["2", "3"]
