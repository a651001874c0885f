"""Tables with partitions: what the option means, and that rows are in the partition of their values in every mode."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.transforms import BucketTransform, parse_transform
from pyiceberg.types import TimestamptzType

from penstock.compat import UTC
from penstock.datasets import Dataset, ReadTable
from penstock.errors import SeveralProblemsError, UsageError
from penstock.event import ChangeEvent, Kind, Op, Source, Version
from penstock.event.model import TableSchema
from penstock.io.columnar import partitions
from penstock.io.columnar.data_files import DataFile, manifest
from penstock.io.columnar.partition_rows import PartitionColumn, divided, ordinals, texts
from penstock.io.columnar.partitions import (
    TIME_UNITS,
    PartitionField,
    derived_name,
    field_of_column,
    fields_of,
    partition_entries,
)
from penstock.io.delta import WriteToDelta
from penstock.io.iceberg import WriteToIceberg
from penstock.io.staging import Delivery, StagedBatch
from tests.unit.formats.events import event_of, schema_of
from tests.unit.tables.histories import Writer, split
from tests.unit.tables.lakes import FORMATS, DeltaLake, IcebergLake, Lake, published, update
from tests.unit.tables.test_delta import epoch, publish
from tests.unit.tables.test_snapshot_rows import rows

pytestmark = pytest.mark.long(seconds=5)

ORDERS = Source("postgresql", "s", "shop", "public", "orders")
ITEMS = Source("postgresql", "s", "shop", "sales", "items")
_TIME = pa.timestamp("us", "UTC")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


# --- the option ---------------------------------------------------------------------------------------------------


def test_all_entries_that_fit_a_table_count_in_their_order() -> None:
    entries = partition_entries(
        ["region", "orders=day(at)", "sales.*=month( at )", "orders=region"], "current"
    )
    assert fields_of(entries, ORDERS) == (PartitionField("region"), PartitionField("at", "day"))
    assert fields_of(entries, ITEMS) == (PartitionField("region"), PartitionField(" at ", "month"))


@pytest.mark.parametrize(
    ("entry", "mode", "message"),
    [
        ("week(at)", "current", "one of year, month, day, hour"),
        ("day(at", "current", "entries such as region"),
        ("", "current", "entries such as region"),
        ("region", "log", "by op, and by a unit of timestamp"),
        ("timestamp", "log", "such as day"),
        ("day(op)", "log", "such as day"),
        ("day(_penstock_timestamp)", "current", "name a column of the source"),
        ("_penstock_version", "history", r"such as day\(_penstock_timestamp\)"),
    ],
)
def test_an_entry_that_cannot_partition_a_table_is_refused_at_construction(
    tmp_path: Path, entry: str, mode: Any, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        WriteToDelta(tmp_path / "t", mode=mode, partition_by=[entry])
    with pytest.raises(UsageError, match=message):
        WriteToIceberg("shop.t", mode=mode, partition_by=[entry])


@given(st.sampled_from(TIME_UNITS), st.text(min_size=1))
def test_the_column_of_a_unit_tells_its_field(unit: str, column: str) -> None:
    field = PartitionField(column, unit)
    assert field_of_column(derived_name(field)) == field


def test_one_entry_may_be_a_text() -> None:
    assert partition_entries("orders=day(at)", "current") == partition_entries(["orders=day(at)"], "current")


# --- dividing rows ------------------------------------------------------------------------------------------------

_TIMES = st.lists(st.none() | st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)), max_size=20)


@given(_TIMES, st.sampled_from(TIME_UNITS))
def test_units_of_times_are_those_of_iceberg(times: list[datetime | None], unit: Any) -> None:
    column = pa.chunked_array([pa.array(times, pa.timestamp("us"))]).cast(_TIME)
    transform = parse_transform(unit).transform(TimestamptzType())
    micros = [
        None if each is None else (each.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
        for each in times
    ]
    assert ordinals(column, unit).to_pylist() == list(map(transform, micros))
    lengths = {"year": 4, "month": 7, "day": 10, "hour": 13}
    expected = [None if each is None else each.isoformat()[: lengths[unit]] for each in times]
    assert texts(column, unit).to_pylist() == expected


@given(st.lists(st.tuples(st.none() | st.text(max_size=2), st.none() | st.integers(-2, 2)), max_size=30))
def test_rows_are_divided_by_all_their_values_and_keep_their_order(values: list[tuple[Any, Any]]) -> None:
    table = pa.table(
        {
            "number": pa.array(range(len(values)), pa.int64()),
            "text": pa.array([each[0] for each in values], pa.string()),
            "half": pa.array([each[1] for each in values], pa.int64()),
        }
    )
    columns = [
        PartitionColumn(table.column("text")),
        PartitionColumn(table.column("half"), lambda each: None if each is None else each // 2),
    ]
    expected: dict[Any, list[int]] = defaultdict(list)
    for number, (text, half) in enumerate(values):
        expected[text, None if half is None else half // 2].append(number)
    found = divided(table, columns)
    assert len(found) == len(expected)
    assert {key: part.column("number").to_pylist() for key, part in found} == expected


# --- the modes current and history --------------------------------------------------------------------------------


class MergedLake(DeltaLake):
    """A Delta table whose rows are merged by delta-rs."""

    def driver(self, mode: Any = "current", **options: Any) -> Any:
        return super().driver(mode, **{"deletion_vectors": False, **options})


ALL: dict[str, type[Lake]] = {**FORMATS, "Delta, MERGE": MergedLake}


@pytest.fixture(params=ALL)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return ALL[request.param](tmp_path)


@pytest.fixture(params=FORMATS)
def fast(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return FORMATS[request.param](tmp_path)


def values_of_files(lake: Lake) -> list[tuple[Any, ...]]:
    """Return the partition of each data file."""
    if isinstance(lake, DeltaLake):
        names = lake.table().metadata().partition_columns
        return [tuple(each.partition_values[name] for name in names) for each in lake.files()]
    assert isinstance(lake, IcebergLake)
    tasks = lake.table().scan().plan_files()
    return [tuple(task.file.partition[n] for n in range(len(task.file.partition))) for task in tasks]


@pytest.mark.parametrize("mode", ["current", "history"])
def test_rows_move_to_the_partition_of_their_new_value(
    lake: Lake, mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`amount` changes with each update, so each of them moves its row, or begins a version elsewhere."""
    lake.low_limits(monkeypatch)
    writer, rng = Writer(7), random.Random(7)
    driver = lake.driver(mode, partition_by=["amount"])
    done: list[tuple[int, list[ChangeEvent]]] = []
    for number, events in enumerate(split(writer.changes(50), rng), 2):
        publish(driver, events, number)
        done.append((number, events))
        old, again = rng.choice(done)
        publish(driver, again, old)
    live = lake.valid[mode]
    found = lake.read(("id", "name", "amount", "note"), live)
    assert sorted(tuple(each.values()) for each in found.to_pylist()) == writer.current()
    # Reading a partition alone: the values of files are those of their rows.
    equals = "=" if isinstance(lake, DeltaLake) else "=="
    for row in found.to_pylist():
        alone = lake.read(("id",), f"amount {equals} {row['amount']} and {live}")
        assert row["id"] in alone.column("id").to_pylist()
    everything = lake.read(("amount",), lake.valid["all"]).column("amount").to_pylist()
    assert {value for (value,) in values_of_files(lake)} - {None} == {
        str(each) if isinstance(lake, DeltaLake) else each for each in everything if each is not None
    }


