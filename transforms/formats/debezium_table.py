"""The records of one table in Debezium's form: names, schemas and rows. Pure."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from penstock.event import ChangeEvent, Column, ColumnType, Image, Kind, Source, TableSchema
from penstock.event.keys import changed_key
from penstock.transforms.formats.converter import Converter, Encode
from penstock.transforms.formats.debezium_envelope import (
    MESSAGE_KEY_SCHEMA,
    Envelope,
    envelope_schema,
    message_schema,
)
from penstock.transforms.formats.debezium_postgres import (
    NO_DEFAULT,
    default_value,
    postgres_mapping,
    required_value,
    unchanged_value,
)
from penstock.transforms.formats.debezium_source import json_block, plain_block
from penstock.transforms.formats.debezium_types import (
    Mapping,
    Nested,
    Schema,
    TypeModes,
    array_mapping,
    field_schema,
    mapping,
)
from penstock.transforms.formats.formatted import FormattedRecord, Headers

_UNSAFE = re.compile(r"[^A-Za-z0-9_]")
_UNSAFE_IN_TOPIC = re.compile(r"[^A-Za-z0-9._-]")

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


def topic_of(source: Source, server: str) -> str:
    """Return the topic of a table."""
    return ".".join(_UNSAFE_IN_TOPIC.sub("_", part) for part in _parts(source, server))


def _parts(source: Source, server: str) -> list[str]:
    # A system without schemas has two parts.
    return [part for part in (server, source.schema, source.table) if part]


def _names(source: Source, server: str, *, as_json: bool) -> tuple[str, str, str]:
    """Return the topic of a table, the name of its envelope's schema, and the prefix of its key's and row's schemas."""
    parts, topic = _parts(source, server), topic_of(source, server)
    # Names in Avro and Protobuf allow fewer characters than names of Kafka's topics.
    name = topic if as_json else ".".join(_UNSAFE.sub("_", part) for part in parts)
    # Debezium's Spanner connector names keys and rows without the server.
    row_name = name.partition(".")[2] if source.system == "spanner" and len(parts) > 1 else name
    return topic, name, row_name


