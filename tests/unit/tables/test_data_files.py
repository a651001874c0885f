"""Change logs as data files: what a task writes, and what the commit makes of it when the table has changed."""

from __future__ import annotations

import datetime
import io
import itertools
import json
import random
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from penstock.errors import UnwritableError, UsageError
from penstock.event import ChangeEvent, ColumnType, Kind, Source
from penstock.event.change_rows import change_row_schema, change_rows
from penstock.event.model import NO_COLUMNS, TableSchema
from penstock.event.schema_changes import SchemaChangedError
from penstock.event.schema_policies import EVOLVE
from penstock.io.columnar.arrow_rows import columns_of_arrow
from penstock.io.columnar.data_files import SHARDS, DataFile, bucket_of_table, manifest
from penstock.io.columnar.log_layout import LOG_LAYOUTS
from penstock.io.columnar.log_shape import fits, fitted, shape_after
from penstock.io.columnar.row_runs import TableRows
from penstock.io.delta.folder import LocalFolder, folder_of
from penstock.io.delta.statistics import statistics_of
from penstock.io.delta.target import DeltaTarget
from penstock.io.staging import Delivery, OutputError, StagedBatch
from tests.unit.formats.events import event_of, schema_of
from tests.unit.tables.test_delta import epoch

pytestmark = pytest.mark.slow

SMALL = schema_of({"id": Kind.INT64}, n=Kind.INT32)
WIDE = schema_of({"id": Kind.INT64}, n=Kind.INT64)
MORE = schema_of({"id": Kind.INT64}, n=Kind.INT32, note=Kind.STRING)
TEXT = schema_of({"id": Kind.INT64}, n=Kind.STRING)
ORDERS = Source("postgresql", "s", "shop", "public", "orders")
_TRIES = itertools.count()


def change(schema: TableSchema, number: int, source: Source = ORDERS, **values: Any) -> ChangeEvent:
    return event_of(schema, after={"id": number, **values}, timestamp=number * 10**9, source=source)


def target(folder: Path, policy: Any = "evolve", uri: str = "t") -> DeltaTarget:
    return DeltaTarget(str(folder / uri), "log", policy)


def write(target: DeltaTarget, events: Sequence[ChangeEvent], number: int) -> list[DataFile]:
    """Do what the tasks of an epoch do, in a new try."""
    planned = target.plan_files(events, f"{number}-{next(_TRIES)}")
    return [target.write_file(part) for each in planned for part in target.divided(each)]


def commit(target: DeltaTarget, files: Sequence[DataFile], number: int) -> list[str]:
    """Do what the driver does after the commit of the epoch; return the files that are committed as they are."""
    content = manifest("", files)
    delivery = Delivery("sink", "job", 0, 1, 1, number)
    return list(target.publish_files(epoch(number), [StagedBatch(delivery, 0, 0, 0, content=content)]))


def rows(folder: Path, columns: str, table: str = "t") -> list[tuple[Any, ...]]:
    """Read the table with an engine that is not the writer, and compare it with delta-rs' own."""
    delta = DeltaTable(folder / table)
    found = duckdb.from_arrow(delta.to_pyarrow_table()).project(columns).order("all").fetchall()
    own = pa.table(QueryBuilder().register("t", delta).execute("select * from t"))
    assert duckdb.from_arrow(own).project(columns).order("all").fetchall() == found
    return found


def test_a_file_has_all_columns_of_its_table_in_their_order(tmp_path: Path) -> None:
    """Some sources name only the columns of a change, so the events of a table have many schemas."""
    log = target(tmp_path)
    commit(log, write(log, [change(MORE, 1, n=1, note="a")], 2), 2)
    other = schema_of({"id": Kind.INT64}, note=Kind.STRING)
    files = write(log, [change(other, 2, note="b")], 3)
    assert [each.name for each in LOG_LAYOUTS["events"].source_columns(files[0].schema)] == [
        "id",
        "n",
        "note",
    ]
    assert commit(log, files, 3) == [files[0].path], "the driver has written the rows again"
    assert rows(tmp_path, "after.n, after.note") == [(1, "a"), (None, "b")]


def test_a_file_with_a_new_column_is_committed_as_it_is(tmp_path: Path) -> None:
    log = target(tmp_path)
    commit(log, write(log, [change(SMALL, 1, n=1)], 2), 2)
    files = write(log, [change(MORE, 2, n=2, note="b")], 3)
    assert commit(log, files, 3) == [files[0].path]
    assert rows(tmp_path, "after.n, after.note") == [(1, None), (2, "b")]


