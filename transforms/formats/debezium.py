"""Debezium JSON: the records that Debezium's connectors write to Kafka, made of any source's events. Pure.

    records = events | FormatEvents(DebeziumFormat("shop", schemas_enable=True))

One event becomes these records, all with the same key unless said otherwise:

| event | records |
|---|---|
| CREATE, READ, UPDATE | one value with op c, r or u |
| UPDATE that changes the primary key | op d with the old key, a tombstone, op c with the new key |
| DELETE | op d, then a tombstone (a record without a value) unless `tombstones_on_delete` is False |
| TRUNCATE | op t without a key; left out unless `skipped_operations` says otherwise |
| MESSAGE | op m; the key is the message's prefix |
| SCHEMA | none: Debezium carries a schema with its rows |

A column that the source did not send is the `unavailable_value_placeholder` if its type is text or bytes, and is
left out otherwise, because a number column cannot hold a text. NULL is null. So the three stay apart.
`debezium_exact` makes the choices of Debezium's own connectors instead, and loses that difference.

`ts_ms`, `ts_us` and `ts_ns` of the envelope are the commit time, not the time of processing: a repeated read gives
equal bytes.

Source: Debezium documentation 3.x, "Debezium connector for PostgreSQL" and "Debezium connector for Spanner", Data
change events.
"""

from __future__ import annotations

import re
from base64 import b64encode
from typing import Any, Literal

import msgspec

from penstock.errors import UsageError
from penstock.event import ChangeEvent, ColumnType, Image, Kind, Op, Source, TableSchema
from penstock.transforms.formats.debezium_source import source_block, source_schema
from penstock.transforms.formats.debezium_types import Convert, Mapping, TypeModes, field_schema, mapping
from penstock.transforms.formats.formatted import FormattedRecord, Headers
from penstock.transforms.formats.table_format import TableFormat

PLACEHOLDER = "__debezium_unavailable_value"

_OPS = {Op.CREATE: "c", Op.UPDATE: "u", Op.DELETE: "d", Op.READ: "r", Op.TRUNCATE: "t", Op.MESSAGE: "m"}
_UNSAFE = re.compile(r"[^A-Za-z0-9_]")

_json = msgspec.json.Encoder().encode


class _Envelope(msgspec.Struct, gc=False):
    """The value of a record; the fields have the order of the format."""

    before: dict[str, Any] | None
    after: dict[str, Any] | None
    source: Any
    transaction: None
    op: str
    ts_ms: int
    ts_us: int
    ts_ns: int


