"""The envelope of Debezium's records: its payload, and its schema of Kafka Connect. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.transforms.formats.debezium_source import source_schema
from penstock.transforms.formats.debezium_types import Schema


class Envelope(msgspec.Struct, gc=False):
    """The value of a record in JSON; the fields have the order of the format."""

    before: dict[str, Any] | None
    after: dict[str, Any] | None
    source: Any
    transaction: dict[str, Any] | None
    op: str
    ts_ms: int
    ts_us: int
    ts_ns: int


def envelope_schema(name: str, value_name: str, row: list[Schema], system: str) -> Schema:
    """Return the schema of a table's values. `row` are the fields of the table."""

    def image(field: str) -> Schema:
        return {"type": "struct", "fields": row, "optional": True, "name": value_name, "field": field}

    fields = [
        image("before"),
        image("after"),
        source_schema(system),
        _TRANSACTION_SCHEMA,
        {"type": "string", "optional": False, "field": "op"},
        # Debezium 3 declares all three, the newer units after the old one.
        *({"type": "int64", "optional": True, "field": unit} for unit in ("ts_ms", "ts_us", "ts_ns")),
    ]
    return {"type": "struct", "fields": fields, "optional": False, "name": name, "version": 2}


_TRANSACTION_SCHEMA: Schema = {
    "type": "struct",
    "fields": [
        {"type": "string", "optional": False, "field": "id"},
        {"type": "int64", "optional": False, "field": "total_order"},
        {"type": "int64", "optional": False, "field": "data_collection_order"},
    ],
    "optional": True,
    "name": "event.block",
    "version": 1,
    "field": "transaction",
}

MESSAGE_KEY_SCHEMA: Schema = {
    "type": "struct",
    "fields": [{"type": "string", "optional": True, "field": "prefix"}],
    "optional": False,
    "name": "io.debezium.connector.postgresql.MessageKey",
    "version": 1,
}


def message_schema(system: str, content_schema: Schema) -> Schema:
    """Return the schema of the values of messages. `content_schema`: how their bytes are shown."""
    content = [
        {"type": "string", "optional": True, "field": "prefix"},
        {**content_schema, "optional": True, "field": "content"},
    ]
    message = {
        "type": "struct",
        "fields": content,
        "optional": False,
        "name": "io.debezium.connector.postgresql.Message",
        "version": 1,
        "field": "message",
    }
    fields = [
        {"type": "string", "optional": False, "field": "op"},
        {"type": "int64", "optional": True, "field": "ts_ms"},
        source_schema(system),
        _TRANSACTION_SCHEMA,
        message,
    ]
    name = "io.debezium.connector.postgresql.MessageValue"
    return {"type": "struct", "fields": fields, "optional": False, "name": name, "version": 1}
