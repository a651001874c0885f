"""Change stream queries without a server: what they return, when they end, what they refuse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock_emulators.simulated_spanner.change_query import open_query
from penstock_emulators.simulated_spanner.database import Database
from penstock_emulators.simulated_spanner.errors import ServiceError
from penstock_emulators.simulated_spanner.record import (
    Children,
    DataChange,
    Heartbeat,
    PartitionEnd,
    PartitionEvent,
    Record,
)
from penstock_emulators.simulated_spanner.schema import IMMUTABLE, MUTABLE
from tests.unit.emulators.simulated_spanner.conftest import (
    SECOND,
    START,
    answer,
    database,
    drain,
    follow,
    query,
    write,
)

Played = Callable[..., tuple[Database, int]]
modes = pytest.mark.parametrize("mode", [IMMUTABLE, MUTABLE])
seeds = given(seed=st.integers(0, 1 << 32), coarse=st.booleans())
with_fixture = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)


def data(records: list[Record]) -> list[DataChange]:
    return [each for each in records if isinstance(each, DataChange)]


def logged(made: Database) -> list[tuple[int, str, int]]:
    """Return (timestamp, transaction, sequence) of every data record that is in a log."""
    return sorted(
        (record.timestamp, record.transaction, record.sequence)
        for ranges in made.streams["S"].functions.values()
        for partition in ranges.partitions.values()
        for record in partition.records
        if isinstance(record, DataChange)
    )


@pytest.mark.slow
@modes
@seeds
@with_fixture
def test_queries_over_all_tokens_return_each_record_exactly_once(
    played: Played, mode: str, seed: int, coarse: bool
) -> None:
    made, end = played(seed, mode, granularity_us=500_000 if coarse else 1)
    found = follow(made, made.streams["S"].created, end)
    read = sorted(
        (r.timestamp, r.transaction, r.sequence) for records in found.values() for r in data(records)
    )
    assert read == logged(made)


@pytest.mark.slow
@modes
@seeds
@with_fixture
def test_a_reader_that_starts_in_the_middle_misses_nothing_after_its_start(
    played: Played, mode: str, seed: int, coarse: bool
) -> None:
    made, end = played(seed, mode, granularity_us=500_000 if coarse else 1)
    every = logged(made)
    if not every:
        return
    start = every[len(every) // 2][0]
    found = follow(made, start, end)
    read = sorted(
        (r.timestamp, r.transaction, r.sequence) for records in found.values() for r in data(records)
    )
    assert read == [each for each in every if each[0] >= start]


@pytest.mark.slow
@modes
@seeds
@with_fixture
def test_changes_of_a_key_are_in_order_across_the_partitions_that_own_it(
    played: Played, mode: str, seed: int, coarse: bool
) -> None:
    """In one partition records are in order; a key's earlier changes are in ancestors or move sources."""
    made, end = played(seed, mode, granularity_us=500_000 if coarse else 1)
    found = follow(made, made.streams["S"].created, end)
    sources: dict[str, list[tuple[str, int]]] = {}
    for token, records in found.items():
        places = [(r.timestamp, r.sequence) for r in records if not isinstance(r, Heartbeat)]
        assert places == sorted(set(places))
        for record in records:
            if isinstance(record, Children):
                for child, _ in record.children:
                    sources.setdefault(child, []).append((token, record.timestamp))
            if isinstance(record, PartitionEvent):
                sources.setdefault(token, []).extend((source, record.timestamp) for source in record.sources)
    latest: dict[Any, tuple[int, int, str]] = {}
    ordered = sorted(
        ((r.timestamp, r.sequence, token, r) for token, records in found.items() for r in data(records)),
        key=lambda each: each[:2],
    )
    for timestamp, sequence, token, record in ordered:
        for mod in record.mods:
            key = tuple(mod.keys.items())
            before = latest.get(key)
            if before is not None and before[2] != token:
                assert leads(sources, before[2], token, before[0], timestamp)
            latest[key] = (timestamp, sequence, token)


