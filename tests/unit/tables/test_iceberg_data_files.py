"""Change logs of Iceberg as data files: what a task writes, and what the commit makes of it when the table has changed.

What Delta has too is in `test_data_files.py`.
"""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType, TimestamptzType, UUIDType

from penstock.errors import UnwritableError
from penstock.event import ChangeEvent, ColumnType, Kind, Source, TableSchema
from penstock.event.change_rows import change_row_schema, change_rows
from penstock.event.schema_changes import SchemaChangedError
from penstock.io.columnar.data_files import DataFile, manifest
from penstock.io.columnar.row_runs import TableRows
from penstock.io.delta.target import DeltaTarget
from penstock.io.iceberg.field_ids import field_ids, with_field_ids
from penstock.io.iceberg.target import IcebergTarget
from penstock.io.staging import Delivery, OutputError, StagedBatch
from tests.unit.formats.events import schema_of
from tests.unit.tables import test_data_files as delta
from tests.unit.tables.test_data_files import MORE, ORDERS, SMALL, TEXT, WIDE, WIDE_TYPES, change
from tests.unit.tables.test_delta import epoch

pytestmark = pytest.mark.slow

_TRIES = itertools.count()


class Lake:
    """A catalogue in SQLite with the table `shop.orders`, and the sink of its log."""

    def __init__(self, folder: Path) -> None:
        uri, warehouse = f"sqlite:///{folder}/catalog.db", f"file://{folder}/warehouse"
        self.folder = folder
        self.properties = {"type": "sql", "uri": uri, "warehouse": warehouse}

    def target(self, policy: Any = "evolve") -> IcebergTarget:
        return IcebergTarget("shop.{table}", "test", "log", policy, self.properties)

    def write(self, events: Sequence[ChangeEvent], number: int, policy: Any = "evolve") -> list[DataFile]:
        """Do what the tasks of an epoch do, in a new try."""
        target = self.target(policy)
        planned = target.plan_files(events, f"{number}-{next(_TRIES)}")
        return [target.write_file(part) for each in planned for part in target.divided(each)]

    def commit(self, files: Sequence[DataFile], number: int, policy: Any = "evolve") -> list[str]:
        """Do what the driver does after the commit of the epoch; return the files that are committed as they are."""
        delivery = Delivery("sink", "job", 0, 1, 1, number)
        batch = StagedBatch(delivery, 0, 0, 0, content=manifest("", files))
        return list(self.target(policy).publish_files(epoch(number), [batch]))

    def publish(self, events: Sequence[ChangeEvent], number: int) -> list[str]:
        return self.commit(self.write(events, number), number)

    @property
    def catalog(self) -> Any:
        return load_catalog("test", **self.properties)

    @property
    def table(self) -> Any:
        return self.catalog.load_table("shop.orders")

    def rows(self, columns: str) -> list[tuple[Any, ...]]:
        return duckdb.from_arrow(self.table.scan().to_arrow()).project(columns).order("all").fetchall()

    def files(self) -> set[str]:
        return {path.name for path in self.folder.rglob("*.parquet")}

    def make(self, schema: Any, **more: Any) -> None:
        """Make the table as another program does."""
        self.catalog.create_namespace("shop")
        self.catalog.create_table("shop.orders", schema, **more)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def nullable(schema: TableSchema) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in change_row_schema(schema)])


def test_the_file_of_a_task_is_in_the_folder_of_the_table_and_no_reader_sees_it_before_the_commit(
    lake: Lake,
) -> None:
    files = lake.write([change(SMALL, 1, n=1)], 2)
    assert [each.path for each in files] == [f"{lake.table.location()}/data/{name}" for name in lake.files()]
    assert lake.rows("op") == []
    assert lake.commit(files, 2) == [files[0].path]
    assert lake.rows("after.n") == [(1,)]


def test_the_fields_of_a_file_have_the_ids_of_the_table(lake: Lake) -> None:
    """So a column that is renamed keeps its values, as engines expect."""
    (file,) = lake.write([change(MORE, 1, n=1, note="a")], 2)
    written = pyarrow.parquet.read_schema(file.path.removeprefix("file://"))
    expected = with_field_ids(change_row_schema(MORE), lake.table.schema())
    assert expected is not None
    assert field_ids(written) == field_ids(expected)
    lake.commit([file], 2)
    with lake.table.update_schema() as update:
        update.rename_column(("after", "note"), "remark")
    assert lake.rows("after.remark") == [("a",)]


