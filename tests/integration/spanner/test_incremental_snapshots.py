"""Incremental snapshots beside a change stream, on the simulated service and on Google's emulator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.io.change_streams.incremental import new_tables
from penstock.io.change_streams.incremental.notifications import NotificationRecord
from penstock.io.change_streams.incremental.signal_folder import write_signal
from penstock.io.spanner import DataChangeRecord
from tests.integration.spanner.conftest import DDL, nanoseconds_of, on_both_services
from tests.integration.spanner.test_snapshot import insert
from tests.support.epochs import Epochs
from tests.support.waiting import wait_until

pytestmark = on_both_services


def request(folder: Path, id_: str, type_: str = "execute-snapshot", **data: Any) -> None:
    write_signal(
        folder, id_, type_, {name.replace("_", "-"): value for name, value in data.items()}, int(id_)
    )


def reading(database: Any, folder: Path, **options: Any) -> Any:
    transform = database.reading(signal_folder=str(folder), **{"chunk_rows": 7, **options})
    return transform.with_notifications(lambda reports: reports)


def reports(driver: Epochs) -> list[str]:
    return [each.document["type"] for each in driver.committed if isinstance(each, NotificationRecord)]


def run_until_completed(driver: Epochs, count: int = 1) -> None:
    wait_until(
        lambda: driver.run(0.1) is not None and reports(driver).count("COMPLETED") == count, "no snapshot"
    )


def records(driver: Epochs) -> list[DataChangeRecord]:
    return [each for each in driver.committed if isinstance(each, DataChangeRecord)]


def replayed(found: list[DataChangeRecord], table: str) -> dict[int, tuple[Any, Any]]:
    """Apply records in their order. Columns that a change does not send keep their values."""
    rows: dict[int, dict[str, Any]] = {}
    for record in found:
        for mod in record.mods if record.table_name == table else ():
            keys, new, _ = mod.parsed()
            key = int(keys["Id"])
            if record.mod_type == "DELETE":
                rows.pop(key, None)
            elif record.mod_type == "UPDATE":
                rows[key] = {**rows.get(key, {}), **new}
            else:
                rows[key] = new
    return {
        key: (row.get("Value"), None if row.get("Version") is None else int(row["Version"]))
        for key, row in rows.items()
    }


def assert_rows_follow_only_what_they_see(found: list[DataChangeRecord]) -> None:
    emitted: dict[tuple[str, str], int] = {}
    for record in found:
        for mod in record.mods:
            key = record.table_name, json.loads(mod.keys)["Id"]
            last = emitted.get(key, 0)
            assert last <= record.commit_timestamp, "a row or a change of a key came out of order"
            if record.mod_type != "READ":
                emitted[key] = record.commit_timestamp


@pytest.mark.long_cases("google", seconds=15)
@pytest.mark.slow
@pytest.mark.parametrize(
    "capture", ["OLD_AND_NEW_VALUES", pytest.param("NEW_ROW", marks=pytest.mark.campaign)]
)
def test_rows_that_change_while_chunks_are_read_give_the_tables(
    emulator: Any, new_database: Any, writers: Any, tmp_path: Path, capture: str
) -> None:
    ddl = [*DDL[:2], DDL[2].replace("OLD_AND_NEW_VALUES", capture)]
    database = new_database(emulator, ddl)
    for table in ("Accounts", "Orders"):
        insert(database, table, {key: f"first {key}" for key in range(21)})
    driver = Epochs(reading(database, tmp_path), 3)
    with writers(database, threads=2, pause=0.05) as writing:
        driver.run(0.2)
        request(tmp_path, "1", data_collections=["Accounts|Orders"])
        epoch = 0
        while "COMPLETED" not in reports(driver):
            driver.run(0.1, crash=epoch % 5 == 3)
            epoch += 1
            assert epoch < 600, "the snapshot does not end"
        driver.run(0.3)
    with database.client.batch() as batch:
        batch.insert_or_update("Accounts", ["Id", "Value", "Version"], [(1000, "last", 1)])
    driver.run_until(nanoseconds_of(batch.committed))
    assert writing.commits
    assert driver.crashes
    for table in ("Accounts", "Orders"):
        assert replayed(records(driver), table) == database.rows(table)
    assert_rows_follow_only_what_they_see(records(driver))
    assert driver.widest > 1, "the partitions were never dealt"


@pytest.mark.long_cases("google", seconds=5)
@pytest.mark.slow
def test_a_surrogate_key_a_condition_and_a_signal_table_work(emulator: Any, new_database: Any) -> None:
    signals = "CREATE TABLE Signals (id STRING(64), type STRING(64), data STRING(MAX)) PRIMARY KEY (id)"
    database = new_database(
        emulator, [*DDL[:2], signals, "CREATE CHANGE STREAM Changes FOR Accounts, Orders"]
    )
    with database.client.batch() as batch:
        rows = [(key, None if key % 5 == 0 else f"v{key % 3}", key) for key in range(30)]
        batch.insert("Accounts", ["Id", "Value", "Version"], rows)
        batch.insert("Orders", ["Id", "Value", "Version"], rows)
    transform = database.reading(signal_table="Signals", chunk_rows=4)
    driver = Epochs(transform.with_notifications(lambda each: each))
    condition = {"data-collection": "Orders", "filter": "Version >= 20 OR Version = 3"}
    data = {"data-collections": ["Accounts", "Orders", "Nothing"], "surrogate-key": "Value"}
    data["additional-conditions"] = [condition]
    with database.client.batch() as batch:
        batch.insert("Signals", ["id", "type", "data"], [("1", "execute-snapshot", json.dumps(data))])
    driver.run(0.2)
    # The surrogate key of a row that was not read yet moves before the rows that were read.
    with database.client.batch() as batch:
        batch.update("Accounts", ["Id", "Value"], [(29, None), (28, "a")])
    run_until_completed(driver)
    driver.run_until(insert(database, "Accounts", {99: "last"}))
    assert replayed(records(driver), "Accounts") == database.rows("Accounts")
    # Only the rows: the reader of Google's emulator begins half a second early and may read the inserts too.
    rows_read = [each for each in records(driver) if each.mod_type == "READ" and each.table_name == "Orders"]
    orders = [mod.parsed()[0]["Id"] for each in rows_read for mod in each.mods]
    assert sorted(map(int, orders)) == [3, *range(20, 30)]
    ended = [
        each.document["additional_data"] for each in driver.committed if isinstance(each, NotificationRecord)
    ]
    statuses = {each["scanned_collection"]: each["status"] for each in ended if "status" in each}
    assert statuses == {"Accounts": "SUCCEEDED", "Orders": "SUCCEEDED", "Nothing": "UNKNOWN_SCHEMA"}


@pytest.mark.long_cases("google", seconds=5)
@pytest.mark.slow
def test_rows_of_a_table_that_joins_the_stream_are_read_once_through_crashes(
    emulator: Any, new_database: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(new_tables, "LOOK_SECONDS", 0.0)
    database = new_database(emulator, [*DDL[:2], "CREATE CHANGE STREAM Changes FOR Accounts"])
    insert(database, "Orders", {key: f"old {key}" for key in range(40)})
    transform = database.reading(new_tables="snapshot", chunk_rows=7, idle_stream_seconds=0)
    driver = Epochs(transform.with_notifications(lambda each: each), 2)
    driver.run(0.5)
    database.client.update_ddl(["ALTER CHANGE STREAM Changes SET FOR Accounts, Orders"]).result(60)
    for epoch in range(8):
        with database.client.batch() as batch:
            batch.insert_or_update("Orders", ["Id", "Value", "Version"], [(epoch * 9, f"new {epoch}", epoch)])
        driver.run(0.3, crash=epoch % 2 == 0)
    run_until_completed(driver)
    driver.run_until(nanoseconds_of(batch.committed))
    assert reports(driver).count("STARTED") == 1
    assert replayed(records(driver), "Orders") == database.rows("Orders")
    assert_rows_follow_only_what_they_see(records(driver))
    reads = [mod.keys for each in records(driver) if each.mod_type == "READ" for mod in each.mods]
    assert len(reads) == len(set(reads)) > 20
    database.client.update_ddl(["ALTER CHANGE STREAM Changes SET FOR Accounts"]).result(60)
    wait_until(lambda: driver.run(0.2) is not None and "Orders left" in caplog.text, "nobody noticed")