class DebeziumFormat(TableFormat["_Table"]):
    """Formats events as Debezium JSON. Names and values of the options are those of Debezium's configuration.

    `server` is Debezium's `topic.prefix`. `schemas_enable` puts the Connect schema into each key and value
    (`key.converter.schemas.enable`). `skipped_operations` are letters: c, u, d, t.

    Raises:
        UsageError: an option has a value that Debezium does not have.
    """

    def __init__(
        self,
        server: str,
        *,
        schemas_enable: bool = False,
        tombstones_on_delete: bool = True,
        skipped_operations: str = "t",
        unavailable_value_placeholder: str = PLACEHOLDER,
        decimal_handling_mode: Literal["precise", "double", "string"] = "precise",
        time_precision_mode: str = "adaptive",
        binary_handling_mode: str = "bytes",
        interval_handling_mode: Literal["numeric", "string"] = "numeric",
        debezium_exact: bool = False,
    ) -> None:
        super().__init__()
        self._server = server
        self._schemas = schemas_enable
        self._tombstones = tombstones_on_delete
        self._skipped = frozenset(
            part for part in re.split(r"[,\s]+", skipped_operations) if part not in ("", "none")
        )
        self._placeholder = unavailable_value_placeholder
        self._exact = debezium_exact
        modes = {
            "decimal_handling_mode": decimal_handling_mode,
            "time_precision_mode": time_precision_mode,
            "binary_handling_mode": binary_handling_mode,
            "interval_handling_mode": interval_handling_mode,
        }
        try:
            self._modes = msgspec.convert(modes, TypeModes)
        except msgspec.ValidationError as error:
            raise UsageError(f"DebeziumFormat: {error}") from None
        if unknown := self._skipped - set("cudt"):
            raise UsageError(f"skipped_operations has {', '.join(sorted(unknown))}: use c, u, d, t or none")

    def __call__(self, event: ChangeEvent) -> list[FormattedRecord]:
        """Return the records of an event, in their order.

        Raises:
            ValueError: the options cannot express a value; the message names the column.
        """
        op = _OPS.get(event.op)
        if op is None or op in self._skipped:
            return []
        table = self._plan(event)
        if event.op is Op.MESSAGE:
            return [self._message(table, event)]
        old_key = table.changed_key(event)
        if old_key is not None:
            return self._key_change(table, event, old_key)
        key = table.key(event.key)
        records = [table.record(event, key, self._value(table, event, op, event.before, event.after))]
        if op == "d" and self._tombstones:
            records.append(table.record(event, key, None))
        return records

    def _make_plan(self, source: Source, schema: TableSchema) -> _Table:
        return _Table(
            source, schema, self._server, self._modes, self._placeholder, self._exact, self._schemas
        )

    def _value(
        self, table: _Table, event: ChangeEvent, op: str, before: Image | None, after: Image | None
    ) -> bytes:
        timestamp = event.timestamp
        payload = _Envelope(
            table.before(before, op),
            None if after is None else table.row(after),
            source_block(event, self._server),
            None,
            op,
            timestamp // 1_000_000,
            timestamp // 1_000,
            timestamp,
        )
        return table.with_schema(table.envelope_schema, payload)

    def _key_change(self, table: _Table, event: ChangeEvent, old: Image) -> list[FormattedRecord]:
        """Return delete, tombstone and create, linked by headers that hold the other key."""
        old_key, new_key = table.key(old), table.key(event.key)
        deletion = self._value(table, event, "d", event.before, None)
        creation = self._value(table, event, "c", None, event.after)
        records = [table.record(event, old_key, deletion, (("__debezium.newkey", new_key or b""),))]
        if self._tombstones:
            records.append(table.record(event, old_key, None))
        return [*records, table.record(event, new_key, creation, (("__debezium.oldkey", old_key or b""),))]

    def _message(self, table: _Table, event: ChangeEvent) -> FormattedRecord:
        message, timestamp = event.message, event.timestamp
        prefix = message.prefix if message else ""
        payload = {
            "op": "m",
            "ts_ms": timestamp // 1_000_000,
            "source": source_block(event, self._server),
            "transaction": None,
            "message": {"prefix": prefix, "content": message.content if message else b""},
        }
        key = table.with_schema(_MESSAGE_KEY_SCHEMA, {"prefix": prefix})
        value = table.with_schema(table.message_schema, payload)
        return FormattedRecord(f"{self._server}.message", key, value, timestamp, event.version)