def test_the_file_with_a_new_column_is_committed_as_it_is(lake: Lake) -> None:
    lake.publish([change(SMALL, 1, n=1)], 2)
    files = lake.write([change(MORE, 2, n=2, note="b")], 3)
    assert lake.commit(files, 3) == [files[0].path]
    assert lake.rows("after.n, after.note") == [(1, None), (2, "b")]


def test_another_column_that_got_the_id_first_is_not_read_as_the_column_of_the_file(lake: Lake) -> None:
    lake.publish([change(SMALL, 1, n=1)], 2)
    files = lake.write([change(MORE, 2, n=2, note="b")], 3)
    for image in ("before", "after"):
        with lake.table.update_schema() as update:
            update.add_column((image, "city"), StringType())
    for image in ("before", "after"):
        with lake.table.update_schema() as update:
            update.add_column((image, "note"), StringType())
    assert lake.commit(files, 3) == [], "the driver writes the rows again"
    assert lake.rows("after.n, after.city, after.note") == [(1, None, None), (2, None, "b")]


def test_a_column_that_was_removed_and_added_again_does_not_get_the_values_of_the_old_one(lake: Lake) -> None:
    lake.publish([change(MORE, 1, n=1, note="a")], 2)
    files = lake.write([change(MORE, 2, n=2, note="b")], 3)
    for image in ("before", "after"):
        with lake.table.update_schema(allow_incompatible_changes=True) as update:
            update.delete_column((image, "note"))
        with lake.table.update_schema() as update:
            update.add_column((image, "note"), StringType())
    assert lake.commit(files, 3) == []
    assert lake.rows("after.n, after.note") == [(1, None), (2, "b")]


def test_files_of_a_table_that_was_made_again_are_not_named_by_the_new_one(lake: Lake) -> None:
    lake.publish([change(SMALL, 1, n=1)], 2)
    files = lake.write([change(SMALL, 2, n=2)], 3)
    lake.catalog.drop_table("shop.orders")
    lake.catalog.create_table("shop.orders", nullable(SMALL), location=f"file://{lake.folder}/elsewhere")
    assert lake.commit(files, 3) == []
    assert lake.rows("after.n") == [(2,)]
    assert all(
        task.file.file_path.startswith(lake.table.location()) for task in lake.table.scan().plan_files()
    )


def test_columns_of_all_files_of_a_batch_are_in_a_table_that_a_task_creates(lake: Lake) -> None:
    """Else the policy, which is about tables that exist, would refuse the second file of a new table."""
    target = lake.target("stop")
    made = [
        TableRows(ORDERS, change_rows([change(SMALL, 1, n=1)], SMALL)),
        TableRows(ORDERS, change_rows([change(MORE, 2, n=2, note="b")], MORE)),
    ]
    files = [target.write_file(each) for each in target.plan_files([], "2", made)]
    assert len(files) == 2
    assert len(lake.commit(files, 2, "stop")) == 2
    assert lake.rows("after.n, after.note") == [(1, None), (2, "b")]


def test_files_with_types_that_have_no_common_one_are_decided_at_the_commit(lake: Lake) -> None:
    files = lake.write([change(SMALL, 1, n=1), change(TEXT, 2, n="two")], 2)
    with pytest.raises(SchemaChangedError, match="changed from"):
        lake.commit(files, 2)
    lake.commit(files, 2, "ignore")
    assert lake.rows("after.id, after.n") == [(1, 1), (2, None)]


@pytest.mark.parametrize("between", ["another column", "a wider type"])
def test_a_file_that_was_written_before_its_table_changed_is_written_again(lake: Lake, between: str) -> None:
    lake.publish([change(SMALL, 1, n=1)], 2)
    files = lake.write([change(MORE, 2, n=2, note="b")], 4)
    other = schema_of({"id": Kind.INT64}, extra=Kind.BOOL) if between == "another column" else WIDE
    values: Any = {"extra": True} if between == "another column" else {"n": 1 << 40}
    lake.publish([change(other, 3, **values)], 3)
    assert lake.commit(files, 4) == [], "the file does not fit"
    large = [] if between == "another column" else [(3, 1 << 40, None)]
    none = [(3, None, None)] if between == "another column" else []
    assert lake.rows("after.id, after.n, after.note") == [(1, 1, None), (2, 2, "b"), *large, *none]


