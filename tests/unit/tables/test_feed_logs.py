"""Change feeds in columns: files and logs have the rows of the DataFrame and of the JSON format, and nothing else."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import apache_beam as beam
import msgspec
import pyarrow as pa
import pyarrow.parquet
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from pyiceberg.catalog import load_catalog

from penstock.datasets import Dataset, ReadTable
from penstock.errors import UnwritableError, UsageError
from penstock.event import CellChange, ChangeEvent, Kind, Message, Op, Source, Version
from penstock.event.change_rows import change_rows
from penstock.event.coder import encode_event
from penstock.event.feed_rows import FEED_COLUMNS
from penstock.event.model import NO_COLUMNS
from penstock.event.schema_changes import SchemaChangedError
from penstock.io.columnar.check import unfit
from penstock.io.columnar.data_files import DataFile, manifest
from penstock.io.columnar.parquet import ParquetRows
from penstock.io.columnar.row_runs import TableRows, rows_as_records
from penstock.io.delta import WriteToDelta
from penstock.io.delta.target import DeltaTarget
from penstock.io.files import WriteToParquet
from penstock.io.iceberg import WriteToIceberg
from penstock.io.iceberg.target import IcebergTarget
from penstock.io.spark.rows import SparkRows
from penstock.io.staging import Delivery, StagedBatch
from penstock.io.staging.blocks import RecordBlock
from penstock.publish import PublishOnDriver
from penstock.transforms.formats.change_feed import ChangeFeedFormat
from penstock.verify.job import check_job
from tests.simulation.stream import run_stream
from tests.unit.formats.events import event_of, schema_of
from tests.unit.tables.histories import SOURCE, Writer, split
from tests.unit.tables.test_delta import epoch

Row = tuple[Any, ...]
ROWS = schema_of({"id": Kind.INT64}, n=Kind.INT32)
MORE = schema_of({"id": Kind.INT64}, n=Kind.INT32, note=Kind.STRING)
WIDE = schema_of({"id": Kind.INT64}, n=Kind.INT64)
KINDS = ("delta", "iceberg")
_TRIES = itertools.count()


def block(events: Sequence[ChangeEvent]) -> RecordBlock:
    return RecordBlock.of([(0, encode_event(event)) for event in events])


def row_of(row: dict[str, Any], columns: Sequence[str]) -> Row:
    """Return what all forms of a row have in common; `columns` are those of the table in the end."""
    time = row["_commit_timestamp"]
    micros = datetime.fromisoformat(time.replace("Z", "+00:00")) if isinstance(time, str) else time
    change = row["_commit_version"], row["_change_type"], micros.timestamp(), tuple(row["_not_sent"])
    return (*change, *(row.get(name) for name in columns))


def in_order(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> list[Row]:
    return sorted(
        (row_of(row, columns) for row in rows), key=lambda row: (row[0], row[1] != "update_preimage")
    )


class Log:
    """A log of Delta or Iceberg with the layout *table*, and what tasks and driver do with it."""

    def __init__(self, kind: str, folder: Path, policy: Any = "evolve", **options: Any) -> None:
        self.kind, self.folder = kind, folder
        uri, warehouse = f"sqlite:///{folder}/catalog.db", f"file://{folder}/warehouse"
        self.properties = {"type": "sql", "uri": uri, "warehouse": warehouse}
        options = {"layout": "table", **options}
        self.target: Any = (
            DeltaTarget(str(folder / "{table}"), "log", policy, **options)
            if kind == "delta"
            else IcebergTarget("shop.{table}", "test", "log", policy, self.properties, **options)
        )

    def write(self, events: Sequence[ChangeEvent], number: int) -> list[DataFile]:
        planned = self.target.plan_files(events, f"{number}-{next(_TRIES)}")
        return [self.target.write_file(part) for each in planned for part in self.target.divided(each)]

    def commit(self, files: Sequence[DataFile], number: int) -> list[str]:
        delivery = Delivery("sink", "job", 0, 1, 1, number)
        content = manifest("", files)
        return list(
            self.target.publish_files(epoch(number), [StagedBatch(delivery, 0, 0, 0, content=content)])
        )

    def publish(self, events: Sequence[ChangeEvent], number: int) -> None:
        self.commit(self.write(events, number), number)

    def table(self, name: str = "orders") -> Any:
        if self.kind == "delta":
            return DeltaTable(self.folder / name)
        return load_catalog("test", **self.properties).load_table(f"shop.{name}")

    def rows(self, name: str = "orders") -> list[dict[str, Any]]:
        """Return the rows as another program reads them."""
        if self.kind == "iceberg":
            return list(self.table(name).scan().to_arrow().to_pylist())
        query = QueryBuilder().register("t", self.table(name))
        return list(pa.table(query.execute("select * from t")).to_pylist())


def history(seed: int) -> list[ChangeEvent]:
    """Return changes of all kinds: of keys, with whole old rows, a part of them or none, under two schemas."""
    rng, writer = random.Random(seed), Writer(seed)
    events = []
    for event in writer.changes(60):
        if event.op is Op.UPDATE and event.before is None and rng.random() < 0.7:
            old = {**(event.after or {}), "amount": None, "name": "old"}
            chosen = ["id", "amount"] if rng.random() < 0.5 else list(old)
            event = msgspec.structs.replace(event, before={name: old[name] for name in chosen})
        events.append(event)
        if rng.random() < 0.1:
            events.append(msgspec.structs.replace(event, op=Op.SCHEMA, key=None, before=None, after=None))
    # At least one.
    version = msgspec.structs.replace(events[-1].version, index=1)
    events.append(
        msgspec.structs.replace(
            events[-1], op=Op.TRUNCATE, key=None, before=None, after=None, version=version
        )
    )
    message = Message("audit", b"\x00")
    events.append(
        ChangeEvent(
            Source("postgresql"), Op.MESSAGE, 0, None, None, None, Version(1), NO_COLUMNS, message=message
        )
    )
    return events


def as_json(events: Sequence[ChangeEvent], folder: Path) -> Iterator[dict[str, Any]]:
    format_ = ChangeFeedFormat()
    for event in events:
        yield from (json.loads(record.value or b"") for record in format_(event))


def as_dataframe(events: Sequence[ChangeEvent], folder: Path) -> Iterator[dict[str, Any]]:
    for some in split(events, random.Random(0)):
        (content,) = SparkRows("json", "table").content([block(some)])
        yield from pyarrow.parquet.read_table(pa.BufferReader(content)).to_pylist()


def as_parquet(events: Sequence[ChangeEvent], folder: Path) -> Iterator[dict[str, Any]]:
    sink = WriteToParquet(folder, layout="table", partition_by="none", roll_seconds=0, shards=2)
    run_stream(lambda p: p | beam.Create(list(events), reshuffle=False) | sink)
    files = [file for file in folder.rglob("*.parquet") if ".penstock" not in str(file)]
    assert {file.parent.name for file in files} == {"public.orders"}
    for file in files:
        rows = pyarrow.parquet.ParquetFile(file).read()
        assert rows.num_rows, "a message or a change of the columns has made a file without rows"
        yield from rows.to_pylist()


def as_log(kind: str, events: Sequence[ChangeEvent], folder: Path) -> list[dict[str, Any]]:
    log = Log(kind, folder)
    for number, some in enumerate(split(events, random.Random(0)), 2):
        files = log.write(some, number)
        assert sorted(log.commit(files, number)) == sorted(each.path for each in files), (
            "the driver has written rows again"
        )
        assert log.commit(files, number) == [], "a repeat"
    return log.rows()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_all_forms_have_the_same_rows(seed: int, tmp_path: Path) -> None:
    events, columns = history(seed), ["id", "name", "amount", "note"]
    expected = in_order(list(as_json(events, tmp_path)), columns)
    assert {row[1] for row in expected} == {
        "insert",
        "update_preimage",
        "update_postimage",
        "delete",
        "truncate",
    }
    assert in_order(list(as_dataframe(events, tmp_path)), columns) == expected
    assert in_order(list(as_parquet(events, tmp_path / "files")), columns) == expected
    for kind in KINDS:
        (tmp_path / kind).mkdir()
        assert in_order(as_log(kind, events, tmp_path / kind), columns) == expected, kind


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_a_file_are_in_the_order_of_versions_and_old_rows_before_new_ones(
    kind: str, tmp_path: Path
) -> None:
    # Two schemas whose columns are equal in a file, so that its rows come from several parts.
    schemas = [schema_of({"id": Kind.INT64}, n=of) for of in (Kind.STRING, Kind.JSON)]
    events = [
        change(number, schemas[number % 2], before={"id": number, "n": "0"}, n="1") for number in range(300)
    ]
    log = Log(kind, tmp_path)
    (file,) = log.write(events[150:] + events[:150], 2)
    path = file.path.removeprefix("file://") if kind == "iceberg" else tmp_path / "orders" / file.path
    rows = pyarrow.parquet.ParquetFile(path).read().to_pylist()
    assert [(row["id"], row["_change_type"]) for row in rows] == [
        (number, f"update_{image}image") for number in range(300) for image in ("pre", "post")
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_change_from_before_a_column_was_added_does_not_lack_it(kind: str, tmp_path: Path) -> None:
    log = Log(kind, tmp_path)
    log.publish([change(1), change(2, MORE), change(3, MORE, note="c")], 2)
    assert [(row[4], row[3], row[6]) for row in in_order(log.rows(), ["id", "n", "note"])] == [
        (1, (), None),
        (2, ("note",), None),
        (3, (), "c"),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_columns_change_as_in_a_log_of_events(kind: str, tmp_path: Path) -> None:
    log = Log(kind, tmp_path)
    log.publish([change(1)], 2)
    log.publish([change(2, MORE, note="b")], 3)
    wide = msgspec.structs.replace(change(3), schema=WIDE, after={"id": 3, "n": 1 << 40})
    log.publish([wide], 4)
    Log(kind, tmp_path, "ignore").publish(
        [change(4, schema_of({"id": Kind.INT64}, other=Kind.BOOL), other=True)], 5
    )
    rows = in_order(log.rows(), ["id", "n", "note", "other"])
    assert [row[4:] for row in rows] == [
        (1, 1, None, None),
        (2, 2, "b", None),
        (3, 1 << 40, None, None),
        (4, None, None, None),
    ]
    names = log.table().schema().to_arrow() if kind == "delta" else log.table().schema().as_arrow()
    assert list(pa.schema(names).names) == ["id", "n", *FEED_COLUMNS, "note"]
    with pytest.raises(SchemaChangedError, match="other"):
        Log(kind, tmp_path, "stop").publish(
            [change(5, schema_of({"id": Kind.INT64}, other=Kind.BOOL), other=True)], 6
        )


@pytest.mark.parametrize("kind", KINDS)
def test_partitions_are_the_kind_of_change_and_a_unit_of_the_commit_time(kind: str, tmp_path: Path) -> None:
    log = Log(kind, tmp_path, partition_by=["_change_type", "day(_commit_timestamp)"])
    events = [change(number, before={"id": number, "n": 0}) for number in (1, 86_400)]
    files = log.write(events, 2)
    assert len(log.commit(files, 2)) == 4
    assert sorted(each.records for each in files) == [1, 1, 1, 1]
    log.publish([change(86_401)], 3)
    assert len(log.rows()) == 5


def test_an_entry_that_cannot_partition_a_change_feed_is_refused_at_construction(tmp_path: Path) -> None:
    for entry in ("op", "day(timestamp)", "id"):
        with pytest.raises(UsageError, match=r"_change_type, and by a unit of _commit_timestamp"):
            WriteToDelta(tmp_path / "t", mode="log", layout="table", partition_by=[entry])


def test_statistics_hide_no_row_from_a_filter(tmp_path: Path) -> None:
    log = Log("delta", tmp_path)
    for number in range(2, 8):
        log.publish([change(number, before={"id": number, "n": 0})], number)
    query = QueryBuilder().register("t", log.table())
    entries = [json.loads(line) for file in tmp_path.glob("orders/_delta_log/*.json") for line in file.open()]
    added = [json.loads(each["add"]["stats"]) for each in entries if "add" in each]
    assert {tuple(each["minValues"]) for each in added} == {
        ("_commit_version", "_commit_timestamp", "_change_type", "id", "n")
    }
    for row in log.rows():
        for name in ("_commit_version", "_change_type", "id"):
            where = f"{name} = '{row[name]}'" if isinstance(row[name], str) else f"{name} = {row[name]}"
            assert pa.table(query.execute(f"select id from t where {where}")).num_rows >= 1, where


# --- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_with_other_rows_is_refused_before_the_start_and_before_a_commit(
    kind: str, tmp_path: Path
) -> None:
    events, feed = Log(kind, tmp_path, layout="events"), Log(kind, tmp_path)
    events.publish([change(1)], 2)
    read = ReadTable(SOURCE, Dataset("postgres", "orders", ("id", "n")))
    with pytest.raises(UsageError, match="layout=table.*set the other layout"):
        feed.target.check_tables(lambda: [read])
    with pytest.raises(UsageError, match="orders has other columns than a change feed"):
        feed.publish([change(2)], 3)
    other = tmp_path / "other"
    other.mkdir()
    Log(kind, other).publish([change(1)], 2)
    with pytest.raises(UsageError, match="the columns of a change feed, and the sink has layout=events"):
        Log(kind, other, layout="events").publish([change(2)], 3)
    assert len(events.rows()) == 1


def test_one_table_with_other_rows_is_refused_by_the_check_of_the_sink(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", pa.table({"id": [1]}))
    sink = WriteToDelta(tmp_path / "t", mode="log", layout="table")
    with pytest.raises(UsageError, match="other columns than a change feed"):
        sink.target.check()


@pytest.mark.parametrize("kind", KINDS)
def test_files_of_the_other_layout_in_the_checkpoint_are_refused(kind: str, tmp_path: Path) -> None:
    waiting = Log(kind, tmp_path, layout="events").write([change(1)], 2)
    with pytest.raises(UsageError, match="start the pipeline once with the other layout"):
        Log(kind, tmp_path).commit(waiting, 2)
    made = TableRows(SOURCE, change_rows([change(1)], ROWS))
    with pytest.raises(UsageError, match="start the pipeline once with the other layout"):
        Log(kind, tmp_path).target.plan_files([], "2", [made])


def test_rows_that_parquet_files_have_collected_in_the_other_layout_are_refused() -> None:
    rows = rows_as_records(TableRows(SOURCE, change_rows([change(1)], ROWS)))
    collected = RecordBlock.of([(0, record) for record in rows])
    with pytest.raises(UsageError, match="collected with layout=events"):
        list(ParquetRows("zstd", "table").content([collected]))


def test_a_column_with_a_name_of_the_change_feed_is_refused_before_the_start(tmp_path: Path) -> None:
    taken = Dataset("postgres", "orders", ("id", "_Change_Type"))
    with pytest.raises(UsageError, match="_change_type.*rename"):
        Log("delta", tmp_path).target.check_tables(lambda: [ReadTable(SOURCE, taken)])
    schema = schema_of({"id": Kind.INT64}, _Change_Type=Kind.STRING)
    with pytest.raises(UsageError, match="_change_type.*rename"):
        unfit([event_of(schema, after={"id": 1, "_Change_Type": "x"})], layout="table")


def test_a_change_that_no_row_can_show_goes_to_the_error_output(tmp_path: Path) -> None:
    cells = msgspec.structs.replace(change(1), cells=(CellChange("DELETE_FAMILY", "family"),))
    unknown = msgspec.structs.replace(change(2), after={"id": 2, "n": 2, "other": 1})
    lines = tmp_path / "refused"

    def build(p: beam.Pipeline) -> None:
        sink = WriteToParquet(tmp_path / "lake", layout="table", partition_by="none", roll_seconds=0)
        _, refused = (
            p | beam.Create([cells, unknown, change(3)], reshuffle=False) | sink.with_exception_handling()
        )
        _ = refused | PublishOnDriver(
            lambda found: lines.write_text("\n".join(each.reason for each in found))
        )

    run_stream(build)
    (file,) = tmp_path.glob("lake/public.orders/*.parquet")
    assert pyarrow.parquet.ParquetFile(file).read().column("id").to_pylist() == [3]
    assert "DELETE_FAMILY" in lines.read_text()
    assert "does not know the type of the column other" in lines.read_text()
    with pytest.raises(UnwritableError, match="DELETE_FAMILY"):
        WriteToParquet(tmp_path / "lake", layout="table").preview(cells)


@pytest.mark.parametrize("write", [WriteToDelta, WriteToIceberg], ids=lambda each: each.__name__)
def test_the_layout_is_of_the_mode_log(write: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="layout='table' is for mode='log', and the mode is current"):
        write("shop.t", layout="table")
    with pytest.raises(UsageError, match="layout must be one of events, table"):
        write("shop.t", mode="log", layout="rows")
    with pytest.raises(UsageError, match="layout must be one of events, table"):
        WriteToParquet(tmp_path, layout="rows")


def test_a_comparison_with_files_of_a_change_feed_is_refused() -> None:
    with pytest.raises(UsageError, match="layout=table are not replayed"):
        check_job("postgres", "parquet", {"layout": "table"})


def test_a_preview_has_the_rows_that_are_written(tmp_path: Path) -> None:
    event = change(1, before={"id": 1, "n": 0})
    sinks = [
        WriteToParquet(tmp_path / "files", layout="table"),
        WriteToDelta(tmp_path / "{table}", mode="log", layout="table"),
        WriteToIceberg(
            "shop.{table}", mode="log", layout="table", catalog_properties=Log("iceberg", tmp_path).properties
        ),
    ]
    for sink in sinks:
        shown = [written["row"] for written in sink.preview(event)]
        assert [(row["_change_type"], row["n"]) for row in shown] == [
            ("update_preimage", 0),
            ("update_postimage", 1),
        ]


def change(number: int, schema: Any = ROWS, *, before: Any = None, **values: Any) -> ChangeEvent:
    """Return an update of row `number` at this second; `n` is sent if the schema has it."""
    own = {"n": number} if "n" in schema.names else {}
    after = {"id": number, **own, **values}
    return event_of(schema, before=before, after=after, timestamp=number * 10**9, source=SOURCE)
