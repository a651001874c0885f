"""The reader on the real emulator, with partitions that live one to two seconds."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock.io.spanner import DataChangeRecord

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


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 3])
def test_replay_equals_the_tables_through_churn_and_crashes(
    database: Any, writers: Callable[..., Any], epochs: Callable[..., Any], parts: int, campaign: Any
) -> None:
    rng = campaign.random(f"spanner churn {parts}")
    driver, crashes = epochs(database.reading(), parts), 0
    with writers(database) as running:
        until = time.monotonic() + campaign.size(12, 120)
        while time.monotonic() < until:
            crash = rng.random() < 0.2
            driver.run(rng.choice((0.05, 0.3, 0.5)), crash=crash)
            crashes += crash
    driver.run_until(time.time_ns() + 50_000_000)

    records = driver.committed
    campaign.record(f"spanner-churn-{parts}", records=len(records), crashes=crashes)
    assert len(set(identities(records))) == len(records), "a record came twice"
    assert_order_of_each_key(records)
    assert replayed(records) == {table: database.rows(table) for table in ("Accounts", "Orders")}
    assert driver.widest >= min(parts, 2)
    assert len(running.commits) > 100
    assert set(running.commits) <= {record.commit_timestamp for record in records}, "a transaction was lost"
    assert sorted(driver.seconds_to_stop)[len(driver.seconds_to_stop) // 2] < 0.15, "a cut waits for windows"
    until = time.monotonic() + 10
    while threads := [thread for thread in threading.enumerate() if "spanner-reader" in thread.name]:
        assert time.monotonic() < until, f"nobody reads, and {threads} go on"
        time.sleep(0.1)