def leads(sources: dict[str, list[tuple[str, int]]], old: str, new: str, since: int, until: int) -> bool:
    """Return whether keys can have come from one partition to another between two moments."""
    todo, seen = [new], {new}
    while todo:
        for source, at in sources.get(todo.pop(), ()):
            if since <= at <= until and source not in seen:
                seen.add(source)
                todo.append(source)
    return old in seen


@pytest.mark.slow
@modes
@seeds
@with_fixture
def test_a_query_resumed_after_any_record_returns_the_rest(
    played: Played, mode: str, seed: int, coarse: bool
) -> None:
    made, end = played(seed, mode, granularity_us=500_000 if coarse else 1)
    for token, partition in next(iter(made.streams["S"].functions.values())).partitions.items():
        asked = query(
            made, token, partition.start, end if mode == IMMUTABLE else min(end, partition.start + SECOND)
        )
        whole = drain(open_query(made, asked, end), end)
        for index, place in enumerate(partition.places[: len(whole)]):
            running = open_query(made, asked, end, place)
            rest = [r for r in drain(running, end) if not isinstance(r, Heartbeat)]
            expected = [r for r in whole[index + 1 :] if not isinstance(r, Heartbeat)]
            assert rest == expected


@modes
def test_an_ended_partition_is_read_to_its_last_record_and_not_beyond(mode: str) -> None:
    made = database(f"partition_mode = '{mode}'", partitions=2)
    ranges = made.streams["S"].functions[""]
    first, second = ranges.live()
    moment, _ = made.change_ranges(ranges, "merge", (second, first), START + SECOND)
    last = answer(made, first, made.streams["S"].created, moment)
    assert isinstance(last[-1], Children if mode == IMMUTABLE else PartitionEnd)
    before = answer(made, first, made.streams["S"].created, moment - 1000)
    assert [type(each) for each in before] == [Heartbeat]
    assert answer(made, first, moment, moment) == last
    with pytest.raises(ServiceError, match="start_timestamp is invalid for the partition") as error:
        answer(made, first, moment + 1, moment + SECOND)
    assert error.value.code == "OUT_OF_RANGE"


@modes
def test_a_query_without_a_token_gives_the_children_at_the_moment_of_a_change(mode: str) -> None:
    made = database(f"partition_mode = '{mode}'", partitions=2)
    ranges = made.streams["S"].functions[""]
    moment, _ = made.change_ranges(ranges, "merge", tuple(ranges.live()), START + SECOND)
    found = [
        token
        for record in answer(made, None, moment, moment)
        for token in ranges.live()
        if token in str(record)
    ]
    assert found == ranges.live()


def test_start_and_end_are_inclusive() -> None:
    made = database(partitions=1)
    moments = [made.commit([write("insert", Id=str(n))], START + n * SECOND).timestamp for n in range(1, 4)]
    (token,) = made.streams["S"].functions[""].live()
    assert [r.timestamp for r in answer(made, token, moments[0], moments[1])] == moments[:2]
    assert [r.timestamp for r in answer(made, token, moments[1], moments[1])] == moments[1:2]


def test_a_query_stays_open_until_its_end_and_sends_new_commits() -> None:
    made = database(partitions=1)
    (token,) = made.streams["S"].functions[""].live()
    running = open_query(made, query(made, token, START + SECOND, START + 3 * SECOND), START + SECOND)
    assert running.poll(START + SECOND) == []
    assert running.wake == START + 2 * SECOND, "the next heartbeat"
    committed = made.commit([write("insert", Id="1")], START + 2 * SECOND)
    assert [row[0].timestamp for row in running.poll(START + 2 * SECOND)] == [committed.timestamp]
    assert not running.done
    assert running.poll(START + 3 * SECOND) == [], "no heartbeat at the end if something was sent"
    assert running.done