def test_a_wider_type_is_a_type_of_iceberg_or_an_error_that_names_the_remedy(lake: Lake) -> None:
    double = schema_of({"id": Kind.INT64}, n=Kind.FLOAT64)
    lake.publish([change(SMALL, 1, n=1)], 2)
    files = lake.write([change(double, 2, n=0.5)], 3)
    with pytest.raises(SchemaChangedError, match=r"before\.n.*schema_changes='ignore'"):
        lake.commit(files, 3)
    lake.publish([change(WIDE, 3, n=1 << 40)], 4)
    assert lake.rows("after.n") == [(1,), (1 << 40,)]


def test_the_policy_ignore_leaves_a_column_out_in_the_task_or_at_the_commit(lake: Lake) -> None:
    lake.publish([change(SMALL, 1, n=1)], 2)
    written_before = lake.write([change(MORE, 2, n=2, note="b")], 3)
    assert lake.commit(written_before, 3, "ignore") == []
    files = lake.write([change(MORE, 3, n=3, note="c")], 4, "ignore")
    assert lake.commit(files, 4, "ignore") == [files[0].path]
    assert lake.rows("after.n") == [(1,), (2,), (3,)]
    assert "note" not in str(lake.table.schema())


def test_a_value_that_a_narrower_column_cannot_hold_fails_the_publication(lake: Lake) -> None:
    lake.publish([change(SMALL, 1, n=1)], 2)
    files = lake.write([change(WIDE, 2, n=1 << 40)], 3, "ignore")
    with pytest.raises(UnwritableError, match=r"column n of public\.orders.*schema_changes='evolve'"):
        lake.commit(files, 3, "ignore")
    assert lake.commit(files, 3) == [files[0].path], "the next start makes the column wider"


def test_a_file_that_was_not_divided_is_written_again(lake: Lake) -> None:
    schema = Schema(NestedField(1, "op", StringType(), required=False))
    lake.make(schema)
    files = lake.write([change(SMALL, 1, n=1)], 2)
    with lake.table.update_spec() as update:
        update.add_identity("op")
    assert lake.commit(files, 2) == [], "another program has given the table partitions in the meantime"
    assert lake.rows("op, after.n") == [("UPDATE", 1)]
    assert [task.file.partition[0] for task in lake.table.scan().plan_files()] == ["UPDATE"]


def test_a_table_with_columns_that_are_required_gets_rows_from_pyiceberg_itself(lake: Lake) -> None:
    lake.make(
        Schema(
            NestedField(1, "op", StringType(), required=True),
            NestedField(2, "timestamp", TimestamptzType(), required=True),
        )
    )
    assert lake.publish([change(SMALL, 1, n=1)], 2) == []
    assert lake.rows("op, after.n") == [("UPDATE", 1)]
    assert lake.table.schema().find_field("op").required, "an alteration leaves that as it is"


def test_a_type_of_another_program_is_not_taken_for_a_text() -> None:
    """An UUID is a text in the event model, and another form in Parquet."""
    held = Schema(NestedField(1, "op", UUIDType(), required=False))
    assert with_field_ids(pa.schema([("op", pa.string())]), held) is None
    assert with_field_ids(pa.schema([("other", pa.string())]), held) is None


def test_an_epoch_that_is_committed_again_adds_no_file(lake: Lake) -> None:
    files = lake.write([change(SMALL, 1, n=1)], 2)
    assert lake.commit(files, 2) == [files[0].path]
    assert lake.commit(files, 2) == []
    assert lake.publish([change(SMALL, 1, n=1)], 2) == [], "another try of the same epoch"
    assert lake.rows("after.n") == [(1,)]


