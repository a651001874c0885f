"""Snapshots on Google's emulator and on the simulated service, with writers, crashes and both dialects."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from penstock.errors import PositionLostError, SetupError
from penstock.event import Op
from penstock.io.spanner import DataChangeRecord, ReadFromSpannerTable
from penstock.io.spanner.events import EventConverter
from penstock.io.spanner.initial_scan.frontier import ScanFrontier
from penstock_emulators.simulated_spanner import SimulatedSpanner
from tests.integration.spanner.conftest import (
    DDL,
    INSTANCE,
    PROJECT,
    TABLES,
    nanoseconds_of,
    on_both_services,
)
from tests.support.epochs import Epochs

SECOND = 1_000_000_000
CAPTURES = ("OLD_AND_NEW_VALUES", "NEW_VALUES", "NEW_ROW", "NEW_ROW_AND_OLD_VALUES")

pytestmark = on_both_services


def table_reading(source: Any, **options: Any) -> ReadFromSpannerTable:
    return ReadFromSpannerTable(
        **{
            "project": PROJECT,
            "instance": INSTANCE,
            "database": source.name,
            "tables": "Accounts",
            "emulator_host": source.emulator.host,
            **options,
        }
    )


def insert(database: Any, table: str, rows: dict[int, str]) -> int:
    """Insert or update rows; return the commit timestamp."""
    with database.client.batch() as batch:
        batch.insert_or_update(table, ["Id", "Value"], list(rows.items()))
    return nanoseconds_of(batch.committed)


def values(records: list[DataChangeRecord]) -> list[tuple[str, int, str]]:
    """Return (table, key, value) of each row."""
    return [
        (record.table_name, int(json.loads(mod.keys)["Id"]), json.loads(mod.new_values)["Value"])
        for record in records
        for mod in record.mods
    ]


@pytest.mark.long_cases("google", seconds=5)
@pytest.mark.parametrize("data_boost", [False, True])
def test_a_table_is_read_as_it_was_at_one_commit(database: Any, data_boost: bool) -> None:
    insert(database, "Accounts", dict.fromkeys(range(2000), "old"))
    at = insert(database, "Accounts", {7: "at that time"})
    insert(database, "Accounts", dict.fromkeys(range(0, 3000, 3), "new"))
    driver = Epochs(table_reading(database, at=at, data_boost=data_boost, max_ranges=8), 3)
    found = values(driver.run_to_the_end(0.05))
    assert sorted(found) == [("Accounts", key, "at that time" if key == 7 else "old") for key in range(2000)]
    assert {record.commit_timestamp for record in driver.committed} == {at}


@pytest.mark.long_cases("google", seconds=5)
def test_a_read_that_is_stopped_often_reads_each_row_once(database: Any) -> None:
    for start in range(0, 3000, 500):
        insert(database, "Accounts", dict.fromkeys(range(start, start + 500), "a" * 4000))
    driver = Epochs(table_reading(database, buffer_bytes=1 << 20, idle_stream_seconds=0, max_ranges=3), 2)
    epochs = 0
    while driver.residuals:
        driver.run(0.0, crash=epochs % 3 == 1)
        epochs += 1
    assert sorted(key for _, key, _ in values(driver.committed)) == list(range(3000))
    assert epochs > 1


def test_several_tables_and_chosen_columns_come_together(database: Any) -> None:
    insert(database, "Accounts", {1: "a"})
    insert(database, "Orders", {2: "b"})
    transform = table_reading(database, tables={"Orders": ["Value"], "Accounts": []})
    records = Epochs(transform, 2).run_to_the_end()
    assert sorted(values(records)) == [("Accounts", 1, "a"), ("Orders", 2, "b")]
    columns = {record.table_name: [column.name for column in record.column_types] for record in records}
    assert columns == {"Accounts": ["Id", "Value", "Version"], "Orders": ["Id", "Value"]}


def test_odd_tables_are_read_whole(emulator: Any, new_database: Callable[..., Any]) -> None:
    database = new_database(
        emulator,
        [
            "CREATE TABLE `Order` (`Group` STRING(100), K INT64, F FLOAT64) PRIMARY KEY (`Group` DESC, K)",
            "CREATE TABLE Keys (A BOOL, B BYTES(10)) PRIMARY KEY (A, B)",
            "CREATE TABLE Empty (K INT64) PRIMARY KEY (K)",
            "CREATE TABLE Child (`Group` STRING(100), K INT64, C INT64) PRIMARY KEY (`Group` DESC, K, C), "
            "INTERLEAVE IN PARENT `Order`",
        ],
    )
    groups = [None, "", "\u00fc\u1234\U0001f600", 'q"uote', "back\\slash", "z"]
    with database.client.batch() as batch:
        batch.insert("Order", ["Group", "K", "F"], [(g, k, k / 3) for g in groups for k in range(60)])
        batch.insert("Child", ["Group", "K", "C"], [(g, k, 1) for g in groups for k in range(0, 60, 7)])
        batch.insert("Keys", ["A", "B"], [(None, None), (True, b"AAA="), (False, None)])
    transform = table_reading(database, tables=["Order", "Child", "Keys", "Empty"], max_ranges=4)
    driver = Epochs(transform, 2)
    while driver.residuals:
        driver.run(0.0)
    events = [event for record in driver.committed for event in EventConverter()(record)]
    keys = [(event.source.table, tuple(event.key.values())) for event in events if event.key]
    assert len(set(keys)) == len(keys)
    assert {key[1:] for table, key in keys if table == "Keys"} == {(None,), (b"\x00\x00",)}
    assert sum(table == "Order" for table, _ in keys) == 60 * len(groups)
    assert sum(table == "Child" for table, _ in keys) == 9 * len(groups)


def test_a_postgresql_database_is_read(emulator: Any, new_database: Callable[..., Any]) -> None:
    from google.cloud.spanner_admin_database_v1.types import DatabaseDialect

    source = new_database(emulator)
    client = source.client._instance.database(
        f"{source.name}-pg", database_dialect=DatabaseDialect.POSTGRESQL
    )
    client.create().result(60)
    ddl = 'CREATE TABLE "Mixed" (id bigint PRIMARY KEY, "Value" varchar, n numeric, d double precision)'
    client.update_ddl([ddl]).result(60)
    with client.batch() as batch:
        batch.insert("Mixed", ["id", "Value", "n", "d"], [(1, "x", "1.50", 0.5), (2, None, "NaN", None)])
    records = Epochs(table_reading(source, database=client.database_id, tables="Mixed")).run_to_the_end()
    events = [event for record in records for event in EventConverter()(record)]
    assert [event.after["Value"] for event in events if event.after] == ["x", None]
    assert [str(event.after["n"]).rstrip("0") for event in events if event.after] == ["1.5", "NaN"]


def test_wrong_tables_and_times_are_refused_before_anything_is_read(database: Any) -> None:
    with pytest.raises(SetupError, match="Acounts.*Accounts"):
        table_reading(database, tables="Acounts").check()
    with pytest.raises(SetupError, match="version_retention_period"):
        table_reading(database, at=time.time_ns() - 7200 * SECOND).check()
    with pytest.raises(SetupError, match="in the future"):
        table_reading(database, at=time.time_ns() + 7200 * SECOND).check()
    with pytest.raises((SetupError, PositionLostError), match="no longer has the rows"):
        Epochs(database.reading(snapshot=True, start=time.time_ns() - 7200 * SECOND))


def test_the_watched_tables_and_columns_are_told_before_the_start(database: Any) -> None:
    found = {str(table): table.columns for table in database.reading().source_tables()}
    assert found["Accounts"][:2] == ("Id", "Value")
    (only,) = database.reading(tables=["Accounts"]).source_tables()
    assert str(only) == "Accounts"


def test_a_snapshot_has_every_row_and_the_stream_every_later_change(database: Any) -> None:
    insert(database, "Accounts", {1: "before", 2: "before"})
    at = insert(database, "Accounts", {2: "at"})
    insert(database, "Accounts", {2: "after", 3: "after"})
    driver = Epochs(database.reading(snapshot="initial", start=at), 3)
    assert isinstance(driver.residuals[0][0], ScanFrontier)
    driver.run_until(insert(database, "Accounts", {4: "later"}))
    rows = [record for record in driver.committed if record.mod_type == "READ"]
    changes = [record for record in driver.committed if record.mod_type != "READ"]
    assert sorted(values(rows)) == [("Accounts", 1, "before"), ("Accounts", 2, "at")]
    assert sorted(values(changes)) == [
        ("Accounts", 2, "after"),
        ("Accounts", 3, "after"),
        ("Accounts", 4, "later"),
    ]
    assert min(record.commit_timestamp for record in changes) > at


def test_a_stream_that_watches_one_column_has_a_snapshot_of_that_column(
    emulator: Any, new_database: Callable[..., Any]
) -> None:
    database = new_database(
        emulator, [*DDL[:2], "CREATE CHANGE STREAM Changes FOR Accounts(Version), Orders()"]
    )
    insert(database, "Accounts", {1: "not watched"})
    insert(database, "Orders", {2: "not watched"})
    driver = Epochs(database.reading(snapshot=True, end=time.time_ns() + SECOND))
    driver.run_to_the_end()
    found = {record.table_name: [tuple(mod) for mod in record.mods] for record in driver.committed}
    assert found == {
        "Accounts": [('{"Id":"1"}', '{"Version":null}', "{}")],
        "Orders": [('{"Id":"2"}', "{}", "{}")],
    }


TYPES = {
    "B": ("BOOL", [True, False, None]),
    "I": ("INT64", ["9223372036854775807", "-9223372036854775808", None]),
    "F": ("FLOAT64", [0.1, -0.0, 1e308]),
    "G": ("FLOAT32", [0.5, None, -3.25]),
    "N": ("NUMERIC", ["99999999999999999999999999999.999999999", "-0.5", None]),
    "S": ("STRING(MAX)", ['q"uote\\ \n', "\u00fc\u1234\U0001f600", ""]),
    "Y": ("BYTES(MAX)", ["AAH/", "", None]),
    "D": ("DATE", ["2026-02-28", "9999-12-31", None]),
    "T": ("TIMESTAMP", ["2026-01-31T12:00:00Z", "1970-01-01T00:00:00Z", None]),
    "J": ("JSON", ['{"a":[1,null,"x"]}', "[]", None]),
    "Ints": ("ARRAY<INT64>", [["1", "9007199254740993"], [], None]),
    "Texts": ("ARRAY<STRING(MAX)>", [["a", ""], [], None]),
    "Floats": ("ARRAY<FLOAT64>", [[0.25, 2.0], [], None]),
}
"""By column: type and values. Google's emulator sends changes of the types that it carries only, and no fractions."""
SIMULATED_TYPES = {
    "U": ("UUID", ["123e4567-e89b-12d3-a456-426614174000", None, None]),
    "F2": ("FLOAT64", ["NaN", "Infinity", "-Infinity"]),
    "T2": ("TIMESTAMP", ["2026-01-31T12:00:00.123456789Z", "0001-01-01T00:00:00Z", None]),
    "Bools": ("ARRAY<BOOL>", [[True, None], [None], []]),
    "Ints2": ("ARRAY<INT64>", [["1", None], [None], []]),
}


