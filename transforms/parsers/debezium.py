"""Debezium JSON back to events: with or without embedded schemas, of our connectors and of Debezium's own. Pure.

    parse = DebeziumParser()                      # records with schemas: they name every type
    parse = DebeziumParser(schema)                # records without
    events = parse(key, value, headers)

| record | events |
|---|---|
| op c, u, r, d | one CREATE, UPDATE, READ or DELETE |
| op t, m | one TRUNCATE or MESSAGE |
| a tombstone (no value) | none: the delete before it said the same |
| a delete with the header `__debezium.newkey` | one DELETE; none with `join_key_changes` |
| a create with the header `__debezium.oldkey` | one CREATE; with `join_key_changes` an UPDATE from the old key |

A column that holds the unavailable-value placeholder, or that the row of a schema lacks, was not sent. Records of
`debezium_exact` and of Debezium's own connectors show such a column as null, so it comes back as NULL.

Without an embedded schema and without `schema`, values stay as JSON has them and every column is OTHER.

Source: Debezium documentation 3.x, "Debezium connector for PostgreSQL", Data change events and Data type mappings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from penstock.errors import UsageError
from penstock.event import (
    NO_COLUMNS,
    CellChange,
    ChangeEvent,
    Column,
    ColumnType,
    Image,
    Kind,
    Message,
    Op,
    Source,
    TableSchema,
    Transaction,
    Version,
)
from penstock.event.keys import canonical_key
from penstock.transforms.formats.converter import Converter, JsonConverter
from penstock.transforms.formats.debezium import PLACEHOLDER
from penstock.transforms.formats.debezium_postgres import unchanged_forms
from penstock.transforms.formats.debezium_table import UNAVAILABLE_HEADER, column_mapping
from penstock.transforms.formats.debezium_types import Schema, TypeModes
from penstock.transforms.formats.formatted import Headers
from penstock.transforms.parsers.debezium_values import (
    Parse,
    column_type,
    content_parser,
    value_parser,
)

_Raws = dict[str, msgspec.Raw]

_OPS = {
    "c": Op.CREATE,
    "u": Op.UPDATE,
    "d": Op.DELETE,
    "r": Op.READ,
    "t": Op.TRUNCATE,
    "m": Op.MESSAGE,
}


class _Envelope(msgspec.Struct):
    op: str
    source: dict[str, Any] = {}
    before: _Raws | None = None
    after: _Raws | None = None
    ts_ms: int | None = None
    message: _Message | None = None


class _Message(msgspec.Struct):
    prefix: str | None = None
    content: msgspec.Raw = msgspec.Raw(b"null")


_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_decode_absent = msgspec.json.Decoder(dict[str, list[str]]).decode
_decode_key = msgspec.json.Decoder(_Raws).decode


class DebeziumParser:
    """Parses the records of one topic. Pass the options of the `DebeziumFormat` or of the connector that wrote them.

    `schema` describes the table of records without embedded schemas. With it, values get the types of its columns
    also where a record with an embedded schema names a wider one.

    Raises:
        UsageError: an option has a value that Debezium does not have.
    """

    def __init__(
        self,
        schema: TableSchema | None = None,
        *,
        unavailable_value_placeholder: str = PLACEHOLDER,
        join_key_changes: bool = False,
        debezium_exact: bool = False,
        converter: Converter | None = None,
        key_converter: Converter | None = None,
        **modes: str,
    ) -> None:
        self._converter = converter or JsonConverter()
        self._key_converter = key_converter or self._converter
        self._given, self._join, self._exact = schema, join_key_changes, debezium_exact
        try:
            self._modes = msgspec.convert(modes, TypeModes)
        except msgspec.ValidationError as error:
            raise UsageError(f"DebeziumParser: {error}") from None
        if unknown := modes.keys() - set(TypeModes.__struct_fields__):
            raise UsageError(f"DebeziumParser has no option {', '.join(sorted(unknown))}")
        # The placeholder has another form for each type, so all forms are compared with the raw bytes of a
        # value.
        forms = unchanged_forms(unavailable_value_placeholder)
        self._placeholders = frozenset(map(msgspec.json.encode, forms))
        self._tables: dict[Any, _Columns] = {}

    def __getstate__(self) -> dict[str, Any]:
        # Parsers of values are closures, which do not pickle; the worker makes them again.
        return {**self.__dict__, "_tables": {}}

    def __call__(self, key: bytes | None, value: bytes | None, headers: Headers = ()) -> list[ChangeEvent]:
        """Return the events of a record, none or one.

        Raises:
            ValueError: not a record of Debezium, or a value that does not have the type of its column.
        """
        # A tombstone follows a delete, which was parsed before.
        if value is None:
            return []
        try:
            opened = self._converter.open(value)
            envelope = _decode_envelope(opened.payload)
            raw_key = None if key is None else self._open_key(key)
        except msgspec.DecodeError as error:
            raise ValueError(f"not a record in Debezium JSON: {error}") from None
        op = _OPS.get(envelope.op)
        if op is None:
            raise ValueError(f"op {envelope.op!r} does not exist in Debezium JSON")
        columns = self._columns(opened.schema, raw_key, envelope, op)
        return self._events(op, columns, raw_key, envelope, opened.schema, dict(headers))

    def _open_key(self, key: bytes) -> _Raws:
        return _decode_key(self._key_converter.open(key).payload)

    def _events(
        self,
        op: Op,
        columns: _Columns,
        raw_key: _Raws | None,
        envelope: _Envelope,
        schema: msgspec.Raw | None,
        headers: dict[str, bytes],
    ) -> list[ChangeEvent]:
        # The key of a message is its prefix, which is no column.
        has_row = op not in (Op.TRUNCATE, Op.MESSAGE)
        key = (
            canonical_key(columns.schema, columns.image(raw_key)) if raw_key is not None and has_row else None
        )
        before = None if envelope.before is None else columns.image(envelope.before)
        after = None if envelope.after is None else columns.image(envelope.after)
        # Binary records have null for a column that was not sent, and a header that names it.
        if UNAVAILABLE_HEADER in headers:
            absent = _decode_absent(headers[UNAVAILABLE_HEADER])
            before, after = (
                image and {name: value for name, value in image.items() if name not in absent.get(which, ())}
                for which, image in (("before", before), ("after", after))
            )
        # The create that follows has the old key too, and becomes the update.
        if self._join and "__debezium.newkey" in headers and op is Op.DELETE:
            return []
        if self._join and "__debezium.oldkey" in headers and op is Op.CREATE:
            op, before = Op.UPDATE, columns.image(self._open_key(headers["__debezium.oldkey"]))
        message = envelope.message
        return [
            event_from_source(
                envelope.source,
                envelope.ts_ms,
                op,
                key,
                before,
                after,
                columns.schema,
                None if message is None else self._message(message, schema),
            )
        ]

    def _message(self, message: _Message, schema: msgspec.Raw | None) -> Message:
        raw = message.content
        # An empty content may come as null.
        if bytes(raw) == b"null":
            return Message(message.prefix or "", b"")
        parse = content_parser(_content_schema(schema), self._modes.binary_handling_mode)
        try:
            return Message(message.prefix or "", parse(raw))
        except ValueError:
            raise ValueError(
                "the content of a message does not have the form of binary_handling_mode="
                f"{self._modes.binary_handling_mode}: use the mode of the connector that wrote it"
            ) from None

    def _columns(
        self, schema: msgspec.Raw | None, raw_key: _Raws | None, envelope: _Envelope, op: Op
    ) -> _Columns:
        if op is Op.MESSAGE:
            return _Columns(NO_COLUMNS, {}, self._placeholders)
        keys = () if raw_key is None else tuple(raw_key)
        about: Any = None
        # Without a schema the set of columns is the only sign of a change of the table.
        if self._given is None:
            shown = (*(envelope.before or ()), *(envelope.after or ()))
            about = (bytes(schema), keys) if schema is not None else (shown, keys)
        found = self._tables.get(about)
        if found is None:
            if (
                len(self._tables) >= 1024
            ):  # schemas change rarely; a topic of many tables must not grow without bound
                self._tables.clear()
            found = self._tables[about] = self._make_columns(schema, keys, envelope)
        return found

    def _make_columns(
        self, schema: msgspec.Raw | None, keys: tuple[str, ...], envelope: _Envelope
    ) -> _Columns:
        if self._given is not None:
            # The Spanner connector sends decimals and dates as texts, also with the default modes.
            as_spanner = self._exact and envelope.source.get("connector") == "spanner"
            types = {
                column.name: column_mapping(column.type, self._modes, as_spanner).schema
                for column in self._given
            }
            return self._with_parsers(self._given, types)
        if schema is None:
            names = dict.fromkeys((*keys, *(envelope.before or ()), *(envelope.after or ())))
            plain = ColumnType(Kind.OTHER, "json")
            table = TableSchema(tuple(Column(name, plain, None, _position(name, keys)) for name in names))
            return _Columns(table, dict.fromkeys(names, msgspec.json.decode), self._placeholders)
        fields = _row_fields(msgspec.json.decode(schema))
        columns = tuple(
            Column(field["field"], column_type(field), field["optional"], _position(field["field"], keys))
            for field in fields
        )
        return self._with_parsers(TableSchema(columns), {field["field"]: field for field in fields})

    def _with_parsers(self, table: TableSchema, types: dict[str, Schema]) -> _Columns:
        parsers = {
            column.name: value_parser(types[column.name], column.type, self._modes.binary_handling_mode)
            for column in table
        }
        return _Columns(table, parsers, self._placeholders)


class _Columns:
    """The columns of a table and how their values are read."""

    def __init__(
        self, schema: TableSchema, parsers: dict[str, Parse], placeholders: frozenset[bytes]
    ) -> None:
        self.schema, self._parsers, self._placeholders = schema, parsers, placeholders

    def image(self, raws: _Raws) -> Image:
        """Return an image; a column that holds the placeholder was not sent."""
        image: Image = {}
        # Compared before they are parsed: most values are neither null nor a placeholder.
        for name, raw in raws.items():
            text = bytes(raw)
            if text == b"null":
                image[name] = None
            elif text not in self._placeholders:
                image[name] = self._parsed(name, raw)
        return image

    def _parsed(self, name: str, raw: msgspec.Raw) -> Any:
        try:
            return self._parsers.get(name, msgspec.json.decode)(raw)
        # The error of a parser may show the value.
        except (ValueError, ArithmeticError, TypeError, KeyError):
            raise ValueError(
                f"column {name}: the value does not have the form of its type in Debezium JSON"
            ) from None


def _row_fields(schema: Schema) -> list[Schema]:
    for field in schema.get("fields", ()):
        if field.get("field") == "after":
            rows: list[Schema] = field["fields"]
            return rows
    return []


def _content_schema(schema: msgspec.Raw | None) -> Schema | None:
    if schema is None:
        return None
    fields = {field["field"]: field for field in msgspec.json.decode(schema)["fields"]}
    return next((each for each in fields["message"]["fields"] if each["field"] == "content"), None)


def _position(name: str, keys: tuple[str, ...]) -> int | None:
    return keys.index(name) + 1 if name in keys else None


def event_from_source(
    block: dict[str, Any],
    ts_ms: int | None,
    op: Op,
    key: Image | None,
    before: Image | None,
    after: Image | None,
    schema: TableSchema,
    message: Message | None = None,
) -> ChangeEvent:
    """Return an event with the source, version and transaction of a `source` block."""
    # The most exact unit first; older connectors have milliseconds only.
    timestamp = (
        block.get("ts_ns")
        or (block.get("ts_us") or 0) * 1_000
        or (block.get("ts_ms") or ts_ms or 0) * 1_000_000
    )
    describe = _BLOCKS.get(block.get("connector", ""), _common)
    source, version, transaction, cells = describe(block, timestamp)
    return ChangeEvent(
        source,
        op,
        timestamp,
        key,
        before,
        after,
        version,
        schema,
        transaction,
        message,
        cells,
        incremental=block.get("snapshot") == "incremental",
    )


_Described = tuple[Source, Version, Transaction | None, tuple[CellChange, ...]]


def _common(block: dict[str, Any], timestamp: int) -> _Described:
    source = Source(
        block.get("connector", ""),
        "",
        block.get("db") or "",
        block.get("schema") or "",
        block.get("table") or "",
    )
    # The position of another connector has a form that is not known here, so only the time orders changes.
    return source, Version(timestamp, "", block.get("sequence") or ""), None, ()


def _spanner(block: dict[str, Any], timestamp: int) -> _Described:
    schema, _, table = (block.get("table") or "").rpartition(".")
    server = f"{block.get('project_id') or ''}/{block.get('instance_id') or ''}".strip("/")
    source = Source(
        "spanner",
        server,
        block.get("database_id") or block.get("db") or "",
        schema,
        table,
        block.get("change_stream_name") or "",
        block.get("value_capture_type") or "",
    )
    id_ = block.get("server_transaction_id") or ""
    # The version that the source gave the event, so that sinks order it as they order events of the source.
    version = Version(timestamp, id_, _record_sequence(block), block.get("mod_number") or 0)
    transaction = Transaction(
        id_,
        block.get("number_records_in_transaction"),
        block.get("number_of_partitions_in_transaction"),
        block.get("is_last_record_in_transaction_in_partition"),
        block.get("transaction_tag") or "",
        "",
        bool(block.get("system_transaction")),
    )
    return source, version, transaction, ()


def _record_sequence(block: dict[str, Any]) -> str:
    """Return Spanner's record sequence: all of one stream have the same length, so that they compare as texts."""
    sequence, prefix = block.get("sequence") or "", block.get("record_sequence_prefix")
    if not sequence.isdecimal():
        return sequence
    return f"{int(sequence):08d}" if prefix is None else f"{prefix}-{int(sequence):08x}"