def test_files_of_an_epoch_with_types_that_have_no_common_one_are_decided_at_the_commit(
    tmp_path: Path,
) -> None:
    log = target(tmp_path)
    files = write(log, [change(SMALL, 1, n=1), change(TEXT, 2, n="two")], 2)
    assert len(files) == 2
    with pytest.raises(SchemaChangedError, match="changed from"):
        commit(log, files, 2)
    commit(target(tmp_path, "ignore"), files, 2)
    assert rows(tmp_path, "after.id, after.n") == [(1, 1), (2, None)]


@pytest.mark.parametrize("between", ["another column", "a wider type"])
def test_a_file_that_was_written_before_its_table_changed_is_written_again(
    tmp_path: Path, between: str
) -> None:
    log = target(tmp_path)
    commit(log, write(log, [change(SMALL, 1, n=1)], 2), 2)
    files = write(log, [change(MORE, 2, n=2, note="b")], 4)
    other = schema_of({"id": Kind.INT64}, extra=Kind.BOOL) if between == "another column" else WIDE
    values: Any = {"extra": True} if between == "another column" else {"n": 1 << 40}
    commit(log, write(log, [change(other, 3, **values)], 3), 3)
    assert commit(log, files, 4) == [], "the file does not fit"
    large = [] if between == "another column" else [(3, 1 << 40, None)]
    none = [(3, None, None)] if between == "another column" else []
    assert rows(tmp_path, "after.id, after.n, after.note") == [(1, 1, None), (2, 2, "b"), *large, *none]


def test_the_policy_ignore_leaves_a_column_out_in_the_task_or_at_the_commit(tmp_path: Path) -> None:
    commit(target(tmp_path), write(target(tmp_path), [change(SMALL, 1, n=1)], 2), 2)
    written_before = write(target(tmp_path), [change(MORE, 2, n=2, note="b")], 3)
    ignoring = target(tmp_path, "ignore")
    assert commit(ignoring, written_before, 3) == []
    files = write(ignoring, [change(MORE, 3, n=3, note="c")], 4)
    assert commit(ignoring, files, 4) == [files[0].path]
    assert rows(tmp_path, "after.n") == [(1,), (2,), (3,)]
    assert "note" not in DeltaTable(tmp_path / "t").schema().to_json()


def test_a_value_that_a_narrower_column_cannot_hold_fails_the_publication_and_its_text_is_not_shown(
    tmp_path: Path,
) -> None:
    commit(target(tmp_path), write(target(tmp_path), [change(SMALL, 1, n=1)], 2), 2)
    ignoring = target(tmp_path, "ignore")
    files = write(ignoring, [change(WIDE, 2, n=1 << 40)], 3)
    with pytest.raises(
        UnwritableError, match=r"column n of public\.orders.*schema_changes='evolve'"
    ) as error:
        commit(ignoring, files, 3)
    assert str(1 << 40) not in str(error.value)
    assert commit(target(tmp_path), files, 3) == [files[0].path], "the next start makes the column wider"
    assert rows(tmp_path, "after.n") == [(1,), (1 << 40,)]


def test_a_refused_table_does_not_keep_others_from_their_commit(tmp_path: Path) -> None:
    items = Source("postgresql", "s", "shop", "public", "items")
    stop = DeltaTarget(f"{tmp_path}/{{table}}", "log", "stop")
    commit(stop, write(stop, [change(SMALL, 1, n=1), change(SMALL, 1, items, n=1)], 2), 2)
    files = write(stop, [change(MORE, 2, n=2, note="b"), change(SMALL, 2, items, n=2)], 3)
    with pytest.raises(SchemaChangedError, match=r"public\.orders: .*note.* All other tables"):
        commit(stop, files, 3)
    assert rows(tmp_path, "after.n", "items") == [(1,), (2,)]
    assert rows(tmp_path, "after.n", "orders") == [(1,)]


def test_changes_of_one_table_in_several_databases_are_one_commit(tmp_path: Path) -> None:
    log = target(tmp_path)
    other = Source("postgresql", "s", "shop2", "public", "orders")
    files = write(log, [change(SMALL, 1, n=1), change(SMALL, 2, other, n=2)], 2)
    assert len(commit(log, files, 2)) == 2
    assert rows(tmp_path, "metadata.database, after.n") == [("shop", 1), ("shop2", 2)]