def test_every_type_is_equal_in_a_row_and_in_the_change_that_wrote_it(
    emulator: Any, new_database: Callable[..., Any]
) -> None:
    """The values go to the service as they are, because the client library refuses some of them."""
    types = TYPES | (SIMULATED_TYPES if isinstance(emulator, SimulatedSpanner) else {})
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in types.items())
    database = new_database(
        emulator,
        [
            f"CREATE TABLE Types (Id INT64 NOT NULL, {columns}) PRIMARY KEY (Id)",
            "CREATE CHANGE STREAM Changes FOR ALL OPTIONS (value_capture_type = 'NEW_ROW')",
        ],
    )
    start = time.time_ns()
    last = 0
    for number in range(3):
        last = write_values(
            database, ["Id", *types], [str(number), *(values_[number] for _, values_ in types.values())]
        )
    end = last + SECOND // 10
    changes = Epochs(database.reading(start=start, end=end)).run_to_the_end()
    rows = Epochs(database.reading(snapshot=True, start=last, end=last)).run_to_the_end()
    written, read = (
        [event for record in records for event in EventConverter()(record)] for records in (changes, rows)
    )
    assert [event.op for event in read] == [Op.READ] * 3
    for change, row in zip(sorted(written, key=_id), sorted(read, key=_id), strict=True):
        # By their text: NaN is not equal to itself, and 0 equals -0.0.
        assert repr(sorted(row.after.items())) == repr(sorted(change.after.items()))
        assert row.schema == change.schema
        assert row.source == change.source