def test_the_names_of_files_and_the_ledger_are_one_commit(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = lake.write([change(SMALL, 1, n=1)], 2)
    commits: list[Any] = []
    commit = SqlCatalog.commit_table

    def counted(*arguments: Any) -> Any:
        commits.append(arguments)
        return commit(*arguments)

    monkeypatch.setattr(SqlCatalog, "commit_table", counted)
    lake.commit(files, 2)
    assert len(commits) == 1
    assert lake.table.properties["penstock.sink.sink/job"].startswith("1:2:")


def test_a_file_that_is_gone_is_not_committed(lake: Lake) -> None:
    lake.publish([change(SMALL, 1, n=1)], 2)
    files = lake.write([change(SMALL, 2, n=2)], 3)
    Path(files[0].path.removeprefix("file://")).unlink()
    with pytest.raises(OutputError, match="is gone"):
        lake.commit(files, 3)
    assert lake.rows("after.n") == [(1,)]


def test_only_files_that_no_commit_names_are_deleted(lake: Lake) -> None:
    target = lake.target()
    planned = [target.plan_files([change(SMALL, number, n=1)], str(number)) for number in (1, 2)]
    (committed, orphan) = [target.write_file(each) for (each,) in planned]
    lake.commit([committed], 2)
    names = [(each.table, each.name) for (each,) in planned] + [("shop.no_table", "penstock-1.parquet")]
    target.delete_unnamed(names)
    target.delete_unnamed(names)
    assert lake.files() == {planned[0][0].name}
    assert orphan.path.endswith(planned[1][0].name)
    assert lake.rows("after.n") == [(1,)]


def test_a_table_has_its_files_where_its_properties_say(lake: Lake) -> None:
    place = f"file://{lake.folder}/other/place"
    lake.make(nullable(SMALL), properties={"write.data.path": place, "write.object-storage.enabled": "true"})
    (file,) = lake.write([change(SMALL, 1, n=1)], 2)
    assert file.path.startswith(place)
    assert len(file.path.removeprefix(place).split("/")) > 4, "spread over folders"
    assert lake.commit([file], 2) == [file.path]
    assert lake.rows("after.n") == [(1,)]


def test_tables_of_one_name_in_two_catalogues_are_two_tables(tmp_path: Path) -> None:
    lakes = [Lake(tmp_path / name) for name in ("one", "two")]
    for lake in lakes:
        lake.folder.mkdir()
        assert len(lake.publish([change(SMALL, 1, n=1)], 2)) == 1
        assert len(lake.publish([change(SMALL, 2, n=2)], 3)) == 1
        assert len(lake.files()) == 2
        assert lake.rows("after.n") == [(1,), (2,)]


def test_values_of_every_type_are_read_back_and_are_those_of_delta(lake: Lake) -> None:
    schema = TableSchema((*WIDE_TYPES, *schema_of({}, small=ColumnType(Kind.DECIMAL, "numeric(9,2)", 9, 2))))
    values = {
        "amount": Decimal("12345678901234567890123456.7891"),
        "day": datetime.date(1815, 12, 10).toordinal() - datetime.date(1970, 1, 1).toordinal(),
        "at": 253_402_300_799 * 10**9,
        "local": -(10**15) * 1000,
        "raw": b"\x00\xff",
        "tags": ["a", None],
        "ratio": 0.1,
        "some": None,
        "small": Decimal("-1.05"),
    }
    events = [change(schema, 1, **values), change(schema, 2, amount=None)]
    files = lake.write(events, 2)
    assert lake.commit(files, 2) == [files[0].path]
    log = DeltaTarget(str(lake.folder / "t"), "log", "evolve")
    delta.commit(log, delta.write(log, events, 2), 2)
    columns = "op, timestamp, key, after, metadata"
    assert str(lake.rows(columns)) == str(delta.rows(lake.folder, columns))


def test_statistics_are_those_of_pyiceberg(lake: Lake) -> None:
    events = [change(SMALL, number, n=number) for number in range(1, 4)]
    lake.publish(events, 2)
    (ours,) = [task.file for task in lake.table.scan().plan_files()]
    lake.table.append(lake.table.scan().to_arrow())
    (theirs,) = [
        task.file for task in lake.table.scan().plan_files() if task.file.file_path != ours.file_path
    ]
    for name in ("record_count", "value_counts", "null_value_counts", "lower_bounds", "upper_bounds"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.column_sizes.keys() == theirs.column_sizes.keys()
    late = f"timestamp >= '{datetime.datetime.fromtimestamp(1000, datetime.timezone.utc).isoformat()}'"
    assert list(lake.table.scan(row_filter=late).plan_files()) == []


def test_credentials_of_files_are_not_shown(lake: Lake) -> None:
    lake.publish([change(SMALL, 1, n=1)], 2)
    secret = {**lake.properties, "s3.secret-access-key": "hunter2"}
    target = IcebergTarget("shop.{table}", "test", "log", "evolve", secret)
    assert "hunter2" not in repr(target._files("shop.orders", target._open("shop.orders")))


def test_two_sources_of_one_table_in_several_databases_are_one_commit(lake: Lake) -> None:
    other = Source("postgresql", "s", "shop2", "public", "orders")
    files = lake.write([change(SMALL, 1, n=1), change(SMALL, 2, other, n=2)], 2)
    assert len(lake.commit(files, 2)) == 2
    assert lake.rows("metadata.database, after.n") == [("shop", 1), ("shop2", 2)]