def test_two_tables_of_a_source_in_one_table_are_refused(tmp_path: Path) -> None:
    log = target(tmp_path)
    items = Source("postgresql", "s", "shop", "public", "items")
    with pytest.raises(UsageError, match="placeholder"):
        commit(log, write(log, [change(SMALL, 1, n=1), change(SMALL, 2, items, n=2)], 2), 2)


def test_a_file_that_was_not_divided_and_a_table_with_rules_get_rows_from_delta_rs_itself(
    tmp_path: Path,
) -> None:
    empty = change_rows([], SMALL)
    nullable = pa.schema([field.with_nullable(True) for field in empty.schema]).empty_table()
    log = target(tmp_path)
    files = write(log, [change(SMALL, 1, n=1)], 2)
    write_deltalake(tmp_path / "t", nullable, partition_by=["op"])
    assert commit(log, files, 2) == [], "another program has created the table in the meantime"
    assert rows(tmp_path, "op, after.n") == [("UPDATE", 1)]
    assert [path.name for path in tmp_path.glob("t/op=*")] == ["op=UPDATE"]
    write_deltalake(tmp_path / "ruled", nullable)
    DeltaTable(tmp_path / "ruled").alter.add_constraint({"known": "op <> 'DELETE'"})
    ruled = target(tmp_path, uri="ruled")
    assert commit(ruled, write(ruled, [change(SMALL, 1, n=1)], 2), 2) == []
    assert rows(tmp_path, "after.n", "ruled") == [(1,)]


def test_an_epoch_that_is_committed_again_adds_no_file(tmp_path: Path) -> None:
    log = target(tmp_path)
    files = write(log, [change(SMALL, 1, n=1)], 2)
    assert commit(log, files, 2) == [files[0].path]
    assert commit(log, files, 2) == []
    assert commit(log, write(log, [change(SMALL, 1, n=1)], 2), 2) == [], "another try of the same epoch"
    assert rows(tmp_path, "after.n") == [(1,)]


def test_a_file_that_is_gone_is_not_committed(tmp_path: Path) -> None:
    log = target(tmp_path)
    commit(log, write(log, [change(SMALL, 1, n=1)], 2), 2)
    files = write(log, [change(SMALL, 2, n=2)], 3)
    (tmp_path / "t" / files[0].path).unlink()
    with pytest.raises(OutputError, match="is gone"):
        commit(log, files, 3)
    assert rows(tmp_path, "after.n") == [(1,)]


def test_only_files_that_no_commit_names_are_deleted(tmp_path: Path) -> None:
    log = target(tmp_path)
    (committed,) = write(log, [change(SMALL, 1, n=1)], 2)
    commit(log, [committed], 2)
    (orphan,) = write(log, [change(SMALL, 2, n=2)], 3)
    files = [(each.table, each.path) for each in (committed, orphan)]
    log.delete_unnamed(files)
    log.delete_unnamed(files)
    assert [path.name for path in tmp_path.glob("t/*.parquet")] == [committed.path]
    assert rows(tmp_path, "after.n") == [(1,)]


def test_a_file_that_a_killed_try_has_left_is_replaced(tmp_path: Path) -> None:
    log = target(tmp_path)
    (planned,) = log.plan_files([change(SMALL, 1, n=1)], "2")
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / planned.name).write_bytes(b"half of it")
    commit(log, [log.write_file(planned)], 2)
    assert rows(tmp_path, "after.n") == [(1,)]


def test_rows_in_arrow_and_events_of_a_table_are_one_file_in_the_order_of_versions(tmp_path: Path) -> None:
    log = target(tmp_path)
    changes = [change(SMALL, number, n=number) for number in range(1, 7)]
    made = [
        TableRows(ORDERS, change_rows(changes[4:], SMALL)),
        TableRows(ORDERS, change_rows(changes[1:3], SMALL)),
        TableRows(ORDERS, change_rows([change(MORE, 7, n=7, note="new")], MORE)),
    ]
    first, second = log.plan_files([changes[3], changes[0]], "2", made)
    assert [each.table for each in (first, second)] == [str(tmp_path / "t")] * 2
    files = [log.write_file(each) for each in (first, second)]
    written = pa.parquet.read_table(tmp_path / "t" / first.name)
    assert [row["after"]["n"] for row in written.to_pylist()] == [1, 2, 3, 4, 5, 6]
    assert [each.records for each in files] == [6, 1]
    commit(log, files, 2)
    assert rows(tmp_path, "after.n, after.note") == [*((n, None) for n in range(1, 7)), (7, "new")]