def _id(event: Any) -> int:
    return int(event.key["Id"])


def write_values(database: Any, columns: list[str], row: list[Any]) -> int:
    """Insert a row whose values already have the form of google.spanner.v1.TypeCode; return the commit timestamp."""
    from google.cloud.spanner_v1 import CommitRequest, Mutation, TransactionOptions
    from google.protobuf.struct_pb2 import ListValue

    values_ = ListValue()
    values_.extend(row)
    api, session = database.client.spanner_api, database.client.session()
    session.create()
    request = CommitRequest(
        session=session.name,
        single_use_transaction=TransactionOptions(read_write=TransactionOptions.ReadWrite()),
        mutations=[Mutation(insert=Mutation.Write(table="Types", columns=columns, values=[values_]))],
    )
    return nanoseconds_of(api.commit(request=request).commit_timestamp)


@pytest.mark.long_cases("google", seconds=5)
@pytest.mark.slow
@pytest.mark.parametrize("options", ["", ", partition_mode = 'MUTABLE_KEY_RANGE'"])
def test_a_postgresql_stream_of_both_partition_modes_follows_its_snapshot(
    emulator: Any, new_database: Callable[..., Any], options: str
) -> None:
    if options and not isinstance(emulator, SimulatedSpanner):
        options = ""  # Google's emulator knows one partition mode
    from google.cloud.spanner_admin_database_v1.types import DatabaseDialect

    source = new_database(emulator)
    client = source.client._instance.database(
        f"{source.name}-pg", database_dialect=DatabaseDialect.POSTGRESQL
    )
    client.create().result(60)
    stream = f"CREATE CHANGE STREAM changes FOR ALL WITH (value_capture_type = 'NEW_VALUES'{options})"
    client.update_ddl(["CREATE TABLE t (id bigint PRIMARY KEY, n numeric)", stream]).result(60)
    write = partial(insert_numbers, client)
    write(dict.fromkeys(range(300), "1.5"))
    reading = source.reading(snapshot=True, database=client.database_id, change_stream="changes")
    driver = Epochs(reading, 2)
    write({7: "2.25", 300: "NaN"})
    driver.run_until(write({8: "3"}))
    events = [event for record in driver.committed for event in EventConverter()(record)]
    assert [event.op for event in events].count(Op.READ) == 300
    table = {event.key["id"]: event.after for event in events if event.key}
    assert [str(table[key]["n"]).rstrip("0").rstrip(".") for key in (6, 7, 8, 300)] == [
        "1.5",
        "2.25",
        "3",
        "NaN",
    ]