class _Table:
    """The parts that are equal for all events of one table with one schema."""

    def __init__(
        self,
        source: Source,
        schema: TableSchema,
        server: str,
        modes: TypeModes,
        placeholder: str,
        exact: bool,
        with_schemas: bool,
    ) -> None:
        parts = [server, source.schema, source.table] if source.schema else [server, source.table]
        self.topic = ".".join(parts)
        name = ".".join(_UNSAFE.sub("_", part) for part in parts)
        as_spanner = exact and source.system == "spanner"
        self._key_names = tuple(column.name for column in schema.key_columns)
        self._with_schemas = with_schemas
        self._exact = exact
        self._names = schema.names
        shown = {column.name: column_mapping(column.type, modes, as_spanner) for column in schema}
        self._absent = {name: _absent(each.schema, placeholder, exact) for name, each in shown.items()}
        self._converters = [(name, each.convert) for name, each in shown.items() if each.convert]
        self._key_converters = {
            name: convert for name, convert in self._converters if name in self._key_names
        }
        row = [field_schema(column, shown[column.name].schema) for column in schema]
        keys = [
            field_schema(column, shown[column.name].schema, optional=False) for column in schema.key_columns
        ]
        self.key_schema = {"type": "struct", "fields": keys, "optional": False, "name": f"{name}.Key"}
        self.envelope_schema = _envelope(name, row, source.system)
        self.message_schema = _message_schema(source.system)

    def record(
        self, event: ChangeEvent, key: bytes | None, value: bytes | None, headers: Headers = ()
    ) -> FormattedRecord:
        return FormattedRecord(self.topic, key, value, event.timestamp, event.version, headers)

    def with_schema(self, schema: dict[str, Any], payload: Any) -> bytes:
        return _json({"schema": schema, "payload": payload} if self._with_schemas else payload)

    def key(self, key: Image | None) -> bytes | None:
        """Return the encoded key, or None for a table without a primary key."""
        if key is None:
            return None
        if self._key_converters:
            key = {
                name: self._shown(name, self._key_converters.get(name), value) for name, value in key.items()
            }
        return self.with_schema(self.key_schema, key)

    def row(self, image: Image) -> dict[str, Any]:
        """Return an image in the order of the table's columns, with the columns that were not sent."""
        names = self._names
        try:
            # A whole row that already has the order of the table is copied in half of the time.
            shown = image.copy() if tuple(image) == names else {name: image[name] for name in names}
        except KeyError:
            shown = self._with_absent(image)
        try:
            for name, convert in self._converters:
                value = image.get(name)
                if value is not None:
                    shown[name] = convert(value)
        except (ValueError, OverflowError, TypeError) as error:
            raise ValueError(
                f"column {name} of {self.topic} cannot be shown in Debezium JSON: {error}"
            ) from None
        if len(image) > len(self._names):  # a column that the schema does not have is data too
            shown |= {name: value for name, value in image.items() if name not in shown}
        return shown

    def _with_absent(self, image: Image) -> dict[str, Any]:
        """Return the image in the order of the table, with what stands for the columns that were not sent."""
        shown = {}
        for name in self._names:
            value = image[name] if name in image else self._absent[name]
            if value is not _OMIT:
                shown[name] = value
        return shown

    def before(self, image: Image | None, op: str) -> dict[str, Any] | None:
        if image is not None:
            return self.row(image)
        # Debezium's Spanner connector never sends a null `before` with an update.
        return self.row({}) if self._exact and op == "u" else None

    def changed_key(self, event: ChangeEvent) -> Image | None:
        """Return the old key if an UPDATE changed the primary key."""
        if event.op is not Op.UPDATE or event.before is None or event.key is None:
            return None
        before = event.before
        if all(before.get(name, value) == value for name, value in event.key.items()):
            return None
        return {name: before.get(name, value) for name, value in event.key.items()}

    def _shown(self, name: str, convert: Convert | None, value: Any) -> Any:
        if convert is None or value is None:
            return value
        try:
            return convert(value)
        except (ValueError, OverflowError, TypeError) as error:
            raise ValueError(
                f"column {name} of {self.topic} cannot be shown in Debezium JSON: {error}"
            ) from None


class _Marker:
    """A value that no column has."""


_OMIT = _Marker()


def _absent(schema: dict[str, Any], placeholder: str, exact: bool) -> Any:
    """Return what stands for a column that was not sent, or `_OMIT`."""
    if exact:
        return None
    if schema["type"] == "string":
        return placeholder
    if schema == {"type": "bytes"}:
        return b64encode(placeholder.encode()).decode()
    return _OMIT


def column_mapping(type_: ColumnType, modes: TypeModes, as_spanner: bool) -> Mapping:
    """Return how a column is shown; Debezium's Spanner connector sends decimals and dates as the service's text."""
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
    return mapping(type_, modes)


_TEXT_IN_SPANNER = frozenset({Kind.DECIMAL, Kind.DATE, Kind.TIMESTAMP, Kind.JSON, Kind.UUID, Kind.ENUM})


def _envelope(name: str, row: list[dict[str, Any]], system: str) -> dict[str, Any]:
    def image(field: str) -> dict[str, Any]:
        return {"type": "struct", "fields": row, "optional": True, "name": f"{name}.Value", "field": field}

    fields = [
        image("before"),
        image("after"),
        source_schema(system),
        _TRANSACTION_SCHEMA,
        {"type": "string", "optional": False, "field": "op"},
        *({"type": "int64", "optional": True, "field": unit} for unit in ("ts_ms", "ts_us", "ts_ns")),
    ]
    return {"type": "struct", "fields": fields, "optional": False, "name": f"{name}.Envelope", "version": 2}


_TRANSACTION_SCHEMA = {
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

_MESSAGE_KEY_SCHEMA = {
    "type": "struct",
    "fields": [{"type": "string", "optional": False, "field": "prefix"}],
    "optional": False,
    "name": "io.debezium.connector.postgresql.MessageKey",
    "version": 1,
}


def _message_schema(system: str) -> dict[str, Any]:
    content = [
        {"type": "string", "optional": True, "field": "prefix"},
        {"type": "bytes", "optional": True, "field": "content"},
    ]
    message = {
        "type": "struct",
        "fields": content,
        "optional": True,
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