def test_the_upkeep_writes_files_of_one_partition_only(fast: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    fast.low_limits(monkeypatch)
    driver = fast.driver(partition_by=["amount"])
    for number in range(2, 14):
        publish(driver, rows([number], amount=number % 2, version=Version(number * 1000)), number)
    assert fast.has_been_tidied()
    assert sorted(fast.rows("id", "amount")) == [(number, number % 2) for number in range(2, 14)]
    found = values_of_files(fast)
    assert len(found) < 12
    assert {str(value) for (value,) in found} == {"0", "1"}


def test_a_time_is_divided_by_its_unit_and_a_tombstone_is_in_the_partition_without_value(lake: Lake) -> None:
    schema = schema_of({"id": Kind.INT64}, at=Kind.TIMESTAMP, day=Kind.DATE)
    noon = datetime(2026, 11, 28, 12, tzinfo=UTC)

    def change(number: int, hours: int) -> ChangeEvent:
        at = int((noon + timedelta(hours=hours) - _EPOCH).total_seconds()) * 10**9
        after = {"id": number, "at": at, "day": 20785 + hours // 24}
        return event_of(schema, after=after, timestamp=number * 10**9, source=ORDERS)

    driver = lake.driver(partition_by=["day(at)", "month(day)", "t=year(at)"])
    publish(driver, [change(1, 0), change(2, 24), change(3, 5)], 2)
    iceberg = isinstance(lake, IcebergLake)
    first, second = (
        ((20785, 682), (20786, 682)) if iceberg else (("2026-11-28", "2026-11"), ("2026-11-29", "2026-11"))
    )
    assert sorted(values_of_files(lake)) == [first, second]
    gone = event_of(schema, Op.DELETE, before={"id": 1}, timestamp=9 * 10**9, source=ORDERS)
    publish(driver, [gone], 3)
    assert lake.rows("id") == [(2,), (3,)]
    assert (None, None) in values_of_files(lake)


def test_a_table_with_other_partitions_is_refused_and_without_the_option_it_keeps_its_own(lake: Lake) -> None:
    published(lake, [rows(range(3))], partition_by=["name"])
    with pytest.raises(UsageError, match=r"is partitioned by name, and partition_by asks for id"):
        published(lake, [[update(1, 5, 3000)]], first=3, partition_by=["id"])
    with pytest.raises(UsageError, match=r"is partitioned by name"):
        lake.driver(partition_by=["id"]).check()
    lake.driver(partition_by=["name"]).check()
    lake.driver(partition_by=["other=id"]).check()
    published(lake, [[update(1, 5, 3000)]], first=3)
    assert lake.rows() == [(0, 0), (1, 5), (2, 0)]
    assert {("n0",), ("n1",), ("n2",)} == set(values_of_files(lake))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("region", "has no column region"),
        ("day(name)", "needs a time"),
        ("hour(day)", "needs a time"),
        ("price", "another column"),
        ("at", r"Use day\(at\)"),
    ],
)
def test_a_new_table_that_cannot_be_partitioned_is_refused(lake: Lake, entry: str, message: str) -> None:
    schema = schema_of(
        {"id": Kind.INT64}, name=Kind.STRING, price=Kind.FLOAT64, at=Kind.TIMESTAMP, day=Kind.DATE
    )
    event = event_of(schema, after={"id": 1, "name": "a", "price": 1.0, "at": 0, "day": 1}, source=ORDERS)
    with pytest.raises(UsageError, match=message):
        publish(lake.driver(partition_by=[entry]), [event], 2)


