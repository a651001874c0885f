"""Reads the records of `EventFormat` back. Pure.

parse = EventParser(converter=AvroConverter(registry))
event = parse(record.value)
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.event import (
    CellChange,
    ChangeEvent,
    Column,
    ColumnType,
    Image,
    Kind,
    Message,
    Op,
    SchemaChange,
    Source,
    TableSchema,
    Transaction,
    Version,
)
from penstock.event.keys import canonical_key
from penstock.transforms.formats.converter import Converter, JsonConverter
from penstock.transforms.formats.event_envelope import column_mappings
from penstock.transforms.parsers.debezium_values import column_type, value_parser

_Raws = dict[str, msgspec.Raw]


class EventParser:
    """Parses the records of `EventFormat`. `schema` describes the table, for records that contain no schema.

    With `known_columns_only` columns that `schema` does not have are left out of the images, otherwise refused. The
    record of a SCHEMA event has columns itself; their types have a kind and a native name, and no further parts.
    """

    def __init__(
        self,
        schema: TableSchema | None = None,
        *,
        converter: Converter | None = None,
        known_columns_only: bool = False,
    ) -> None:
        self._given, self._converter = schema, converter or JsonConverter()
        self._known_only = known_columns_only
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
        # A SCHEMA event describes its columns itself, so it needs no schema of the table.
        if parts.columns is not None:
            return _schema_event(parts, parts.columns)
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
            # A topic with many tables or schemas must not grow without bound.
            if len(self._tables) >= 1024:
                self._tables.clear()
            found = self._tables[about] = _Columns(self._given, schema, self._known_only)
        return found


class _Columns:
    """The columns of a table, and how their values are read."""

    def __init__(self, given: TableSchema | None, raw: msgspec.Raw | None, known_only: bool) -> None:
        if given is not None:
            shown = column_mappings(given, as_json=True, embeds_schema=False)
            self.schema, types = given, {name: each.schema for name, each in shown.items()}
        elif raw is not None:
            fields = {field["field"]: field for field in msgspec.json.decode(raw)["fields"]}
            keys = [field["field"] for field in fields["key"]["fields"]]
            # `after` has all columns in the order of the table, `key` its own in the order of the key.
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
        self._known_only = known_only

    def image(self, raws: _Raws | None, absent: tuple[str, ...]) -> Image | None:
        if raws is None:
            return None
        try:
            return {
                name: None if bytes(raw) == b"null" else self._parsers[name](raw)
                for name, raw in raws.items()
                if name not in absent and (name in self._parsers or not self._known_only)
            }
        # The error of a parser may show the value.
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


class _Column(msgspec.Struct):
    """A column as a SCHEMA event describes it."""

    name: str
    type: Kind
    native_type: str = ""
    key_position: int | None = None


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
    columns: tuple[_Column, ...] | None = None
    columns_before: tuple[_Column, ...] | None = None


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


def _schema_event(parts: _Parts, columns: tuple[_Column, ...]) -> ChangeEvent:
    before = None if parts.columns_before is None else _column_descriptions(parts.columns_before)
    return ChangeEvent(
        parts.source,
        parts.op,
        parts.timestamp,
        None,
        None,
        None,
        parts.version,
        TableSchema(_column_descriptions(columns)),
        schema_change=SchemaChange(before),
    )


def _column_descriptions(columns: tuple[_Column, ...]) -> tuple[Column, ...]:
    return tuple(
        Column(each.name, ColumnType(each.type, each.native_type), key_position=each.key_position)
        for each in columns
    )


def _cell_change(cell: _Cell) -> CellChange:
    value = cell.number if cell.value is None else cell.value
    return CellChange(cell.mod, cell.family, cell.qualifier, cell.start_us, cell.end_us, value)
