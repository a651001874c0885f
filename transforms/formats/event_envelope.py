"""Events as they are, with all their parts, in JSON, Avro or Protobuf; and back. Pure.

    records = events | FormatEvents(EventFormat("shop", converter=AvroConverter(registry)))
    parse = EventParser(converter=AvroConverter(registry))

For consumers that need what Debezium's envelope has no place for: the version, the transaction, the entries of a
Bigtable change, and which columns were not sent. The value of a record:

| field | content |
|---|---|
| `source`, `version`, `transaction`, `message`, `cells`, `user`, `op` | the parts of `ChangeEvent`, with its names |
| `timestamp` | nanoseconds since 1970 |
| `key`, `before`, `after` | the columns of the table, in the types of Debezium; null if the event has no such image |
| `before_unavailable`, `after_unavailable` | columns that are null in the image because they were not sent |

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
    Message,
    Op,
    Source,
    TableSchema,
    Transaction,
    Version,
)
from penstock.event.keys import canonical_key
from penstock.transforms.formats.converter import Converter, JsonConverter, encoding_of
from penstock.transforms.formats.debezium_types import Mapping, Schema, TypeModes, field_schema, mapping
from penstock.transforms.formats.debezium_values import column_type, value_parser
from penstock.transforms.formats.formatted import Encoding, FormattedRecord
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
        key = None if event.key is None else table.encode_key(payload["key"])
        return [
            FormattedRecord(table.topic, key, table.encode_value(payload), event.timestamp, event.version)
        ]

    def _make_plan(self, source: Source, schema: TableSchema) -> _Table:
        return _Table(self._server, source, schema, self._converter, self._key_converter)


class EventParser:
    """Parses the records of `EventFormat`. `schema` describes the table, for records that contain no schema."""

    def __init__(self, schema: TableSchema | None = None, *, converter: Converter | None = None) -> None:
        self._given, self._converter = schema, converter or JsonConverter()
        self._tables: dict[bytes, _Columns] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tables": {}}

    def __call__(self, value: bytes) -> ChangeEvent:
        """Return the event of a record's value.

        Raises:
            ValueError: not such a record, or one without a schema although none was given.
        """
        try:
            opened = self._converter.open(value)
            parts = _decode(opened.payload)
        except msgspec.DecodeError as error:
            raise ValueError(f"not a record of EventFormat: {error}") from None
        columns = self._columns(opened.schema)
        key = columns.image(parts.key, ())
        return ChangeEvent(
            parts.source,
            parts.op,
            parts.timestamp,
            key and canonical_key(columns.schema, key),
            columns.image(parts.before, parts.before_unavailable),
            columns.image(parts.after, parts.after_unavailable),
            parts.version,
            columns.schema,
            parts.transaction,
            parts.message,
            tuple(_cell_change(cell) for cell in parts.cells),
            parts.user,
        )

    def _columns(self, schema: msgspec.Raw | None) -> _Columns:
        about = b"" if self._given is not None or schema is None else bytes(schema)
        found = self._tables.get(about)
        if found is None:
            if len(self._tables) >= 1024:
                self._tables.clear()
            found = self._tables[about] = _Columns(self._given, schema)
        return found


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
        parts = [part for part in (server, source.schema, source.table) if part]
        self.topic = ".".join(parts)
        self.names = schema.names
        self.key_names = tuple(column.name for column in schema.key_columns)
        shown = _mappings(schema, converter.as_json, converter.embeds_schema)
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


class _Columns:
    """The columns of a table, and how their values are read."""

    def __init__(self, given: TableSchema | None, raw: msgspec.Raw | None) -> None:
        if given is not None:
            shown = _mappings(given, as_json=True, embeds_schema=False)
            self.schema, types = given, {name: each.schema for name, each in shown.items()}
        elif raw is not None:
            fields = {field["field"]: field for field in msgspec.json.decode(raw)["fields"]}
            keys = [field["field"] for field in fields["key"]["fields"]]
            types = {field["field"]: field for field in fields["after"]["fields"]}
            self.schema = TableSchema(
                tuple(
                    Column(name, column_type(each), None, keys.index(name) + 1 if name in keys else None)
                    for name, each in types.items()
                )
            )
        else:
            raise ValueError("the record has no schema: pass the schema of the table")
        self._parsers = {column.name: value_parser(types[column.name], column.type) for column in self.schema}

    def image(self, raws: _Raws | None, absent: tuple[str, ...]) -> Image | None:
        if raws is None:
            return None
        try:
            return {
                name: None if bytes(raw) == b"null" else self._parsers[name](raw)
                for name, raw in raws.items()
                if name not in absent
            }
        except (ValueError, ArithmeticError, TypeError, KeyError):
            raise ValueError("a column does not have the form of its type") from None


class _Cell(msgspec.Struct):
    mod: str
    family: str = ""
    qualifier: bytes = b""
    start_us: int = 0
    end_us: int | None = None
    value: bytes | None = None
    number: int | None = None


class _Parts(msgspec.Struct):
    """The value of a record. The parts of an event are arrays elsewhere, so they are read from objects here."""

    source: Any
    op: Op
    timestamp: int
    key: _Raws | None
    before: _Raws | None
    after: _Raws | None
    before_unavailable: tuple[str, ...]
    after_unavailable: tuple[str, ...]
    version: Any
    transaction: Any
    message: Any
    cells: tuple[_Cell, ...]
    user: str


_decode_parts = msgspec.json.Decoder(_Parts).decode


def _decode(payload: Any) -> _Parts:
    parts = _decode_parts(payload)
    try:
        parts.source, parts.version = Source(**parts.source), Version(**parts.version)
        if parts.transaction is not None:
            parts.transaction = Transaction(**parts.transaction)
        if parts.message is not None:
            content = msgspec.convert(parts.message["content"], bytes)
            parts.message = Message(**{**parts.message, "content": content})
    except (TypeError, KeyError):
        raise ValueError("not a record of EventFormat: a part of the event is missing") from None
    return parts


def _as_dict(struct: msgspec.Struct) -> dict[str, Any]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


def _cell(cell: CellChange) -> dict[str, Any]:
    number = isinstance(cell.value, int)
    fields = _as_dict(cell)
    return {**fields, "value": None if number else cell.value, "number": cell.value if number else None}


def _cell_change(cell: _Cell) -> CellChange:
    value = cell.number if cell.value is None else cell.value
    return CellChange(cell.mod, cell.family, cell.qualifier, cell.start_us, cell.end_us, value)


def _mappings(schema: TableSchema, as_json: bool, embeds_schema: bool) -> dict[str, Mapping]:
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