class DebeziumTable:
    """The parts that are equal for all events of one table with one schema."""

    def __init__(self, source: Source, schema: TableSchema, options: Options) -> None:
        self._options, self._source = options, source
        self._as_json, self._exact = options.value_converter.as_json, options.exact
        self.leaves_out = self._as_json or options.exact
        self._as_spanner = options.exact and source.system == "spanner"
        self._as_postgres = source.system == "postgresql"
        converters = (options.key_converter, options.value_converter)
        self.is_plain_json = not options.exact and all(
            each.as_json and not each.embeds_schema for each in converters
        )
        """Whether keys and values are JSON without schemas, with Penstock's own choices."""
        self.topic, name, row_name = _names(source, options.server, as_json=self._as_json)
        values, row = self._columns(schema, options.value_converter)
        self._prepare_values(schema, values)
        self.envelope_schema = envelope_schema(f"{name}.Envelope", f"{row_name}.Value", row, source.system)
        self._encode_value = options.value_converter.encoder(self.topic, "value", self.envelope_schema)
        keys, _ = self._columns(schema, options.key_converter)
        self._prepare_keys(schema, keys, f"{row_name}.Key")
        self._block = (json_block if self._as_json else plain_block)(source, options.server)

    def _prepare_values(self, schema: TableSchema, values: dict[str, Mapping]) -> None:
        """Set how the values of rows are converted, and which values replace columns that were not sent."""
        self.mappings = values
        self._names = tuple(values)
        self._left_out = frozenset(schema.names) - set(values)
        self._absent = {name: self._absent_value(each.schema) for name, each in values.items()}
        # Replaced for PostgreSQL, whose old row may consist of the key only.
        self._absent_before = self._absent
        self._defaults: tuple[tuple[str, Any], ...] = ()
        if self._as_postgres:
            self._prepare_postgres(schema, values)
        self._converters = [(name, each.convert) for name, each in values.items() if each.convert]

    def _prepare_keys(self, schema: TableSchema, keys: dict[str, Mapping], name: str) -> None:
        """Set the schema of keys, which has this name, and how their values are converted."""
        columns = [column for column in schema.key_columns if column.name in keys]
        self._key_converters = [
            (each.name, keys[each.name].convert) for each in columns if keys[each.name].convert
        ]
        self.key_schema = {
            "type": "struct",
            "fields": [
                field_schema(each, keys[each.name].schema, optional=self._optional_key(each))
                for each in columns
            ],
            "optional": False,
            "name": name,
        }
        # Binary keys only: in JSON a null is a null whatever the schema says.
        self._required_keys = (
            ()
            if self._options.key_converter.as_json
            else tuple(column.name for column in schema.key_columns if not self._optional_key(column))
        )
        self._encode_key = self._options.key_converter.encoder(self.topic, "key", self.key_schema)

    def _columns(self, schema: TableSchema, converter: Converter) -> tuple[dict[str, Mapping], list[Schema]]:
        """Return how each column is shown, and the schemas of the fields of a row."""
        shown: dict[str, Mapping] = {}
        for column in schema:
            found = self._mapping(column, converter)
            if found is not None:
                shown[column.name] = found
        row = [
            field_schema(column, found.schema, optional=self._optional(column, found, converter.as_json))
            for column in schema
            if (found := shown.get(column.name))
        ]
        return shown, row

    def _optional(self, column: Column, shown: Mapping, as_json: bool) -> bool | None:
        """Return whether the field of a column may be null or left out; None: if the column may be NULL."""
        if column.key_position is not None:
            return self._optional_key(column)
        if self._exact:
            return None
        # A binary record has no way to leave a column out: where it was not sent, it must be null. A large value of
        # PostgreSQL that did not change is left out if its type has no placeholder.
        is_large = column.type.kind is Kind.ARRAY or (
            column.type.kind is Kind.DECIMAL and column.type.precision is None
        )
        if not as_json or (
            self._as_postgres and is_large and unchanged_value(column.type, shown.schema, "", _OMIT) is _OMIT
        ):
            return True
        return None

    def _mapping(self, column: Column, converter: Converter) -> Mapping | None:
        modes, as_json = self._options.modes, converter.as_json
        without_schema = as_json and not converter.embeds_schema
        # JSON without a schema can hold nested arrays; with a schema the inner array has no type.
        nested: Nested = "null" if self._exact else "kept" if without_schema else "refused"
        if not self._as_postgres:
            return column_mapping(column.type, modes, self._as_spanner, as_json, nested)
        found = postgres_mapping(column.type, modes, as_json, self._exact, nested)
        default = NO_DEFAULT if found is None else default_value(column, found)
        if found is None or default is NO_DEFAULT:
            return found
        return Mapping({**found.schema, "default": default}, found.convert)

    def _prepare_postgres(self, schema: TableSchema, values: dict[str, Mapping]) -> None:
        """Set the values that replace columns that were not sent: unchanged large values, and the old row."""
        missing = None if self._exact or not self._as_json else _OMIT
        columns = [column for column in schema if column.name in values]
        text = self._options.placeholder
        self._absent = {
            column.name: unchanged_value(column.type, values[column.name].schema, text, missing)
            for column in columns
        }
        self._absent_before = dict.fromkeys(values)
        defaults = {name: each.schema["default"] for name, each in values.items() if "default" in each.schema}
        if self._exact or self._options.value_converter.embeds_schema:
            # A record must fit the schema that it contains: a required column has a value, as in Debezium.
            for column in columns:
                if column.nullable is False or column.key_position is not None:
                    required = required_value(column.type, values[column.name])
                    self._absent_before[column.name] = defaults.get(column.name, required)
        if not self._exact:
            return
        # Kafka Connect writes the default of a column in place of NULL. The connector reads no values of type `name`.
        names = {
            column.name: "" for column in columns if column.type.native == "name" and not column.nullable
        }
        self._defaults = tuple((names | defaults).items())
        self._absent_before |= defaults
        if self._options.modes.binary_handling_mode.startswith("base64"):
            self._absent |= {column.name: None for column in columns if column.type.kind is Kind.BYTES}

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
        # A JSON null needs no check. A binary schema declares the field required, and the encoder would name no
        # remedy.
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

    def value(
        self, event: ChangeEvent, op: str, before: Image | None, after: Image | None, block: Any = None
    ) -> bytes:
        """Return the encoded value: the envelope around the images. `block`: its place in its transaction."""
        shown_before = self._before(event, op, before) if before is not None or self._as_spanner else None
        shown_after = None if after is None else self._row(after, self._absent)
        payload: Any = self.envelope(event, op, shown_before, shown_after, block)
        if not self._as_json:
            payload = msgspec.structs.asdict(payload)
        return self._encode_value(payload)

    def envelope(self, event: ChangeEvent, op: str, before: Any, after: Any, block: Any = None) -> Envelope:
        """Return the value of an event around images that are shown already, as msgspec encodes them."""
        timestamp = event.timestamp
        micros = timestamp // 1_000
        return Envelope(before, after, self._block(event), block, op, micros // 1_000, micros, timestamp)

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
        """Return the old key if an UPDATE changed the key of the record."""
        old = changed_key(event)
        # A mode that is narrower than the type may show two keys of the table as one.
        return None if old is None or self.key(old) == self.key(event.key) else old

    def _before(self, event: ChangeEvent, op: str, before: Image | None) -> dict[str, Any] | None:
        if self._as_spanner and op in "ud":
            # Debezium's Spanner connector never sends a null `before` with these: at least the key is in it.
            return self._row({**(event.key or {}), **(before or {})}, self._absent)
        return None if before is None else self._row(before, self._absent_before)

    def _row(self, image: Image, absent: dict[str, Any]) -> dict[str, Any]:
        """Return an image in the order of the table's columns, with `absent` for the columns that were not sent."""
        names = self._names
        try:
            # A whole row that already has the order of the table is copied in half of the time.
            shown = image.copy() if tuple(image) == names else {name: image[name] for name in names}
        except KeyError:
            shown = self._with_absent(image, absent)
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
        for name, default in self._defaults:
            if shown.get(name) is None:
                shown[name] = default
        return shown

    def _add_unknown(self, shown: dict[str, Any], image: Image) -> None:
        """Add the columns that the schema does not have: they are data too."""
        unknown = {
            name: value for name, value in image.items() if name not in shown and name not in self._left_out
        }
        if unknown and not self._as_json:
            raise ValueError(
                f"columns {', '.join(unknown)} of {self.topic} are not in the schema of the event, so a binary record "
                "cannot carry them: use JSON"
            )
        shown |= unknown

    def _error(self, column: str, error: Exception) -> ValueError:
        return ValueError(f"column {column} of {self.topic} cannot be shown in Debezium's form: {error}")

    def _with_absent(self, image: Image, absent: dict[str, Any]) -> dict[str, Any]:
        """Return the image in the order of the table, with what stands for the columns that were not sent."""
        shown = {}
        for name in self._names:
            value = image[name] if name in image else absent[name]
            if value is not _OMIT:
                shown[name] = value
        return shown

    def _absent_value(self, schema: Schema) -> Any:
        """Return the value that replaces a column that was not sent, or `_OMIT`."""
        if self._exact:
            return None
        if schema["type"] == "string":
            return self._options.placeholder
        if schema == {"type": "bytes"}:
            return self._options.placeholder.encode()
        return _OMIT if self._as_json else None

    # Messages belong to no table; their schemas are made when the first one comes.

    def message(self, event: ChangeEvent, block: Any = None) -> FormattedRecord:
        """Return the record of a MESSAGE; see `value` for `block`."""
        options, message = self._options, event.message
        topic, prefix = f"{options.server}.message", message.prefix if message else ""
        payload = {
            "op": "m",
            "ts_ms": event.timestamp // 1_000_000,
            "source": self._block(event),
            "transaction": block,
            "message": {
                "prefix": prefix,
                "content": self._shown_content(message.content if message else b""),
            },
        }
        encode_key, encode_value = self._message_encoders(topic)
        key, value = encode_key({"prefix": prefix}), encode_value(payload)
        return FormattedRecord(topic, key, value, event.timestamp, event.version)

    def _shown_content(self, content: bytes) -> Any:
        convert = mapping(_BYTES, self._options.modes).convert
        return convert(content) if convert else content

    _messages: tuple[Encode, Encode] | None = None

    def _message_encoders(self, topic: str) -> tuple[Encode, Encode]:
        if self._messages is None:
            options = self._options
            self._messages = (
                options.key_converter.encoder(topic, "key", MESSAGE_KEY_SCHEMA),
                options.value_converter.encoder(
                    topic, "value", message_schema(self._source.system, mapping(_BYTES, options.modes).schema)
                ),
            )
        return self._messages


_BYTES = ColumnType(Kind.BYTES)


class _Marker:
    """A value that no column has."""


_OMIT = _Marker()


def column_mapping(
    type_: ColumnType, modes: TypeModes, as_spanner: bool, as_json: bool = True, nested: Nested = "kept"
) -> Mapping:
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
    return mapping(type_, modes, as_json, nested=nested)


_TEXT_IN_SPANNER = frozenset({Kind.DECIMAL, Kind.DATE, Kind.TIMESTAMP, Kind.JSON, Kind.ENUM})