def test_heartbeats_arrive_on_time_and_every_later_commit_timestamp_is_above_them() -> None:
    made = database(partitions=1)
    (token,) = made.streams["S"].functions[""].live()
    running = open_query(made, query(made, token, START + SECOND, None), START + SECOND)
    running.poll(START + SECOND)
    now = START + 2 * SECOND
    assert [row[0] for row in running.poll(now)] == [Heartbeat(now)]
    assert running.poll(now) == []
    assert made.commit([write("insert", Id="1")], now).timestamp > now
    assert not running.done


def test_an_endless_query_ends_with_its_partition() -> None:
    made = database(partitions=1)
    ranges = made.streams["S"].functions[""]
    (token,) = ranges.live()
    running = open_query(made, query(made, token, START + SECOND, None), START + SECOND)
    running.poll(START + SECOND)
    moment, _ = made.change_ranges(ranges, "split", (token,), START + 2 * SECOND)
    (row,) = running.poll(moment)
    assert isinstance(row[0], Children)
    assert len(row[0].children) == 2
    assert running.done


@pytest.mark.parametrize(
    ("start", "now", "message"),
    [
        (START - 1, START + SECOND, "too far in the past"),
        (START + SECOND, START + 25 * 3600 * SECOND, "too far in the past"),
        (START + 602 * SECOND, START + SECOND, "too far in the future"),
    ],
)
def test_start_times_outside_the_readable_range_are_out_of_range(start: int, now: int, message: str) -> None:
    made = database()
    with pytest.raises(ServiceError, match=message) as error:
        open_query(made, query(made, None, start, None), now)
    assert error.value.code == "OUT_OF_RANGE"


def test_a_query_that_falls_behind_the_retention_fails() -> None:
    made = database(partitions=1)
    (token,) = made.streams["S"].functions[""].live()
    running = open_query(made, query(made, token, START + SECOND, None), START + SECOND)
    running.poll(START + SECOND)
    with pytest.raises(ServiceError, match="too far in the past"):
        running.poll(START + 25 * 3600 * SECOND)


def test_a_start_in_the_near_future_is_waited_for() -> None:
    made = database()
    running = open_query(made, query(made, None, START + 5 * SECOND, None), START + SECOND)
    assert running.poll(START + SECOND) == []
    assert running.wake == START + 5 * SECOND
    assert len(running.poll(START + 5 * SECOND)) == 2
    assert running.done


@pytest.mark.parametrize(("minutes", "allowed"), [(None, False), (30, True), (31, False)])
def test_a_query_of_a_mutable_stream_covers_at_most_thirty_minutes(
    minutes: int | None, allowed: bool
) -> None:
    made = database("partition_mode = 'MUTABLE_KEY_RANGE'")
    now = START + SECOND
    asked = query(made, None, now, None if minutes is None else now + minutes * 60 * SECOND)
    if allowed:
        open_query(made, asked, now)
    else:
        with pytest.raises(ServiceError, match="end_timestamp"):
            open_query(made, asked, now)


def test_a_dropped_stream_ends_its_queries() -> None:
    made = database(partitions=1)
    (token,) = made.streams["S"].functions[""].live()
    running = open_query(made, query(made, token, START + SECOND, None), START + SECOND)
    running.poll(START + SECOND)
    made.apply_ddl(["DROP CHANGE STREAM S"], START + 2 * SECOND)
    with pytest.raises(ServiceError, match="Change Stream not found: S"):
        running.poll(START + 2 * SECOND)


def test_all_records_of_a_transaction_have_the_same_record_count() -> None:
    made = database(partitions=4)
    for number in range(40):
        rows = [write("insert_or_update", Id=str(n), V=str(number)) for n in range(number % 7 + 1)]
        made.commit(rows, START + number * SECOND)
    records = [
        r for records in follow(made, made.streams["S"].created, made.last).values() for r in data(records)
    ]
    counted = Counter(r.transaction for r in records)
    partitions = Counter(r.transaction for r in records if r.is_last)
    for record in records:
        assert record.records_in_transaction == counted[record.transaction]
        assert record.partitions_in_transaction == partitions[record.transaction]
    for transaction in counted:
        sequences = [r.sequence for r in records if r.transaction == transaction]
        assert sorted(sequences) == list(range(len(sequences)))
