"""The records of one table in Debezium's form: names, schemas and rows. Pure."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from penstock.event import ChangeEvent, Column, ColumnType, Image, Kind, Op, Source, TableSchema
from penstock.transforms.formats.converter import Converter, Encode
from penstock.transforms.formats.debezium_envelope import (
    MESSAGE_KEY_SCHEMA,
    Envelope,
    envelope_schema,
    message_schema,
)
from penstock.transforms.formats.debezium_source import json_block, plain_block
from penstock.transforms.formats.debezium_types import (
    Mapping,
    Schema,
    TypeModes,
    array_mapping,
    field_schema,
    mapping,
)
from penstock.transforms.formats.formatted import FormattedRecord, Headers

_UNSAFE = re.compile(r"[^A-Za-z0-9_]")

UNAVAILABLE_HEADER = "__penstock.unavailable"
"""Header of binary records: JSON of the columns that are null because they were not sent, for each image."""


class Options(msgspec.Struct, frozen=True):
    """The options of the format."""

    server: str
    modes: TypeModes
    placeholder: str
    exact: bool
    nullable_keys: bool
    key_converter: Converter
    value_converter: Converter


class DebeziumTable:
    """The parts that are equal for all events of one table with one schema."""

    def __init__(self, source: Source, schema: TableSchema, options: Options) -> None:
        self._options, self._source = options, source
        self._as_json, self._exact = options.value_converter.as_json, options.exact
        self.leaves_out = self._as_json or options.exact
        self._as_spanner = options.exact and source.system == "spanner"
        parts = [part for part in (options.server, source.schema, source.table) if part]
        self.topic = ".".join(parts)
        name = ".".join(_UNSAFE.sub("_", part) for part in parts)
        # Debezium's Spanner connector names keys and rows without the server.
        row_name = name.partition(".")[2] if source.system == "spanner" and len(parts) > 1 else name
        self._names = schema.names
        values, row = self._columns(schema, options.value_converter)
        self._absent = {name: self._absent_value(each.schema) for name, each in values.items()}
        self._converters = [(name, each.convert) for name, each in values.items() if each.convert]
        keys, _ = self._columns(schema, options.key_converter)
        key_names = tuple(column.name for column in schema.key_columns)
        self._key_converters = [(name, keys[name].convert) for name in key_names if keys[name].convert]
        self.key_schema = {
            "type": "struct",
            "fields": [
                field_schema(column, keys[column.name].schema, optional=self._optional_key(column))
                for column in schema.key_columns
            ],
            "optional": False,
            "name": f"{row_name}.Key",
        }
        # Binary keys only: in JSON a null is a null whatever the schema says.
        self._required_keys = (
            ()
            if options.key_converter.as_json
            else tuple(column.name for column in schema.key_columns if not self._optional_key(column))
        )
        self.envelope_schema = envelope_schema(f"{name}.Envelope", f"{row_name}.Value", row, source.system)
        self._encode_key = options.key_converter.encoder(self.topic, "key", self.key_schema)
        self._encode_value = options.value_converter.encoder(self.topic, "value", self.envelope_schema)
        self._block = (json_block if self._as_json else plain_block)(source, options.server)

    def _columns(self, schema: TableSchema, converter: Converter) -> tuple[dict[str, Mapping], list[Schema]]:
        """Return how each column is shown, and the schemas of the fields of a row."""
        shown = {
            column.name: column_mapping(column.type, self._options.modes, self._as_spanner, converter.as_json)
            for column in schema
        }
        # A binary record has no way to leave a column out: where it was not sent, it must be null.
        optional = None if converter.as_json or self._exact else True
        row = [
            field_schema(
                column,
                shown[column.name].schema,
                optional=optional if column.key_position is None else self._optional_key(column),
            )
            for column in schema
        ]
        return shown, row

    def _optional_key(self, column: Column) -> bool:
        return column.nullable is True or (column.nullable is None and self._options.nullable_keys)

    def record(
        self, event: ChangeEvent, key: bytes | None, value: bytes | None, headers: Headers = ()
    ) -> FormattedRecord:
        """Return a record of the table's topic."""
        return FormattedRecord(self.topic, key, value, event.timestamp, event.version, headers)

    def key(self, key: Image | None) -> bytes | None:
        """Return the encoded key, or None for a table without a primary key."""
        if key is None:
            return None
        if self._required_keys and None in key.values():
            self._refuse_null(key)
        return self._encode_key(self._shown_key(key) if self._key_converters else key)

    def _refuse_null(self, key: Image) -> None:
        null = [name for name in self._required_keys if key.get(name) is None]
        if null:
            raise ValueError(
                f"column {null[0]} in the key of {self.topic} is NULL, and the source does not say that it may be: set "
                "nullable_keys=True"
            )

    def _shown_key(self, key: Image) -> dict[str, Any]:
        shown = key.copy()
        for name, convert in self._key_converters:
            value = key.get(name)
            try:
                shown[name] = convert(value) if convert and value is not None else value
            except (ValueError, OverflowError, TypeError) as error:
                raise self._error(name, error) from None
        return shown

    def value(self, event: ChangeEvent, op: str, before: Image | None, after: Image | None) -> bytes:
        """Return the encoded value: the envelope around the images."""
        shown_before = self._before(event, op, before) if before is not None or self._as_spanner else None
        shown_after = None if after is None else self._row(after)
        timestamp = event.timestamp
        micros = timestamp // 1_000
        payload: Any = Envelope(
            shown_before, shown_after, self._block(event), None, op, micros // 1_000, micros, timestamp
        )
        if not self._as_json:
            payload = msgspec.structs.asdict(payload)
        return self._encode_value(payload)

    def unavailable(self, before: Image | None, after: Image | None) -> Headers:
        """Return the header that tells a null of a binary record that was not sent from NULL."""
        if self.leaves_out:
            return ()
        found = {
            which: omitted
            for which, image in (("before", before), ("after", after))
            if image is not None
            and len(image) < len(self._names)
            and (
                omitted := [name for name in self._names if name not in image and self._absent[name] is None]
            )
        }
        return ((UNAVAILABLE_HEADER, msgspec.json.encode(found)),) if found else ()

    def changed_key(self, event: ChangeEvent) -> Image | None:
        """Return the old key if an UPDATE changed the primary key."""
        if event.op is not Op.UPDATE or event.before is None or event.key is None:
            return None
        before = event.before
        if all(before.get(name, value) == value for name, value in event.key.items()):
            return None
        return {name: before.get(name, value) for name, value in event.key.items()}

    def _before(self, event: ChangeEvent, op: str, before: Image | None) -> dict[str, Any] | None:
        if self._as_spanner and op in "ud":
            # Debezium's Spanner connector never sends a null `before` with these: at least the key is in it.
            return self._row({**(event.key or {}), **(before or {})})
        return None if before is None else self._row(before)

    def _row(self, image: Image) -> dict[str, Any]:
        """Return an image in the order of the table's columns, with the columns that were not sent."""
        names = self._names
        try:
            # A whole row that already has the order of the table is copied in half of the time.
            shown = image.copy() if tuple(image) == names else {name: image[name] for name in names}
        except KeyError:
            shown = self._with_absent(image)
        name = ""
        try:
            for name, convert in self._converters:
                value = image.get(name)
                if value is not None:
                    shown[name] = convert(value)
        except (ValueError, OverflowError, TypeError) as error:
            raise self._error(name, error) from None
        if len(image) > len(names):
            self._add_unknown(shown, image)
        return shown

    def _add_unknown(self, shown: dict[str, Any], image: Image) -> None:
        """Add the columns that the schema does not have: they are data too."""
        unknown = {name: value for name, value in image.items() if name not in shown}
        if unknown and not self._as_json:
            raise ValueError(
                f"columns {', '.join(unknown)} of {self.topic} are not in the schema of the event, so a binary record "
                "cannot carry them: use JSON"
            )
        shown |= unknown

    def _error(self, column: str, error: Exception) -> ValueError:
        return ValueError(f"column {column} of {self.topic} cannot be shown in Debezium's form: {error}")

    def _with_absent(self, image: Image) -> dict[str, Any]:
        """Return the image in the order of the table, with what stands for the columns that were not sent."""
        shown = {}
        for name in self._names:
            value = image[name] if name in image else self._absent[name]
            if value is not _OMIT:
                shown[name] = value
        return shown

    def _absent_value(self, schema: Schema) -> Any:
        """Return what stands for a column that was not sent, or `_OMIT`."""
        if self._exact:
            return None
        if schema["type"] == "string":
            return self._options.placeholder
        if schema == {"type": "bytes"}:
            return self._options.placeholder.encode()
        return _OMIT if self._as_json else None

    # Messages belong to no table; their schemas are made when the first one comes.

    def message(self, event: ChangeEvent) -> FormattedRecord:
        """Return the record of a MESSAGE."""
        options, message = self._options, event.message
        topic, prefix = f"{options.server}.message", message.prefix if message else ""
        payload = {
            "op": "m",
            "ts_ms": event.timestamp // 1_000_000,
            "source": self._block(event),
            "transaction": None,
            "message": {"prefix": prefix, "content": message.content if message else b""},
        }
        encode_key, encode_value = self._message_encoders(topic)
        key, value = encode_key({"prefix": prefix}), encode_value(payload)
        return FormattedRecord(topic, key, value, event.timestamp, event.version)

    _messages: tuple[Encode, Encode] | None = None

    def _message_encoders(self, topic: str) -> tuple[Encode, Encode]:
        if self._messages is None:
            options = self._options
            self._messages = (
                options.key_converter.encoder(topic, "key", MESSAGE_KEY_SCHEMA),
                options.value_converter.encoder(topic, "value", message_schema(self._source.system)),
            )
        return self._messages


class _Marker:
    """A value that no column has."""


_OMIT = _Marker()


def column_mapping(type_: ColumnType, modes: TypeModes, as_spanner: bool, as_json: bool = True) -> Mapping:
    """Return how a column is shown; Debezium's Spanner connector sends decimals and dates as the service's text."""
    if as_spanner and type_.kind is Kind.ARRAY and type_.element:
        return array_mapping(column_mapping(type_.element, modes, as_spanner, as_json))
    if as_spanner and type_.kind in _TEXT_IN_SPANNER:
        modes = msgspec.structs.replace(
            modes, decimal_handling_mode="string", time_precision_mode="isostring"
        )
        convert = mapping(type_, modes).convert
        if type_.kind is Kind.DATE:
            return Mapping(
                {"type": "string"}, lambda days: str(convert(days)).removesuffix("Z") if convert else days
            )
        return Mapping({"type": "string"}, convert)
    return mapping(type_, modes, as_json)


_TEXT_IN_SPANNER = frozenset({Kind.DECIMAL, Kind.DATE, Kind.TIMESTAMP, Kind.JSON, Kind.ENUM})