def read_table(table: str, *columns: str) -> ReadTable:
    return ReadTable(
        msgspec.structs.replace(ORDERS, table=table), Dataset("postgres://s", f"shop.public.{table}", columns)
    )


def with_placeholder(lake: Lake, **options: Any) -> Any:
    """Return a target whose table `t` is the one of the lake."""
    target = lake.driver(**options)
    if isinstance(lake, DeltaLake):
        return replace(target, uri=str(lake.path.parent / "{table}"))
    return replace(target, table="shop.{table}")


def test_the_tables_of_the_source_are_checked_before_the_start(lake: Lake) -> None:
    published(lake, [rows(range(3))], partition_by=["name"])
    tables = [read_table("t", "id", "name"), read_table("new", "id", "region"), read_table("all")]

    def check(*partition_by: str, mode: Any = "current") -> None:
        target = with_placeholder(lake, partition_by=partition_by, mode=mode)
        target.check()
        target.check_tables(lambda: tables)

    check("t=name", "new=region")
    check("t=name", "new=month(_penstock_timestamp)", mode="history")
    with pytest.raises(
        UsageError, match=r"t exists and is partitioned by name, and partition_by asks for id"
    ):
        check("t=id")
    with pytest.raises(UsageError, match=r"new has no column at"):
        check("t=name", "new=day(at)")
    with pytest.raises(SeveralProblemsError, match=r"(?s)partitioned by name.*new has no column name"):
        check("id", "name")


