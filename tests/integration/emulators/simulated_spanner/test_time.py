"""Partitions that lag, clocks that are wrong, retention that ends: with a clock that runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest
from google.cloud.spanner import KeySet

from penstock.io.spanner import PositionLostError
from penstock_emulators.simulated_spanner import SimulatedSpanner
from tests.integration.emulators.simulated_spanner.conftest import INSTANCE, PROJECT, History, ddl
from tests.integration.emulators.simulated_spanner.test_histories import (
    as_changes,
    check_whole,
    read_with_penstock,
)
from tests.support.oracle.naive_spanner_reader import Change, read_changes

pytestmark = pytest.mark.long(seconds=5)
HOUR = 3600


@pytest.fixture(scope="module")
def running() -> Iterator[SimulatedSpanner]:
    """A simulation whose clock runs; histories push it ahead of the present."""
    with SimulatedSpanner.start(partitions=2) as simulation:
        yield simulation


def history(running: SimulatedSpanner, connect: Callable[..., Any], name: str, seed: int) -> History:
    """Play a history in a new database."""
    options = "value_capture_type = 'NEW_ROW_AND_OLD_VALUES'"
    running.create_database(PROJECT, INSTANCE, name, ddl("GOOGLE_STANDARD_SQL", options))
    path = f"projects/{PROJECT}/instances/{INSTANCE}/databases/{name}"
    facts = running.control.play(path, seed, 120, churn_share=0.4)
    return History(running, name, connect(running, name), facts["start"], facts["end"], facts["commits"])


def in_order_per_key(changes: list[Change]) -> bool:
    by_key: dict[tuple[str, str], list[Change]] = {}
    for change in changes:
        by_key.setdefault((change.table, change.sides[0]), []).append(change)
    return all(first < second for each in by_key.values() for first, second in pairwise(each))


@pytest.mark.parametrize("seed", range(3))
def test_keys_stay_in_order_while_a_grandparent_of_a_merged_partition_lags(
    running: SimulatedSpanner, connect: Callable[..., Any], seed: int
) -> None:
    played = history(running, connect, f"lag-{seed}", seed)
    expected = read_changes(played.client, ["READ_Changes"], played.start, played.end)
    check_whole(expected)
    partitions = {each["token"]: each for each in running.control.partitions(played.path, "Changes")}
    merged = [each for each in partitions.values() if len(each["parents"]) == 2]
    grandparents = [
        token for each in merged for parent in each["parents"] for token in partitions[parent]["parents"]
    ]
    assert grandparents, "the history has a merge of children"
    for token in grandparents[:2]:
        running.control.add_fault(token=token, stall_seconds=0.7, code="")
    ours = as_changes(read_with_penstock(played))
    assert sorted(ours) == expected
    assert in_order_per_key(ours)


@pytest.mark.parametrize("offset", [-5 * HOUR, 400])
def test_a_service_with_a_wrong_clock_is_read_completely(connect: Callable[..., Any], offset: int) -> None:
    with SimulatedSpanner.start(partitions=2) as skewed:
        skewed.control.clock(offset_seconds=offset)
        played = history(skewed, connect, "skewed", 4)
        expected = read_changes(played.client, ["READ_Changes"], played.start, played.end)
        check_whole(expected)
        ours = as_changes(read_with_penstock(played))
        assert sorted(ours) == expected
        assert in_order_per_key(ours)


def test_reading_records_past_the_retention_period_fails(
    running: SimulatedSpanner, connect: Callable[..., Any]
) -> None:
    played = history(running, connect, "expired", 6)
    running.control.retention(played.path, "Changes", 1)
    running.control.clock(advance_seconds=5)
    with pytest.raises(PositionLostError, match="retention"):
        read_with_penstock(played)


def test_writers_retry_aborted_transactions_and_concurrent_ones_lose_no_update(
    running: SimulatedSpanner, connect: Callable[..., Any]
) -> None:
    ddl = ["CREATE TABLE Counters (Id INT64 NOT NULL, N INT64) PRIMARY KEY (Id)"]
    running.create_database(PROJECT, INSTANCE, "counters", ddl)
    database = connect(running, "counters")
    with database.batch() as batch:
        batch.insert("Counters", ("Id", "N"), [(1, 0)])
    running.control.add_fault(method="Commit", code="ABORTED", times=2)

    def add_one(transaction: Any) -> None:
        ((number,),) = transaction.read("Counters", ("N",), KeySet(keys=[[1]]))
        transaction.update("Counters", ("Id", "N"), [(1, number + 1)])

    with ThreadPoolExecutor(4) as threads:
        for _ in threads.map(lambda _: database.run_in_transaction(add_one), range(40)):
            pass
    with database.snapshot(multi_use=True) as snapshot:
        assert list(snapshot.execute_sql("SELECT N FROM Counters WHERE Id = 1")) == [[40]]
        assert list(snapshot.read("Counters", ("N",), KeySet(all_=True))) == [[40]]


def test_dml_is_recorded_and_stale_reads_see_the_past(
    running: SimulatedSpanner, connect: Callable[..., Any]
) -> None:
    ddl = [
        "CREATE TABLE T (Id INT64 NOT NULL, V STRING(MAX)) PRIMARY KEY (Id)",
        "CREATE CHANGE STREAM S FOR ALL OPTIONS (value_capture_type = 'NEW_VALUES')",
    ]
    running.create_database(PROJECT, INSTANCE, "dml", ddl)
    database = connect(running, "dml")
    start = running.control.clock()

    def run(*statements: str) -> None:
        database.run_in_transaction(lambda t: [t.execute_update(each) for each in statements])

    run("INSERT INTO T (Id, V) VALUES (1, 'a'), (2, 'b')")
    with database.snapshot() as snapshot:
        ((before,),) = snapshot.execute_sql("SELECT CURRENT_TIMESTAMP()")
    run("UPDATE T SET V = 'c' WHERE Id = 2", "DELETE FROM T WHERE Id = 1")
    with database.snapshot(read_timestamp=before) as past:
        assert list(past.execute_sql("SELECT * FROM T ORDER BY Id")) == [[1, "a"], [2, "b"]]
    changes = read_changes(database, ["READ_S"], start, running.control.clock())
    assert [(each.mod_type, each.sides[:2]) for each in changes] == [
        ("INSERT", ('{"Id": "1"}', '{"V": "a"}')),
        ("INSERT", ('{"Id": "2"}', '{"V": "b"}')),
        ("UPDATE", ('{"Id": "2"}', '{"V": "c"}')),
        ("DELETE", ('{"Id": "1"}', "{}")),
    ]
