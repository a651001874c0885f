"""Ranges are read ahead by threads: every row once, within the budget, through retries and bundles."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from penstock.errors import DecodeError, PositionLostError, SetupError, UnavailableError
from penstock.io.change_streams.backoff import Backoff
from penstock.io.change_streams.range_frontier import RangeAdvanced
from penstock.io.change_streams.settings import Limits
from penstock.io.change_streams.status import UnreachableError
from penstock.io.spanner.initial_scan.errors import ExpiredError, classify_read
from penstock.io.spanner.initial_scan.frontier import KeyRange, ScanFrontier, Table
from penstock.io.spanner.initial_scan.pool import ScanPool, ScanPrefetcher
from penstock.io.spanner.initial_scan.stream import Opener, RangePosition
from tests.support.waiting import PATIENCE_SECONDS, wait_until
from tests.unit.spanner.initial_scan.test_rows import INT64, message

TABLE = Table("T", ("K",), (1,), 1)
BATCH = 3
"""Rows in a message."""


class Table3:
    """A table with the keys 0 to `size`, as the service reads it; `failures` are raised after a message each."""

    def __init__(self, size: int = 30, *, tokens: bool = False, backwards: bool = False) -> None:
        self.keys = list(range(size))
        self.tokens = tokens
        self.backwards = backwards
        self.failures: list[Exception] = []
        self.requests: list[tuple[KeyRange, bytes]] = []
        self.running: list[FakeRead] = []
        self.gate = threading.Event()
        self.gate.set()

    def openers(self, at: RangePosition) -> Iterator[Opener]:
        def start(resume_token: bytes) -> FakeRead:
            self.requests.append((at.range, resume_token))
            read = FakeRead(self, self.of(at.range), int(resume_token or b"0"))
            self.running.append(read)
            return read

        yield start

    def of(self, each: KeyRange) -> list[int]:
        low = int(json.loads(each.start)[0]) + each.start_open if each.start else 0
        high = int(json.loads(each.end)[0]) if each.end else len(self.keys)
        found = self.keys[low:high]
        return found[::-1] if self.backwards else found


class FakeRead:
    def __init__(self, table: Table3, keys: list[int], done: int) -> None:
        self.table, self.keys, self.done = table, keys, done
        self.cancelled = threading.Event()

    def __iter__(self) -> Iterator[bytes]:
        yield message([("K", INT64)]).SerializeToString()
        for start in range(self.done, len(self.keys), BATCH):
            self.table.gate.wait(10)
            if self.cancelled.is_set():
                raise UnreachableError("CANCELLED")
            token = str(start + BATCH).encode() if self.table.tokens else b""
            some = tuple(str(key) for key in self.keys[start : start + BATCH])
            yield message(values=some, resume_token=token).SerializeToString()
            if self.table.failures:
                raise self.table.failures.pop(0)

    def cancel(self) -> None:
        self.cancelled.set()
        self.table.gate.set()


LOW, HIGH = KeyRange(0, "", '["12"]'), KeyRange(0, '["12"]', "")


def frontier(**ranges: KeyRange) -> ScanFrontier:
    given = ranges or {"r0": LOW, "r1": HIGH}
    return ScanFrontier(5, (TABLE,), {int(name[1:]): each for name, each in given.items()})


@pytest.fixture
def pool(request: pytest.FixtureRequest) -> Callable[..., ScanPool]:
    def made(table: Table3, *, whole_ranges: bool = False, **limits: Any) -> ScanPool:
        given = {"unavailable_seconds": 5.0, "buffer_bytes": 1 << 20, "idle_stream_seconds": 60.0, **limits}
        backoff = Backoff("Spanner", UnavailableError, draw=lambda low, high: 0.0)
        options = Limits(max_concurrent_partitions=32, **given)
        pool = ScanPool(table.openers, backoff, options, lambda: 0, whole_ranges=whole_ranges)
        request.addfinalizer(pool.clear)
        return pool

    return made


@pytest.fixture
def make(pool: Callable[..., ScanPool], request: pytest.FixtureRequest) -> Callable[..., ScanPrefetcher]:
    def made(table: Table3, **options: Any) -> ScanPrefetcher:
        prefetcher = ScanPrefetcher(pool(table, **options))
        request.addfinalizer(prefetcher.close)
        return prefetcher

    return made


def claimed(prefetcher: ScanPrefetcher, at: ScanFrontier, most: int = 1000) -> tuple[list[int], ScanFrontier]:
    """Claim at most so many batches; return the keys, and the frontier after them."""
    keys: list[int] = []
    prefetcher.serve(at)
    while not at.done and most:
        batch = prefetcher.take(PATIENCE_SECONDS)
        assert batch is not None, "no batch comes"
        for count, records, step in batch.claims():
            keys += [int(json.loads(mod.keys)["K"]) for record in records for mod in record.mods]
            at = (
                at.advanced({step.number: step.progress})
                if isinstance(step, RangeAdvanced)
                else at.apply(step)
            )
            batch.claimed += count
        most -= 1
    return keys, at


def test_all_rows_of_all_ranges_come_once(make: Any) -> None:
    table = Table3()
    prefetcher = make(table)
    keys, after = claimed(prefetcher, frontier())
    assert sorted(keys) == table.keys
    assert after.done
    assert prefetcher.uncounted()[:2] == (2, 0)
    assert prefetcher.take(0) is None
    assert not prefetcher.data_expected


def test_an_interrupted_range_is_read_again_after_its_last_row(make: Any) -> None:
    table = Table3()
    table.failures = [UnreachableError("UNAVAILABLE"), ExpiredError("Session not found")]
    prefetcher = make(table)
    keys, _ = claimed(prefetcher, frontier(r0=KeyRange(0)))
    assert keys == table.keys
    assert [each.start for each, _ in table.requests] == ["", '["2"]', '["5"]']
    assert prefetcher.uncounted()[:2] == (3, 2)


def test_a_read_continues_at_its_resume_token(make: Any) -> None:
    table = Table3(tokens=True)
    table.failures = [UnreachableError("UNAVAILABLE")]
    keys, _ = claimed(make(table), frontier(r0=KeyRange(0)))
    assert keys == table.keys
    assert [token for _, token in table.requests] == [b"", b"3"]


def test_an_outage_that_lasts_too_long_is_raised(make: Any) -> None:
    table = Table3()
    table.failures = [UnreachableError("UNAVAILABLE")] * 100
    with pytest.raises(UnavailableError, match="unavailable_seconds"):
        claimed(make(table, unavailable_seconds=0.0), frontier())


def test_an_error_of_a_thread_reaches_the_consumer(make: Any) -> None:
    table = Table3()
    table.failures = [DecodeError("damaged")]
    with pytest.raises(DecodeError, match="damaged"):
        claimed(make(table), frontier())


def test_a_batch_that_was_not_claimed_comes_again(make: Any) -> None:
    prefetcher = make(Table3())
    prefetcher.serve(frontier())
    first = prefetcher.take(5)
    again = prefetcher.take(5)
    assert first.steps == again.steps
    keys, _ = claimed(prefetcher, frontier())
    assert sorted(keys) == list(range(30))


def test_read_ahead_stops_at_the_budget_but_each_range_has_a_message(make: Any) -> None:
    table = Table3(300)
    prefetcher = make(table, buffer_bytes=40)
    prefetcher.serve(frontier())
    wait_until(lambda: all(each.queued for each in prefetcher.running.values()), "a range has no message")
    assert prefetcher.pool.ahead.queued_bytes <= 40 + 2 * 40
    keys, _ = claimed(prefetcher, frontier())
    assert sorted(keys) == table.keys


def bundle(pool: ScanPool, at: ScanFrontier, most: int = 1000) -> tuple[list[int], ScanFrontier]:
    with pool.prefetching(at) as prefetcher:
        return claimed(prefetcher, at, most)


def test_the_next_bundle_continues_what_was_read_ahead(pool: Any) -> None:
    table = Table3()
    kept = pool(table)
    first, after = bundle(kept, frontier(), most=3)
    second, _ = bundle(kept, after)
    assert sorted(first + second) == table.keys
    assert len(table.requests) == 2, "a range was asked for twice"


def test_a_parked_range_continues_only_at_its_claimed_key(pool: Any) -> None:
    table = Table3()
    kept = pool(table)
    bundle(kept, frontier(), most=3)
    # The epoch of these claims was lost: the next bundle begins where it did.
    keys, _ = bundle(kept, frontier())
    assert sorted(keys) == table.keys


def test_a_range_of_another_snapshot_is_not_continued(pool: Any) -> None:
    table = Table3()
    kept = pool(table)
    _, after = bundle(kept, frontier(), most=3)
    bundle(kept, replace(after, timestamp=6))
    assert len(table.requests) == 4


def test_unordered_ranges_are_handed_out_one_after_another(make: Any) -> None:
    table = Table3(backwards=True)
    prefetcher = make(table, whole_ranges=True)
    prefetcher.serve(frontier())
    numbers = []
    for _ in range(12):
        batch = prefetcher.take(5)
        if batch is None:
            break
        numbers.append(batch.partition)
        batch.claimed = 1
    switches = sum(a != b for a, b in pairwise(numbers))
    assert switches == 1
    prefetcher.close(keep=True)
    assert not prefetcher.pool._parked, "part of a range may have been emitted"


def test_an_unordered_range_that_breaks_off_without_a_token_fails_the_bundle(make: Any) -> None:
    table = Table3(backwards=True)
    table.failures = [UnreachableError("UNAVAILABLE")]
    with pytest.raises(UnavailableError, match="middle of a key range"):
        claimed(make(table, whole_ranges=True), frontier(r0=KeyRange(0)))


def test_close_cancels_reads_that_wait(make: Any) -> None:
    table = Table3()
    table.gate.clear()
    prefetcher = make(table)
    prefetcher.serve(frontier())
    wait_until(lambda: len(table.running) == 2, "the reads do not start")
    prefetcher.close()
    assert all(read.cancelled.is_set() for read in table.running)


def test_pool_refuses_a_snapshot_whose_changes_are_gone(pool: Any) -> None:
    lost = ScanFrontier(5, (TABLE,), {0: KeyRange(0)}, object(), readable_until=-1)
    with pytest.raises(PositionLostError, match="retention_period"), pool(Table3()).prefetching(lost):
        pass


@pytest.mark.parametrize(
    ("code", "details", "kind", "text"),
    [
        (
            "FAILED_PRECONDITION",
            "… has exceeded the maximum timestamp staleness",
            PositionLostError,
            "retention",
        ),
        ("PERMISSION_DENIED", "missing spanner.databases.useDataBoost", Exception, "useDataBoost"),
        ("PERMISSION_DENIED", "Role r may not", SetupError, "SELECT on the tables"),
        ("NOT_FOUND", "Table not found: T", Exception, "does not exist at this time"),
        ("INVALID_ARGUMENT", "Invalid partition token.", ExpiredError, "token"),
        ("NOT_FOUND", "Transaction not found: 7", ExpiredError, "Transaction"),
    ],
)
def test_each_status_of_a_read_has_its_remedy(code: str, details: str, kind: type, text: str) -> None:
    found = classify_read(code, details, "table T")
    assert isinstance(found, kind)
    assert text in str(found)
