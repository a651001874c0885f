"""Events as they are, with all their parts, in JSON, Avro or Protobuf. Pure.

    records = events | FormatEvents(EventFormat("shop", converter=AvroConverter(registry)))

`penstock.transforms.parsers.EventParser` reads them back.

For consumers that need what Debezium's envelope has no place for: the version, the transaction, the entries of a
Bigtable change, and which columns were not sent. The value of a record:

| field | content |
|---|---|
| `source`, `version`, `transaction`, `message`, `cells`, `user`, `op` | the parts of `ChangeEvent`, with its names |
| `timestamp` | nanoseconds since 1970 |
| `key`, `before`, `after` | the columns of the table, in the types of Debezium; null if the event has no such image |
| `before_unavailable`, `after_unavailable` | columns that are null in the image because they were not sent |

The record of a SCHEMA event of `AddSchemaEvents` also has `columns` and `columns_before`, in JSON without schemas only:
other records have their columns in their schemas.

The topic is ``<server>.<schema>.<table>``. The key of a record is the primary key. A DELETE has no tombstone.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from penstock.event import (
    CellChange,
    ChangeEvent,
    Column,
    Image,
    SchemaChange,
    Source,
    TableSchema,
)
from penstock.event.schema_events import described_columns
from penstock.transforms.formats.converter import Converter, JsonConverter, encoding_of
from penstock.transforms.formats.debezium_types import Mapping, Schema, TypeModes, field_schema, mapping
from penstock.transforms.formats.formatted import SCHEMA_HEADERS, Encoding, FormattedRecord, Headers
from penstock.transforms.formats.table_format import TableFormat

_MODES = TypeModes(time_precision_mode="nanoseconds", interval_handling_mode="string")
_Raws = dict[str, msgspec.Raw]


class EventFormat(TableFormat["_Table"]):
    """Formats events with all their parts.

    Args:
        server: The first part of topics and of the names of schemas.
        converter: What writes Avro or Protobuf instead of JSON.
        key_converter: The same for keys only. Default: `converter`.
    """

    def __init__(
        self, server: str, *, converter: Converter | None = None, key_converter: Converter | None = None
    ) -> None:
        super().__init__()
        self._server = server
        self._converter = converter or JsonConverter()
        self._key_converter = key_converter or self._converter

    @property
    def key_encoding(self) -> Encoding:
        """JSON, or the binary form of a converter."""
        return encoding_of(self._key_converter)

    @property
    def has_schema_events(self) -> bool:
        """Whether SCHEMA events of `AddSchemaEvents` become records with their columns."""
        return self._converter.as_json and not self._converter.embeds_schema

    @property
    def value_encoding(self) -> Encoding:
        """JSON, or the binary form of a converter."""
        return encoding_of(self._converter)

    def check(self) -> None:
        """Check before the pipeline starts that the schema registry, if there is one, answers.

        Raises:
            UsageError: a secret of the registry cannot be read.
            SchemaRegistryError: the registry does not answer, or denies access.
        """
        self._key_converter.check()
        self._converter.check()

    def __call__(self, event: ChangeEvent) -> list[FormattedRecord]:
        """Return the record of an event.

        Raises:
            ValueError: a value that its type in Kafka Connect cannot hold; the message names the column.
        """
        table = self._plan(event)
        # The images have null for NULL and for a column that was not sent. The two lists tell these apart.
        payload = {
            "source": _as_dict(event.source),
            "op": str(event.op),
            "timestamp": event.timestamp,
            "key": table.image(event.key, table.key_names),
            "before": table.image(event.before, table.names),
            "after": table.image(event.after, table.names),
            "before_unavailable": table.unavailable(event.before),
            "after_unavailable": table.unavailable(event.after),
            "version": _as_dict(event.version),
            "transaction": None if event.transaction is None else _as_dict(event.transaction),
            "message": None if event.message is None else _as_dict(event.message),
            "cells": [_cell(cell) for cell in event.cells],
            "user": event.user,
        }
        headers: Headers = ()
        if event.schema_change is not None:
            payload |= _schema_parts(event.schema, event.schema_change)
            headers = SCHEMA_HEADERS
        key = None if event.key is None else table.encode_key(payload["key"])
        return [
            FormattedRecord(
                table.topic, key, table.encode_value(payload), event.timestamp, event.version, headers
            )
        ]

    def topic_of(self, source: Source) -> str:
        """Return the topic of the records of a table."""
        return ".".join(_parts(source, self._server))

    def _make_plan(self, source: Source, schema: TableSchema) -> _Table:
        return _Table(self._server, source, schema, self._converter, self._key_converter)


def _parts(source: Source, server: str) -> list[str]:
    return [part for part in (server, source.schema, source.table) if part]


class _Table:
    """The parts that are equal for all events of one table with one schema."""

    def __init__(
        self,
        server: str,
        source: Source,
        schema: TableSchema,
        converter: Converter,
        key_converter: Converter,
    ) -> None:
        parts = _parts(source, server)
        self.topic = ".".join(parts)
        self.names = schema.names
        self.key_names = tuple(column.name for column in schema.key_columns)
        shown = column_mappings(schema, converter.as_json, converter.embeds_schema)
        self._converters = {name: each.convert for name, each in shown.items() if each.convert}
        name = ".".join(re.sub(r"[^A-Za-z0-9_]", "_", part) for part in parts)
        key = _struct(name + ".Key", [_field(column, shown, False) for column in schema.key_columns])
        row = _struct(name + ".Row", [_field(column, shown, True) for column in schema])
        self.encode_key = key_converter.encoder(self.topic, "key", {**key, "optional": False})
        self.encode_value = converter.encoder(self.topic, "value", _event_schema(name + ".Event", key, row))

    def image(self, image: Image | None, names: tuple[str, ...]) -> dict[str, Any] | None:
        """Return an image with all columns: those that were not sent are null."""
        if image is None:
            return None
        # The loop below takes known names only: the value of another column would be lost silently.
        if not image.keys() <= set(self.names):
            raise ValueError(
                f"an image of {self.topic} has columns that the schema of the event does not have"
            )
        shown = {}
        for name in names:
            value, convert = image.get(name), self._converters.get(name)
            try:
                shown[name] = value if value is None or convert is None else convert(value)
            except (ValueError, OverflowError, TypeError) as error:
                raise ValueError(f"column {name} of {self.topic} cannot be shown: {error}") from None
        return shown

    def unavailable(self, image: Image | None) -> list[str]:
        """Return the columns that an image lacks."""
        return [] if image is None else [name for name in self.names if name not in image]


def _as_dict(struct: msgspec.Struct) -> dict[str, Any]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


def _schema_parts(schema: TableSchema, change: SchemaChange) -> dict[str, Any]:
    before = None if change.before is None else described_columns(change.before)
    return {"columns": described_columns(schema.columns), "columns_before": before}


def _cell(cell: CellChange) -> dict[str, Any]:
    # Two fields, because a field of Kafka Connect has one type.
    number = isinstance(cell.value, int)
    fields = _as_dict(cell)
    return {**fields, "value": None if number else cell.value, "number": cell.value if number else None}


def column_mappings(schema: TableSchema, as_json: bool, embeds_schema: bool) -> dict[str, Mapping]:
    has_schema = embeds_schema or not as_json
    return {
        column.name: mapping(
            column.type, _MODES, as_json, nested="refused" if has_schema else "kept", bounded=has_schema
        )
        for column in schema
    }


def _field(column: Column, shown: dict[str, Mapping], in_row: bool) -> Schema:
    # A key column may be NULL unless the source says otherwise: Spanner allows it, and its records do not say.
    optional = in_row or column.nullable is not False
    return field_schema(column, shown[column.name].schema, optional=optional)


def _struct(name: str, fields: list[Schema]) -> Schema:
    return {"type": "struct", "fields": fields, "optional": True, "name": name}


def _plain(name: str, kind: str, optional: bool = False) -> Schema:
    return {"type": kind, "optional": optional, "field": name}


def _texts(name: str) -> Schema:
    return {"type": "array", "items": {"type": "string", "optional": False}, "optional": False, "field": name}


def _event_schema(name: str, key: Schema, row: Schema) -> Schema:
    def part(field: str, kind: str, members: dict[str, str], optional: bool = False) -> Schema:
        # A kind that ends with a question mark may be null.
        fields = [_plain(each, type_.rstrip("?"), type_.endswith("?")) for each, type_ in members.items()]
        return {**_struct(f"io.penstock.{kind}", fields), "optional": optional, "field": field}

    texts = dict.fromkeys(Source.__struct_fields__, "string") | {"materialized": "boolean"}
    source = {each: texts[each] for each in Source.__struct_fields__}
    version = {"order": "int64", "transaction": "string", "sequence": "string", "index": "int64"}
    transaction = {
        "id": "string",
        "records": "int64?",
        "partitions": "int64?",
        "last_in_partition": "boolean?",
        "tag": "string",
        "origin": "string",
        "system": "boolean",
        "origin_position": "int64?",
        "previous_end": "int64?",
        "committed": "int64?",
    }
    message = {"prefix": "string", "content": "bytes", "transactional": "boolean"}
    cell = {
        "mod": "string",
        "family": "string",
        "qualifier": "bytes",
        "start_us": "int64",
        "end_us": "int64?",
        "value": "bytes?",
        "number": "int64?",
    }
    items = part("", "Cell", cell)
    del items["field"]
    fields = [
        part("source", "Source", source),
        _plain("op", "string"),
        _plain("timestamp", "int64"),
        {**key, "field": "key"},
        {**row, "field": "before"},
        {**row, "field": "after"},
        _texts("before_unavailable"),
        _texts("after_unavailable"),
        part("version", "Version", version),
        part("transaction", "Transaction", transaction, optional=True),
        part("message", "Message", message, optional=True),
        {"type": "array", "items": items, "optional": False, "field": "cells"},
        _plain("user", "string"),
    ]
    return {**_struct(name, fields), "optional": False}