def test_the_source_is_asked_for_its_tables_only_if_partitions_are_asked_for(lake: Lake) -> None:
    def tables() -> list[ReadTable]:
        raise AssertionError("the source is asked")

    with_placeholder(lake).check_tables(tables)


def test_a_partition_column_that_becomes_wider_keeps_its_table(lake: Lake) -> None:
    def change(number: int, n: int, schema: TableSchema) -> ChangeEvent:
        return event_of(schema, after={"id": number, "n": n}, timestamp=number * 10**9, source=ORDERS)

    narrow, wide = (schema_of({"id": Kind.INT64}, n=kind) for kind in (Kind.INT32, Kind.INT64))
    driver = lake.driver(partition_by=["n"])
    publish(driver, [change(1, 1, narrow)], 2)
    publish(driver, [change(2, 1 << 40, wide)], 3)
    assert lake.rows("id", "n") == [(1, 1), (2, 1 << 40)]
    assert {str(value) for (value,) in values_of_files(lake)} == {"1", str(1 << 40)}


def test_partitions_of_another_program_are_used_as_they_are(tmp_path: Path) -> None:
    lake = IcebergLake(tmp_path)
    table = lake.created()
    with table.update_spec() as change:
        change.add_field("id", BucketTransform(4), "shard").add_identity("_penstock_deleted")
    published(lake, [rows(range(20)), [update(3, 7, 3000)]])
    assert lake.rows()[:5] == [(0, 0), (1, 0), (2, 0), (3, 7), (4, 0)]
    assert len(set(values_of_files(lake))) == 4


def test_delta_partitions_whose_values_only_delta_rs_writes_are_merged(tmp_path: Path) -> None:
    lake = DeltaLake(tmp_path / "made")
    published(lake, [rows(range(3))])
    copied = DeltaLake(tmp_path / "copied")
    write_deltalake(copied.path, lake.read(["*"], "true"), partition_by=["_penstock_timestamp"])
    published(copied, [[update(1, 5, 3000)]], first=3)
    assert copied.rows() == [(0, 0), (1, 5), (2, 0)]
    assert not any(each.deletion_vector for each in copied.files())


def test_a_delta_table_by_a_column_of_the_sink_is_searched(tmp_path: Path) -> None:
    lake = DeltaLake(tmp_path / "made")
    published(lake, [rows(range(3))])
    copied = DeltaLake(tmp_path / "copied")
    write_deltalake(copied.path, lake.read(["*"], "true"), partition_by=["_penstock_deleted"])
    published(copied, [[update(1, 5, 3000)], [update(1, 9, 4000)]], first=3)
    assert copied.rows() == [(0, 0), (1, 9), (2, 0)]
    assert "_penstock_vectors" in {each.name for each in copied.path.iterdir()}