def _postgresql(block: dict[str, Any], timestamp: int) -> _Described:
    source, _, _, _ = _common(block, timestamp)
    lsn = int(block.get("lsn") or 0)
    # The end of the transaction before orders transactions too; the first one that a connector reads has none.
    ends = msgspec.json.decode(block.get("sequence") or "[]")
    previous = int(ends[0]) if ends and ends[0] else None
    id_ = "" if block.get("txId") is None else str(block["txId"])
    version = Version(lsn if previous is None else previous, id_, f"{lsn:020d}" if lsn else "")
    transaction = Transaction(
        id_,
        origin=block.get("origin") or "",
        origin_position=block.get("origin_lsn"),
        previous_end=previous,
    )
    return source, version, transaction, ()


def _bigtable(block: dict[str, Any], timestamp: int) -> _Described:
    server = f"{block.get('project_id') or ''}/{block.get('instance_id') or ''}".strip("/")
    cells = tuple(_cell(cell) for cell in block.get("cells") or ())
    transaction = Transaction("", origin=block.get("source_cluster") or "", system=bool(block.get("is_gc")))
    source = Source("bigtable", server, table=block.get("table") or "")
    return source, Version(timestamp, "", block.get("sequence") or ""), transaction, cells


def _cell(cell: dict[str, Any]) -> CellChange:
    value = cell.get("value")
    return CellChange(
        cell["mod"],
        cell.get("family", ""),
        msgspec.convert(cell.get("qualifier", ""), bytes),
        cell.get("start_us", 0),
        cell.get("end_us"),
        # The input of an aggregate may be an integer.
        cell.get("number") if value is None else msgspec.convert(value, bytes),
    )


_BLOCKS: dict[str, Callable[[dict[str, Any], int], _Described]] = {
    "spanner": _spanner,
    "postgresql": _postgresql,
    "bigtable": _bigtable,
}