def insert_numbers(client: Any, rows: dict[int, str]) -> int:
    with client.batch() as batch:
        batch.insert_or_update("t", ["id", "n"], list(rows.items()))
    return nanoseconds_of(batch.committed)


@pytest.mark.long_cases("google", seconds=5)
@pytest.mark.slow
@pytest.mark.parametrize("data_boost", [pytest.param(False, marks=pytest.mark.campaign), True])
def test_snapshot_and_changes_replay_to_the_tables_through_writers_and_crashes(
    emulator: Any,
    new_database: Callable[..., Any],
    writers: Callable[..., Any],
    campaign: Any,
    data_boost: bool,
) -> None:
    rng = campaign.random(f"spanner snapshot {data_boost}")
    captures = campaign.size(1, 4)
    rows = changes = crashes = 0
    for capture in rng.sample(CAPTURES, captures):
        ddl = [*DDL[:2], f"CREATE CHANGE STREAM Changes FOR ALL OPTIONS (value_capture_type = '{capture}')"]
        database = new_database(emulator, ddl)
        for table in TABLES:
            for start in range(0, 2000, 1000):
                insert(database, table, {key: f"first {key}" for key in range(start, start + 1000)})
        with writers(database, keys=2000, pause=0.02) as running:
            time.sleep(0.3)
            driver = Epochs(database.reading(snapshot=True, snapshot_data_boost=data_boost), 3)
            while any(isinstance(frontier, ScanFrontier) for frontier, _ in driver.residuals):
                driver.run(rng.choice((0.0, 0.02)), crash=rng.random() < 0.2)
            time.sleep(1)
        driver.run_until(time.time_ns() + 50_000_000)
        found = replayed(driver.committed)
        assert found == {table: database.rows(table) for table in TABLES}
        at = {record.commit_timestamp for record in driver.committed if record.mod_type == "READ"}
        assert len(at) == 1
        assert {commit for commit in running.commits if commit > max(at)} <= {
            record.commit_timestamp for record in driver.committed
        }
        rows += sum(len(r.mods) for r in driver.committed if r.mod_type == "READ")
        changes += sum(len(r.mods) for r in driver.committed if r.mod_type != "READ")
        crashes += driver.crashes
    campaign.record(
        f"spanner-snapshot-{type(emulator).__name__.lower()}{'-data-boost' if data_boost else ''}",
        rows=rows,
        changes=changes,
        crashes=crashes,
    )