def test_files_that_wait_in_the_checkpoint_are_refused_in_another_mode(tmp_path: Path) -> None:
    files = write(target(tmp_path), [change(SMALL, 1, n=1)], 2)
    with pytest.raises(UsageError, match="once with mode='log'"):
        DeltaTarget(str(tmp_path / "t"), "current", "evolve").publish(
            epoch(2), [StagedBatch(Delivery("sink", "job", 0, 1, 1, 2), 1, 0, 0, content=manifest("", files))]
        )


WIDE_TYPES = schema_of(
    {"id": Kind.INT64},
    amount=ColumnType(Kind.DECIMAL, "numeric(30,4)", 30, 4),
    day=Kind.DATE,
    at=Kind.TIMESTAMP,
    local=Kind.LOCAL_TIMESTAMP,
    raw=Kind.BYTES,
    tags=ColumnType(Kind.ARRAY, element=ColumnType(Kind.STRING)),
    ratio=Kind.FLOAT64,
    some=Kind.BOOL,
)


def test_values_of_every_type_are_read_back(tmp_path: Path) -> None:
    log = target(tmp_path)
    values = {
        "amount": Decimal("12345678901234567890123456.7891"),
        "day": datetime.date(1815, 12, 10).toordinal() - datetime.date(1970, 1, 1).toordinal(),
        "at": 253_402_300_799 * 10**9,
        "local": -(10**15) * 1000,
        "raw": b"\x00\xff",
        "tags": ["a", None],
        "ratio": float("nan"),
        "some": None,
    }
    files = write(log, [change(WIDE_TYPES, 1, **values), change(WIDE_TYPES, 2, amount=None)], 2)
    assert commit(log, files, 2) == [files[0].path]
    delta = DeltaTable(tmp_path / "t")
    expected = change_rows([change(WIDE_TYPES, 1, **values), change(WIDE_TYPES, 2, amount=None)], WIDE_TYPES)
    found = pa.table(QueryBuilder().register("t", delta).execute("select * from t order by timestamp"))
    assert str(found.column("after").to_pylist()) == str(expected.column("after").to_pylist())


@pytest.mark.parametrize("seed", range(3))
def test_statistics_hide_no_row_from_a_filter(tmp_path: Path, seed: int) -> None:
    """Texts are long, missing, or end with the last characters of Unicode; times are before 1970 and after 9999."""
    rng = random.Random(seed)
    schema = schema_of({"id": Kind.INT64}, name=Kind.STRING, at=Kind.TIMESTAMP)
    log, events = target(tmp_path), []
    for number in range(2, 10):
        some = [
            change(
                schema,
                rng.randrange(1, 10**6),
                name=rng.choice([None, "x" * rng.randint(0, 200), "\U0010ffff" * 70, "é" * 65]),
                at=rng.choice([None, rng.randrange(-(10**18), 10**18) * 1000]),
            )
            for _ in range(rng.randint(1, 3))
        ]
        commit(log, write(log, some, number), number)
        events += some
    query = QueryBuilder().register("t", DeltaTable(tmp_path / "t"))
    for each in events:
        row = each.after or {}
        filters = [f"t.key['id'] = {row['id']}", f"t.metadata['order'] = {each.version.order}"]
        filters += [] if row["name"] is None else [f"t.after['name'] = '{row['name']}'"]
        for where in filters:
            assert pa.table(query.execute(f"select op from t where {where}")).num_rows >= 1, where


def statistics(rows: pa.Table) -> dict[str, Any]:
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(rows, buffer)
    found: dict[str, Any] = json.loads(
        statistics_of(pyarrow.parquet.read_metadata(io.BytesIO(buffer.getvalue())), rows.schema)
    )
    return found


def test_statistics_have_bounds_and_nulls_by_column() -> None:
    rows = change_rows([change(MORE, 1, n=None, note="a" * 100), change(MORE, 2, n=7, note="b" * 100)], MORE)
    found = statistics(rows)
    assert found["numRecords"] == 2
    assert found["minValues"]["timestamp"] == "1970-01-01T00:00:01.000Z"
    assert found["maxValues"]["timestamp"] == "1970-01-01T00:00:02.000Z"
    assert found["minValues"]["after"] == {"id": 1, "n": 7, "note": "a" * 64}
    assert found["maxValues"]["after"] == {"id": 2, "n": 7, "note": "b" * 64 + "\U0010ffff"}
    assert found["nullCount"]["after"] == {"id": 0, "n": 1, "note": 0}
    assert found["maxValues"]["metadata"]["order"] == 2 * 10**9
    assert "before" not in found["nullCount"]


