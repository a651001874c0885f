"""Changefeed records as events and as lines: versions, sources and keys of order."""

from __future__ import annotations

import json
import pickle
from typing import Any

import msgspec
import pytest

from penstock.event import ChangeEvent, Op
from penstock.io.ydb.record import ChangefeedRecord, Table, TableColumn
from penstock.transforms import ToChangeEvents
from penstock.transforms.formats.ydb_events import EventConverter, table_schema
from penstock.transforms.formats.ydb_lines import changefeed_lines

TABLE = Table(
    "shop/orders",
    "feed",
    "NEW_IMAGE",
    "JSON",
    (TableColumn("id", "Uint64", False), TableColumn("note", "Utf8", True)),
    ("id",),
)


def record(value: Any, offset: int = 3, **more: Any) -> ChangefeedRecord:
    options = {"table": TABLE, "step": 5, "tx_id": 6, "created_at": 70, "written_at": 80, **more}
    return ChangefeedRecord(90, 1, offset, data=json.dumps(value).encode(), **options)


CHANGE = {"key": [1], "update": {}, "newImage": {"note": "x"}, "ts": [5, 6], "user": "root@builtin"}


def one(found: ChangefeedRecord) -> ChangeEvent:
    (event,) = EventConverter("server", "/local")(found)
    return event


def test_an_event_names_its_changefeed_and_has_the_commit_time_not_the_event_time() -> None:
    event = one(record(CHANGE))
    source = event.source
    assert (source.system, source.server, source.database) == ("ydb", "server", "/local")
    assert (source.table, source.stream, source.capture) == ("shop/orders", "feed", "NEW_IMAGE")
    assert (event.timestamp, event.user) == (5_000_000, "root@builtin")


def test_two_changes_of_a_row_in_one_transaction_have_different_versions() -> None:
    first, second = one(record(CHANGE, 9)), one(record(CHANGE, 10))
    assert first.version < second.version
    assert first.transaction == second.transaction


def test_without_virtual_timestamps_versions_follow_the_topic() -> None:
    plain = {name: value for name, value in CHANGE.items() if name != "ts"}
    first, second = (one(record(plain, n, step=0, tx_id=0)) for n in (9, 10))
    assert (first.timestamp, first.version.order) == (70, 80)
    assert first.version < second.version


def test_a_schema_change_keeps_the_number_of_the_schema() -> None:
    changed = {"schemaVersion": 4, "columns": {"id": {"type": "Uint64"}}, "primaryKeyColumnNames": ["id"]}
    event = one(record({"tableChanges": [{"table": changed}], "ts": [5, 6]}))
    assert (event.op, event.version.sequence) == (Op.SCHEMA, f"{4:020d}")


def test_a_row_of_the_scan_is_read_but_an_erase_never_is() -> None:
    assert one(record(CHANGE, is_initial_scan=True)).op is Op.READ
    assert one(record({"key": [1], "erase": {}, "ts": [5, 6]}, is_initial_scan=True)).op is Op.DELETE


def test_a_barrier_and_a_wrong_value_are_refused_without_showing_it() -> None:
    with pytest.raises(ValueError, match="barrier"):
        one(record({"resolved": [5, 6]}))
    with pytest.raises(ValueError, match="column note of shop/orders") as raised:
        one(record({**CHANGE, "newImage": {"note": 4711}}))
    assert "4711" not in str(raised.value)


def test_the_schema_has_the_types_and_the_key_of_the_table() -> None:
    schema = table_schema(TABLE)
    assert [(c.name, c.type.native, c.nullable, c.key_position) for c in schema] == [
        ("id", "Uint64", False, 1),
        ("note", "Utf8", True, None),
    ]


def test_to_change_events_converts_changefeed_records_in_a_worker() -> None:
    transform = pickle.loads(pickle.dumps(ToChangeEvents(database="/local")._process))
    (event,) = transform(record(CHANGE))
    assert event.source.database == "/local"


def test_a_line_has_the_record_as_it_is_and_the_key_as_its_order() -> None:
    (line,) = changefeed_lines(record(CHANGE))
    content = msgspec.json.decode(line.line)
    assert content.pop("record") == CHANGE
    assert content == {
        "commit_timestamp": "1970-01-01T00:00:00.000000090Z",
        "step": 5,
        "tx_id": 6,
        "partition": 1,
        "offset": 3,
        "initial_scan": False,
        "message_key": None,
    }
    assert (line.table, line.key) == ("shop/orders", b"[1]")


@pytest.mark.parametrize(
    ("value", "key", "order"),
    [
        ({"payload": {}}, b'{"payload":{"id":1}}', b'{"payload":{"id":1}}'),
        ({"dynamodb": {"Keys": {"id": {"N": "1"}}}}, b"", b'{"id": {"N": "1"}}'),
        ({"tableChanges": []}, b"", b""),
    ],
)
def test_each_format_has_an_order_key(value: Any, key: bytes, order: bytes) -> None:
    (line,) = changefeed_lines(record(value, key=key, step=0, tx_id=0))
    assert line.key == order
    assert msgspec.json.decode(line.line)["step"] is None