def test_a_commit_with_many_files_is_warned_about_once(
    fast: Lake, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    for module in ("delta.vector_commit", "iceberg.commit"):
        monkeypatch.setattr(f"penstock.io.{module}.MANY_FILES", 2)
    partitions.warn_of_many_files.cache_clear()
    published(fast, [rows(range(2)), [update(n, 1, 3000 + n) for n in range(2)]], partition_by=["id"])
    assert "partition_by" not in caplog.text
    for epoch_number in (4, 5):
        version = 1000 * epoch_number
        published(fast, [[update(n, 2, version + n) for n in range(3)]], first=epoch_number)
    assert caplog.text.count("a coarser partition_by") == 1


# --- the mode log -------------------------------------------------------------------------------------------------

LOGGED = schema_of({"id": Kind.INT64}, n=Kind.INT32)
DAY_NS = 86_400 * 10**9


def logged(number: int, days: int) -> ChangeEvent:
    return event_of(
        LOGGED, after={"id": number, "n": number}, timestamp=days * DAY_NS + number * 10**9, source=ORDERS
    )


def write(target: Any, events: Sequence[ChangeEvent], stem: str) -> list[DataFile]:
    parts = [part for each in target.plan_files(events, stem) for part in target.divided(each)]
    return [target.write_file(part) for part in parts]


def commit(target: Any, files: Sequence[DataFile], number: int) -> list[str]:
    delivery = Delivery("sink", "job", 0, 1, 1, number)
    # As a checkpoint has them.
    batch = StagedBatch(delivery, 0, 0, 0, content=manifest("", files))
    return list(target.publish_files(epoch(number), [batch]))


def test_a_task_writes_a_file_for_each_partition_and_the_driver_reads_none(fast: Lake) -> None:
    target = fast.driver("log", partition_by=["day(timestamp)", "op"])
    events = [logged(number, number % 3) for number in range(9)]
    for number in (2, 3):
        files = write(target, events, str(number))
        assert len(files) == 3
        assert commit(target, files, number) == [file.path for file in files], (
            "the driver has written rows again"
        )
    day = [0, 1, 2] if isinstance(fast, IcebergLake) else ["1970-01-01", "1970-01-02", "1970-01-03"]
    assert sorted(values_of_files(fast)) == [(each, "UPDATE") for each in day for _ in range(2)]
    everything = fast.read(("op", "after"), "op is not null").to_pylist()
    assert sorted(row["after"]["n"] for row in everything) == sorted([*range(9)] * 2)
    assert {row["op"] for row in everything} == {"UPDATE"}


def test_readers_open_only_the_files_of_the_days_that_they_ask_for(fast: Lake) -> None:
    target = fast.driver("log", partition_by=["day(timestamp)"])
    commit(target, write(target, [logged(number, number) for number in range(5)], "2"), 2)
    if isinstance(fast, IcebergLake):
        scan = fast.table().scan(row_filter="timestamp >= '1970-01-04T00:00:00+00:00'")
        assert len(list(scan.plan_files())) == 2
        return
    assert isinstance(fast, DeltaLake)
    for file in fast.files():
        if file.partition_values["_penstock_day_of_timestamp"] != "1970-01-04":
            (fast.path / file.path).unlink()
    assert fast.read(("after",), "_penstock_day_of_timestamp = '1970-01-04'").num_rows == 1


def test_rows_whose_columns_no_longer_fit_get_their_partition_from_the_driver(fast: Lake) -> None:
    """The file has an INT32, and another writer makes the column wider before the commit."""
    target = fast.driver("log", partition_by=["op", "day(timestamp)"])
    commit(target, write(target, [logged(1, 0)], "2"), 2)
    files = write(target, [logged(2, 1)], "4")
    wide = schema_of({"id": Kind.INT64}, n=Kind.INT64)
    large = event_of(wide, after={"id": 3, "n": 1 << 40}, timestamp=2 * DAY_NS, source=ORDERS)
    commit(target, write(target, [large], "3"), 3)
    assert commit(target, files, 4) == []
    found = fast.read(("op", "after"), "op is not null").to_pylist()
    assert sorted(row["after"]["n"] for row in found) == [1, 2, 1 << 40]
    assert {row["op"] for row in found} == {"UPDATE"}
    assert len(set(values_of_files(fast))) == 3


def test_a_log_with_partitions_of_another_program_gets_files_for_them(tmp_path: Path) -> None:
    lake = DeltaLake(tmp_path)
    first = lake.driver("log")
    commit(first, write(first, [logged(1, 0)], "2"), 2)
    other = DeltaLake(tmp_path / "other")
    write_deltalake(other.path, lake.read(["*"], "true"), partition_by=["op"])
    target = other.driver("log")
    files = write(target, [logged(2, 1)], "3")
    assert commit(target, files, 3) == [files[0].path]
    assert sorted(row["after"]["n"] for row in other.read(("after",), "op = 'UPDATE'").to_pylist()) == [1, 2]
    assert DeltaTable(other.path).to_pyarrow_table().num_rows == 2