def test_statistics_round_times_outwards_and_leave_out_what_a_year_cannot_hold() -> None:
    rows = pa.table({"timestamp": pa.array([-1, 1], pa.timestamp("us", "UTC"))})
    assert statistics(rows)["minValues"] == {"timestamp": "1969-12-31T23:59:59.999Z"}
    assert statistics(rows)["maxValues"] == {"timestamp": "1970-01-01T00:00:00.001Z"}
    far = pa.table({"timestamp": pa.array([1, 10**18], pa.timestamp("us", "UTC"))})
    assert statistics(far)["minValues"] == statistics(far)["maxValues"] == {}


def test_a_column_without_values_or_with_a_very_long_text_has_no_bounds() -> None:
    rows = change_rows([change(MORE, 1, n=None, note="x" * 10_000)], MORE)
    found = statistics(rows)
    assert found["minValues"]["after"] == {"id": 1}
    assert found["nullCount"]["after"] == {"id": 0, "n": 1, "note": 0}


def test_a_table_has_statistics_of_32_columns() -> None:
    many = schema_of({"id": Kind.INT64}, **{f"c{number}": Kind.INT64 for number in range(100)})
    found = statistics(change_rows([change(many, 1, c0=1)], many))
    assert len(found["nullCount"]["after"]) == 32 - 5


def plain(schema: TableSchema) -> TableSchema:
    return columns_of_arrow(change_row_schema(schema))


def test_a_file_fits_if_its_fields_are_the_first_ones_of_the_table_with_equal_types() -> None:
    assert fits(plain(SMALL), plain(SMALL))
    assert fits(plain(SMALL), plain(MORE)), "it is older than the column"
    assert not fits(plain(MORE), plain(SMALL))
    assert not fits(plain(SMALL), plain(WIDE))
    assert not fits(plain(schema_of({"id": Kind.INT64}, note=Kind.STRING)), plain(MORE))
    assert fits(plain(NO_COLUMNS), plain(MORE)), "it has a TRUNCATE only"


def test_the_columns_of_a_table_keep_their_order_and_gain_new_ones_at_the_end() -> None:
    other = schema_of({"id": Kind.INT64}, note=Kind.STRING, n=Kind.INT64)
    shape = shape_after("t", plain(SMALL), [plain(other)], ORDERS, EVOLVE)
    assert [(each.name, each.type.kind) for each in LOG_LAYOUTS["events"].source_columns(shape.columns)] == [
        ("id", Kind.INT64),
        ("n", Kind.INT64),
        ("note", Kind.STRING),
    ]
    assert shape.columns.names == plain(SMALL).names
    rows = fitted(change_rows([change(SMALL, 1, n=1)], SMALL), shape.columns, frozenset(), ORDERS)
    assert columns_of_arrow(rows.schema) == shape.columns
    assert rows.column("after").to_pylist() == [{"id": 1, "n": 1, "note": None}]
    assert rows.column("before").to_pylist() == [None], "an image that is absent stays so"


def test_a_table_that_was_made_for_a_truncate_gains_the_images() -> None:
    shape = shape_after("t", plain(NO_COLUMNS), [plain(SMALL)], ORDERS, EVOLVE)
    assert shape.columns.names == ("op", "timestamp", "metadata", "key", "before", "after")


def test_storage_options_of_a_folder_are_not_shown() -> None:
    assert "hunter2" not in repr(folder_of("s3://bucket/t", {"AWS_SECRET_ACCESS_KEY": "hunter2"}))
    assert isinstance(folder_of("file:///data/t", {}), LocalFolder)


def test_all_changes_of_a_table_are_in_one_shard() -> None:
    """So they are in one commit, even if shards roll at different moments."""
    changes = [change(SMALL, number, n=1) for number in range(50)]
    elsewhere = Source("postgresql", "s", "shop2", "public", "orders")
    assert len({bucket_of_table(each, 0) for each in [*changes, change(SMALL, 1, elsewhere, n=1)]}) == 1
    tables = [Source("postgresql", table=f"t{number}") for number in range(200)]
    assert len({bucket_of_table(change(SMALL, 1, each, n=1), 0) for each in tables}) == SHARDS
