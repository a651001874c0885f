"""The reader on the real emulator, with partitions that live one to two seconds."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock.io.spanner import DataChangeRecord
from tests.integration.spanner.conftest import GOOGLESQL, POSTGRESQL
from tests.support.epochs import Epochs
from tests.support.waiting import wait_until

pytestmark = pytest.mark.emulator


def replayed(records: list[DataChangeRecord]) -> dict[str, dict[int, tuple[str, int]]]:
    """Apply the records in the order given and return the tables that result."""
    tables: dict[str, dict[int, tuple[str, int]]] = {"Accounts": {}, "Orders": {}}
    for record in records:
        table = tables[record.table_name]
        for keys, new, _ in record.mods:
            key = int(json.loads(keys)["Id"])
            if record.mod_type == "DELETE":
                del table[key]
            else:
                before = table.get(key, (None, None))
                values = json.loads(new)
                table[key] = values.get("Value", before[0]), int(values.get("Version", before[1]))
    return tables


def identities(records: list[DataChangeRecord]) -> list[tuple[int, str, str]]:
    return [(r.commit_timestamp, r.server_transaction_id, r.record_sequence) for r in records]


def assert_order_of_each_key(records: list[DataChangeRecord]) -> None:
    last: dict[tuple[str, str], int] = {}
    for record in records:
        for mod in record.mods:
            key = record.table_name, mod.keys
            assert last.get(key, 0) < record.commit_timestamp, f"{record.table_name} out of order"
            last[key] = record.commit_timestamp


@pytest.mark.long(seconds=5)
@pytest.mark.parametrize("parts", [pytest.param(1, marks=pytest.mark.campaign), 3])
def test_a_read_without_an_end_continues_a_bounded_one_under_churn(
    database: Any, writers: Callable[..., Any], epochs: Callable[..., Any], parts: int
) -> None:
    start = time.time_ns()
    end = start + 3_000_000_000
    first = epochs(database.reading(start=start, end=end), parts)
    with writers(database):
        while time.time_ns() < end + 2_000_000_000:
            if first.residuals:
                first.run(0.1)
    endless = database.reading(start=start)
    first.fn = endless.bounded_fn(endless._settings)
    following = first.fn.read_on(first.stream)
    first.run_to_the_end()
    second = Epochs(endless, parts, stream=following)
    second.run_until(last := time.time_ns())
    undisturbed = epochs(database.reading(start=start, end=last)).run_to_the_end()
    read = [*first.committed, *second.committed]
    assert sorted(identities(read)) == sorted(identities(undisturbed))
    assert_order_of_each_key(read)
    assert first.committed
    assert second.committed


@pytest.mark.long(seconds=20)
@pytest.mark.slow(seconds=20)
@pytest.mark.parametrize(
    ("parts", "dialect"),
    [
        pytest.param(1, GOOGLESQL, marks=pytest.mark.campaign),
        pytest.param(3, GOOGLESQL, marks=pytest.mark.campaign),
        (3, POSTGRESQL),
    ],
)
def test_replay_equals_the_tables_through_churn_and_crashes(
    emulator: Any,
    new_database: Callable[..., Any],
    writers: Callable[..., Any],
    epochs: Callable[..., Any],
    parts: int,
    dialect: str,
    campaign: Any,
) -> None:
    """Each round has a new database: for every query the emulator scans everything that the database holds."""
    rng = campaign.random(f"spanner churn {parts} {dialect}")
    records = crashes = transactions = 0
    for _ in range(campaign.size(1, 12)):
        database = new_database(emulator, dialect=dialect)
        driver = epochs(database.reading(), parts)
        with writers(database) as running:
            until = time.monotonic() + 12
            while time.monotonic() < until:
                driver.run(rng.choice((0.05, 0.3, 0.5)), crash=rng.random() < 0.2)
        driver.run_until(time.time_ns() + 50_000_000)
        assert_nothing_is_wrong(driver, database, running.commits)
        assert driver.widest >= min(parts, 2)
        records, crashes = records + len(driver.committed), crashes + driver.crashes
        transactions += len(running.commits)
    name = f"spanner-churn-{parts}{'-postgresql' if dialect == POSTGRESQL else ''}"
    campaign.record(name, records=records, transactions=transactions, crashes=crashes)
    wait_until(lambda: not reader_threads(), lambda: f"the read has ended, but {reader_threads()} still run")


def reader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if "spanner-reader" in thread.name]


def assert_nothing_is_wrong(driver: Any, database: Any, commits: list[int]) -> None:
    records = driver.committed
    assert len(set(identities(records))) == len(records), "a record came twice"
    assert_order_of_each_key(records)
    assert replayed(records) == {table: database.rows(table) for table in ("Accounts", "Orders")}
    assert len(commits) > 100
    assert set(commits) <= {record.commit_timestamp for record in records}, "a transaction was lost"
    assert sorted(driver.seconds_to_stop)[len(driver.seconds_to_stop) // 2] < 0.5, "a cut waits for windows"
