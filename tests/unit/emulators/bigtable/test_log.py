"""The log, its clock, and the locks that give it its order."""

from __future__ import annotations

import asyncio

import pytest

from penstock_emulators.bigtable.locks import EVERY_ROW, RowLocks, stripes_of
from penstock_emulators.bigtable.log import CommitClock, Log, Record


class Time:
    def __init__(self, now_us: int) -> None:
        self.now_us = now_us

    def __call__(self) -> int:
        return self.now_us


def log_of(*commits: int) -> Log:
    log = Log()
    log.extend(Record(b"", commit_us, ()) for commit_us in commits)
    return log


def test_commit_timestamps_increase_even_if_the_machines_clock_goes_back() -> None:
    time = Time(1000)
    clock = CommitClock(time)
    first = clock.take(1, 0)
    time.now_us = 500
    assert [first, clock.take(2, 0), clock.take(1, 0)] == [1000, 1001, 1003]


def test_a_commit_timestamp_is_not_before_its_write_began() -> None:
    clock = CommitClock(Time(1000))
    assert clock.take(500, 400) == 501
    clock = CommitClock(Time(1000))
    assert clock.take(500, 900) == 900


def test_later_commits_are_above_every_earlier_watermark() -> None:
    clock = CommitClock(Time(1000))
    watermark_us = clock.watermark_us()
    assert clock.take(10, 0) > watermark_us


def test_a_position_by_time_is_inclusive() -> None:
    log = log_of(10, 20, 30)
    assert [log.sequence_at(us) for us in (0, 10, 11, 30, 31)] == [0, 0, 1, 2, 3]


def test_a_position_by_time_is_before_every_record_that_is_not_older() -> None:
    log = log_of(10, 20)
    log.inject(Record(b"", 90, ()))
    log.inject(Record(b"", 15, ()))
    log.extend([Record(b"", 30, ())])
    assert log.sequence_at(25) == 2


def test_sequence_numbers_outlive_forgotten_records() -> None:
    log = log_of(10, 20, 30)
    assert log.forget(30) == 2
    assert (log.first, log.end) == (2, 3)
    assert [record.commit_us for record in log.read(2, 9)] == [30]
    assert log.sequence_at(0) == 2


def run(*steps: str) -> list[str]:
    """Let tasks hold locks in turn: each step is a task's name, which holds the stripes in `STRIPES`."""
    held = {"a": 0b01, "b": 0b10, "ab": 0b11, "all": EVERY_ROW}
    order: list[str] = []

    async def hold(locks: RowLocks, name: str) -> None:
        async with locks.holding(held[name]):
            order.append(f"+{name}")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            order.append(f"-{name}")

    async def everything() -> None:
        locks = RowLocks()
        await asyncio.gather(*(hold(locks, name) for name in steps))
        assert locks._held == 0

    asyncio.run(everything())
    return order


def test_writes_of_one_row_take_turns_and_others_do_not_wait() -> None:
    assert run("a", "a") == ["+a", "-a", "+a", "-a"]
    assert run("a", "b") == ["+a", "+b", "-a", "-b"]


def test_a_bulk_write_is_not_overtaken_by_writes_of_its_rows() -> None:
    assert run("a", "ab", "b") == ["+a", "-a", "+ab", "-ab", "+b", "-b"]
    assert run("a", "all", "b", "a")[:4] == ["+a", "-a", "+all", "-all"]


def test_a_waiting_write_that_is_cancelled_blocks_no_other_write() -> None:
    async def scenario() -> None:
        locks = RowLocks()
        async with locks.holding(1):
            waiting = asyncio.ensure_future(locks._take(1))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        async with asyncio.timeout(1), locks.holding(EVERY_ROW):
            pass

    asyncio.run(scenario())


def test_a_write_that_is_cancelled_at_its_turn_passes_the_turn_to_the_next_write() -> None:
    async def scenario() -> None:
        locks = RowLocks()
        held = locks.holding(1)
        await held.__aenter__()
        waiting = asyncio.ensure_future(locks._take(1))
        await asyncio.sleep(0)
        await held.__aexit__(None, None, None)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        async with asyncio.timeout(1), locks.holding(1):
            pass

    asyncio.run(scenario())


def test_a_row_has_one_stripe_and_many_rows_use_many_stripes() -> None:
    assert stripes_of([b"a", b"a"]) == stripes_of([b"a"])
    assert stripes_of([b"a"]).bit_count() == 1
    assert stripes_of(b"%d" % number for number in range(100)).bit_count() > 80