def replayed(records: list[DataChangeRecord]) -> dict[str, dict[int, tuple[str, int]]]:
    """Apply rows and changes in the order given; a row that comes twice, or after a change of it, is an error."""
    tables: dict[str, dict[int, tuple[str, int]]] = {table: {} for table in TABLES}
    seen: set[tuple[str, int]] = set()
    for record in records:
        table = tables[record.table_name]
        for event in EventConverter()(record):
            assert event.key is not None
            key = event.key["Id"]
            assert event.op is not Op.READ or (record.table_name, key) not in seen, (
                "a row came too late or twice"
            )
            seen.add((record.table_name, key))
            if event.op is Op.DELETE:
                del table[key]
            else:
                assert event.op is not Op.UPDATE or key in table, "a change came before its row"
                before = table.get(key, (None, None))
                after = event.after or {}
                table[key] = (after.get("Value", before[0]), after.get("Version", before[1]))
    return tables


class Keep(beam.DoFn):
    """Appends each element to a file; a list would not work, because the pipeline is pickled before it runs."""

    def __init__(self, path: str) -> None:
        self._path = path

    def process(self, record: Any, timestamp: Any = beam.DoFn.TimestampParam) -> None:
        with open(self._path, "a") as file:
            for mod in record.mods:
                file.write(json.dumps([record.mod_type, mod.keys, timestamp.micros]) + "\n")


@pytest.mark.slow
def test_a_bounded_snapshot_with_changes_runs_on_beams_runner(database: Any, tmp_path: Path) -> None:
    at = insert(database, "Accounts", dict.fromkeys(range(50), "row"))
    last = insert(database, "Accounts", {7: "changed"})
    out = tmp_path / "lines"
    pipeline = beam.Pipeline(options=PipelineOptions(["--direct_num_workers=1"]))
    pipeline | database.reading(snapshot=True, start=at, end=last) | beam.ParDo(Keep(str(out)))
    result = pipeline.run()
    result.wait_until_finish()
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line[0] for line in lines] == ["READ"] * 50 + ["UPDATE"]
    assert {line[2] for line in lines[:50]} == {at // 1000}
    counters = {c.key.metric.name: c.committed for c in result.metrics().query()["counters"]}
    assert counters["snapshot_rows"] == 50
    assert counters["snapshot_ranges"] == counters["snapshot_ranges_finished"] > 0
