"""Events as rows of a data source: the change feed of one table, and the rows of `WriteToSpark`."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest

from penstock.errors import UsageError
from penstock.event.change_feed import change_feed_schema
from penstock.event.column_types import ColumnType, Kind
from penstock.event.model import ChangeEvent, Column, Image, Op, Source, TableSchema, Version
from penstock.io.spark.json_rows import json_schema
from penstock.spark.rows import BATCH_EVENTS, batches

TABLE = TableSchema(
    (
        Column("Id", ColumnType(Kind.INT64), None, 1),
        Column("Value", ColumnType(Kind.STRING)),
        Column("Count", ColumnType(Kind.INT16)),
    )
)
SHAPE = change_feed_schema(TABLE, "T")
SECOND = 1_000_000_000


def event(
    op: Op,
    *,
    before: Image | None = None,
    after: Image | None = None,
    order: int = 5 * SECOND,
    index: int = 0,
) -> ChangeEvent:
    key = {"Id": 1} if op is not Op.TRUNCATE else None
    return ChangeEvent(
        Source("spanner", table="T"), op, order, key, before, after, Version(order, "t", "00", index), TABLE
    )


def rows(*events: ChangeEvent, shape: pa.Schema = SHAPE) -> list[dict[str, Any]]:
    return [row for batch in batches([events], shape) for row in batch.to_pylist()]


WHOLE = {"Id": 1, "Value": "a", "Count": 7}


def test_an_insert_and_a_row_of_a_snapshot_are_inserts() -> None:
    for op in (Op.CREATE, Op.READ):
        (row,) = rows(event(op, after=WHOLE))
        assert row["_change_type"] == "insert"
        assert (row["Id"], row["Value"], row["Count"], row["_not_sent"]) == (1, "a", 7, [])


def test_an_update_is_its_row_before_and_its_row_after_with_one_version() -> None:
    before, after = rows(event(Op.UPDATE, before={"Id": 1, "Value": "a"}, after={**WHOLE, "Value": "b"}))
    assert (before["_change_type"], before["Value"]) == ("update_preimage", "a")
    assert (after["_change_type"], after["Value"]) == ("update_postimage", "b")
    assert before["_commit_version"] == after["_commit_version"]


def test_an_update_without_old_values_has_no_preimage() -> None:
    assert [row["_change_type"] for row in rows(event(Op.UPDATE, after=WHOLE))] == ["update_postimage"]


def test_null_and_not_sent_stay_apart() -> None:
    before, after = rows(event(Op.UPDATE, before={"Id": 1, "Value": None}, after={"Id": 1, "Value": "b"}))
    assert (before["Value"], before["Count"], before["_not_sent"]) == (None, None, ["Count"])
    assert after["_not_sent"] == ["Count"]


def test_a_delete_has_the_row_before_it_or_its_key() -> None:
    (whole,) = rows(event(Op.DELETE, before=WHOLE))
    (key,) = rows(event(Op.DELETE))
    assert (whole["_change_type"], whole["Value"]) == ("delete", "a")
    assert (key["Id"], key["Value"], key["_not_sent"]) == (1, None, ["Value", "Count"])


def test_a_truncate_is_one_row_without_values() -> None:
    (row,) = rows(event(Op.TRUNCATE))
    assert (row["_change_type"], row["Id"], row["_not_sent"]) == ("truncate", None, [])


def test_messages_are_no_rows_of_a_table() -> None:
    assert rows(event(Op.MESSAGE)) == []


def test_versions_sort_as_the_changes_do() -> None:
    found = rows(*(event(Op.CREATE, after=WHOLE, order=order, index=i) for order in (9, 10) for i in (2, 11)))
    versions = [row["_commit_version"] for row in found]
    assert versions == sorted(versions)


def test_the_commit_timestamp_is_in_microseconds() -> None:
    (batch,) = batches([[event(Op.CREATE, after=WHOLE, order=1_000_001_999)]], SHAPE)
    assert batch.column("_commit_timestamp").cast(pa.int64()).to_pylist() == [1_000_001]


def test_a_column_that_was_added_later_stops_the_query_and_names_the_fix() -> None:
    added = TableSchema((*TABLE.columns, Column("New", ColumnType(Kind.STRING))))
    change = ChangeEvent(
        Source("spanner", table="T"),
        Op.CREATE,
        1,
        {"Id": 1},
        None,
        {**WHOLE, "New": "secret"},
        Version(1),
        added,
    )
    with pytest.raises(
        UsageError,
        match="column New, which the DataFrame does not have.*start the query again.*schema_changes=ignore",
    ) as e:
        rows(change)
    assert "secret" not in str(e.value)


def test_a_backlog_with_a_column_that_was_dropped_is_read_if_the_option_says_so() -> None:
    """A query begins with the columns of now, and changes from before a DROP COLUMN have more."""
    before = TableSchema((*TABLE.columns, Column("Gone", ColumnType(Kind.STRING))))
    old = msgspec.structs.replace(event(Op.CREATE, after={**WHOLE, "Gone": "x"}), schema=before)
    (batch,) = batches([[old, event(Op.UPDATE, after=WHOLE)]], SHAPE, leaves_out=True)
    assert [{name: row[name] for name in WHOLE} for row in batch.to_pylist()] == [WHOLE, WHOLE]
    assert batch.schema == SHAPE


def test_a_table_with_a_column_of_the_change_feed_is_refused() -> None:
    with pytest.raises(UsageError, match="has the column _change_type"):
        change_feed_schema(TableSchema((Column("_Change_Type", ColumnType(Kind.STRING)),)), "T")


def test_without_a_table_rows_are_as_write_to_spark_has_them() -> None:
    (row,) = rows(event(Op.CREATE, after=WHOLE), shape=json_schema())
    assert (row["op"], row["before"]) == ("CREATE", None)
    assert row["after"] == '{"Id":1,"Value":"a","Count":7}'
    assert row["metadata"]["table"] == "T"


def test_batches_have_a_bounded_size_and_keep_the_order() -> None:
    events = [event(Op.CREATE, after=WHOLE, order=number) for number in range(BATCH_EVENTS + 1)]
    found = list(batches([events[:10], events[10:]], SHAPE))
    assert [batch.num_rows for batch in found] == [BATCH_EVENTS, 1]
    assert [batch.schema for batch in found] == [SHAPE, SHAPE]
    versions = [text for batch in found for text in batch.column("_commit_version").to_pylist()]
    assert versions == sorted(versions)
