"""SCHEMA events: which changes add one, what it has, and where it goes."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from penstock.event import ChangeEvent, Column, ColumnType, Kind, Op, Source, TableSchema, Version
from penstock.event.coder import decode_event, encode_event
from penstock.event.schema_events import KnownColumns, note_columns, schema_events
from penstock.event.sharding import shard_of
from penstock.io.staging.formatted_event import SCHEMA_HEADER
from penstock.transforms import ChangeFeedFormat, EventFormat, EventParser
from penstock.transforms.formats.converter import JsonConverter

POSTGRES = Source("postgresql", "", "shop", "public", "orders", "all", "DEFAULT")
WHOLE = Source("spanner", "p/i", "shop", "", "Orders", "All", "NEW_ROW")
INT, WIDE = ColumnType(Kind.INT32, "integer"), ColumnType(Kind.INT64, "bigint")


def schema(**columns: ColumnType) -> TableSchema:
    """Return columns after the key `id`."""
    return TableSchema(
        (
            Column("id", INT, False, 1),
            *(Column(name, type_, True) for name, type_ in columns.items()),
        )
    )


OLD, NEW = schema(a=INT), schema(a=INT, b=WIDE)


def event(version: int, of: TableSchema = OLD, op: Op = Op.UPDATE, source: Source = POSTGRES) -> ChangeEvent:
    row = None if op in (Op.MESSAGE, Op.TRUNCATE) else {"id": 1}
    return ChangeEvent(source, op, version * 1_000_000, row, None, row, Version(version), of)


def changes(*events: ChangeEvent) -> list[tuple[int, tuple[str, ...] | None, tuple[str, ...]]]:
    """Return of each SCHEMA event the version of the change that it precedes, and the names before and after."""
    known, found = None, []
    for each in events:
        known, change = note_columns(known, each)
        if change is not None:
            before = None if change.before is None else tuple(column.name for column in change.before)
            found.append((each.version.order, before, each.schema.names))
    return found


def test_the_first_change_and_each_one_with_other_columns_add_an_event() -> None:
    assert changes(event(1), event(2), event(3, NEW), event(4, NEW), event(5)) == [
        (1, None, ("id", "a")),
        (3, ("id", "a"), ("id", "a", "b")),
        (5, ("id", "a", "b"), ("id", "a")),
    ]


@pytest.mark.parametrize(
    "other",
    [schema(a=WIDE), schema(x=INT), TableSchema((OLD.columns[0], Column("a", INT, True, 2)))],
    ids=["type", "name", "key"],
)
def test_another_type_name_or_key_is_a_change(other: TableSchema) -> None:
    assert len(changes(event(1), event(2, other))) == 2


def test_defaults_and_not_null_are_no_change() -> None:
    other = TableSchema((OLD.columns[0], Column("a", INT, False, None, "7", 2)))
    assert len(changes(event(1), event(2, other))) == 1


def test_an_older_change_says_nothing_also_if_columns_come_back() -> None:
    assert len(changes(event(3, NEW), event(2))) == 1
    assert len(changes(event(1), event(9), event(5, NEW))) == 1, "the newest columns are of version 9"


def test_the_same_change_again_adds_nothing() -> None:
    assert len(changes(event(1), event(2, NEW), event(1), event(2, NEW))) == 2


def test_rows_of_snapshots_and_messages_add_nothing() -> None:
    assert changes(event(1, op=Op.READ), event(2, TableSchema(()), Op.MESSAGE)) == []
    assert len(changes(event(1, op=Op.TRUNCATE))) == 1


def test_a_record_of_spanner_without_whole_rows_adds_nothing() -> None:
    partial = msgspec.structs.replace(WHOLE, capture="NEW_VALUES")
    assert changes(event(1, source=partial)) == []
    assert changes(event(1, op=Op.DELETE, source=WHOLE)) == [], "a deletion may have the key only"
    assert len(changes(event(1, op=Op.CREATE, source=WHOLE), event(2, NEW, source=WHOLE))) == 2


def copies(shards: int = 1) -> list[ChangeEvent]:
    """Return the SCHEMA event of the change from `OLD` to `NEW`."""
    known, _ = note_columns(None, event(1))
    _, change = note_columns(known, event(2, NEW))
    assert change is not None
    return list(schema_events(event(2, NEW), change, shards))


def test_each_shard_gets_a_copy_with_one_id_which_no_row_has() -> None:
    found = copies(3)
    assert [shard_of(each, 3) for each in found] == [0, 1, 2]
    (id_,) = {each.id for each in found}
    assert id_ != event(2, NEW).id
    assert {(each.op, each.version, each.key) for each in found} == {(Op.SCHEMA, Version(2), None)}


def test_an_event_and_the_known_columns_survive_their_coders() -> None:
    (found,) = copies()
    assert decode_event(encode_event(found)) == found
    known, _ = note_columns(None, event(1))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(known), type=KnownColumns) == known


COLUMNS_BEFORE: list[dict[str, Any]] = [
    {"name": "id", "type": "INT32", "native_type": "integer", "key_position": 1},
    {"name": "a", "type": "INT32", "native_type": "integer", "key_position": None},
]
COLUMNS = [*COLUMNS_BEFORE, {"name": "b", "type": "INT64", "native_type": "bigint", "key_position": None}]


def test_the_record_of_a_change_feed() -> None:
    (record,) = ChangeFeedFormat()(copies()[0])
    assert (record.topic, record.key, record.headers) == ("public.orders", None, ((SCHEMA_HEADER, b"true"),))
    assert json.loads(record.value or b"") == {
        "_change_type": "schema",
        "_commit_version": "000000000000000000000002   0000000000",
        "_commit_timestamp": "1970-01-01T00:00:00.002000Z",
        "_not_sent": [],
        "_table": "public.orders",
        "_columns": COLUMNS,
        "_columns_before": COLUMNS_BEFORE,
    }


def test_the_record_of_an_envelope_is_read_back() -> None:
    (found,) = copies()
    (record,) = EventFormat("srv")(found)
    value = json.loads(record.value or b"")
    assert (value["op"], value["columns"], value["columns_before"]) == ("SCHEMA", COLUMNS, COLUMNS_BEFORE)
    assert (record.key, record.headers) == (None, ((SCHEMA_HEADER, b"true"),))
    assert EventParser()(record.value or b"") == msgspec.structs.replace(
        found, schema=TableSchema(tuple(Column(c.name, c.type, key_position=c.key_position) for c in NEW))
    )
    (row,) = EventFormat("srv")(event(2, NEW))
    assert "columns" not in json.loads(row.value or b"")


def test_a_record_with_its_schema_has_no_schema_events() -> None:
    assert EventFormat("srv").has_schema_events
    assert not EventFormat("srv", converter=JsonConverter(schemas_enable=True)).has_schema_events
