"""Avro object container files of change rows. Needs the extra `avro`.

Layout: see `penstock.event.change_rows`. Times and decimals have Avro's logical types. Names in Avro have only
letters, digits and underscores; any other character of a column's name becomes an underscore, and the field has the
property ``penstock.name`` with the name of the column.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, get_args

from penstock.errors import UsageError
from penstock.event.column_types import ColumnType, Kind
from penstock.event.model import ChangeEvent, Column, Image, TableSchema
from penstock.event.plain_types import event_metadata, plain_images, plain_schema
from penstock.io.columnar.block_events import events_of, schema_of
from penstock.io.columnar.options import AvroCompression
from penstock.io.staging.blocks import RecordBlock
from penstock.io.staging.preview import Written

ORIGINAL_NAME = "penstock.name"
"""The property of a field whose column has another name."""
TYPES: dict[Kind, Any] = {
    Kind.BOOL: "boolean",
    Kind.INT32: "int",
    Kind.INT64: "long",
    Kind.FLOAT32: "float",
    Kind.FLOAT64: "double",
    Kind.STRING: "string",
    Kind.BYTES: "bytes",
    Kind.DATE: {"type": "int", "logicalType": "date"},
    Kind.TIMESTAMP: {"type": "long", "logicalType": "timestamp-micros"},
    Kind.LOCAL_TIMESTAMP: {"type": "long", "logicalType": "local-timestamp-micros"},
}
_TEXT, _OPTIONAL_TEXT = "string", ["null", "string"]
_METADATA = {
    "type": "record",
    "name": "Metadata",
    "fields": [
        *(
            {"name": name, "type": _TEXT}
            for name in ("system", "server", "database", "schema", "table", "stream")
        ),
        {"name": "version", "type": _TEXT},
        {"name": "order", "type": "long"},
        {"name": "transaction", "type": _TEXT},
        {"name": "sequence", "type": _TEXT},
        {"name": "index", "type": "long"},
        {"name": "not_sent", "type": {"type": "array", "items": "string"}},
        {"name": "records_in_transaction", "type": ["null", "long"]},
        {"name": "transaction_tag", "type": _OPTIONAL_TEXT},
        {"name": "system_transaction", "type": ["null", "boolean"]},
        {"name": "user", "type": _TEXT},
        {"name": "message_prefix", "type": _OPTIONAL_TEXT},
        {"name": "message", "type": ["null", "bytes"]},
    ],
}


@dataclass(frozen=True, slots=True)
class AvroRows:
    """Files of the change rows of one table; see `penstock.io.staging.FileFormat`."""

    suffix: ClassVar[str] = ".avro"
    compression: AvroCompression = "deflate"

    def __post_init__(self) -> None:
        if self.compression not in get_args(AvroCompression):
            allowed = ", ".join(get_args(AvroCompression))
            raise UsageError(f"compression of Avro files is one of {allowed}, got {self.compression!r}.")

    def content(self, blocks: Iterable[RecordBlock]) -> Iterator[bytes]:
        """Yield the whole file."""
        # Imported here, so that the module can be loaded without the extra.
        import fastavro

        # Kept, because the schema of the file comes before the rows, and needs all of them.
        kept = list(blocks)
        schema = schema_of(event for block in kept for event in events_of(block))
        rows = (avro_row(event, schema) for block in kept for event in events_of(block))
        buffer = io.BytesIO()
        # Avro's own name of no compression.
        codec = "null" if self.compression == "none" else self.compression
        fastavro.writer(buffer, _parsed(schema), rows, codec=codec)
        yield buffer.getvalue()

    def rows_of_event(self, event: ChangeEvent, table: str) -> list[Written]:
        """Return the row of an event; see `penstock.io.staging.preview`."""
        types = {field["name"]: field["type"] for field in avro_schema(event.schema)["fields"]}
        row = avro_row(event, event.schema)
        return [{"table": table, "row": {name: row[name] for name in types}, "types": types}]


def avro_schema(schema: TableSchema) -> dict[str, Any]:
    """Return the Avro schema of the change rows of a table.

    Raises:
        ValueError: two columns have one name in Avro.
    """
    plain = plain_schema(schema)
    fields: list[dict[str, Any]] = [
        {"name": "op", "type": "string"},
        {"name": "timestamp", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    ]
    # A table without a key has no record for it: Avro does not allow one without fields.
    for name, columns in (("key", plain.key_columns), ("before", plain.columns), ("after", plain.columns)):
        if columns:
            # Every image may be absent, and null must come first, because it is the default.
            fields.append({"name": name, "type": ["null", _record(name, columns)], "default": None})
    fields.append({"name": "metadata", "type": _METADATA})
    return {"type": "record", "name": "Change", "namespace": "penstock", "fields": fields}


def avro_row(event: ChangeEvent, schema: TableSchema) -> dict[str, Any]:
    """Return an event as the value that fastavro writes with `avro_schema(schema)`.

    Raises:
        ValueError: a value has nanoseconds.
    """
    plain = plain_images(event.schema)
    row: dict[str, Any] = {
        name: image if image is None else _values(schema)(plain(image) or {})
        for name, image in (("key", event.key), ("before", event.before), ("after", event.after))
    }
    row |= {"op": str(event.op), "timestamp": event.timestamp // 1000, "metadata": event_metadata(event)}
    return row


def avro_name(name: str) -> str:
    """Return a name that Avro allows."""
    # Avro allows no digit at the start.
    return re.sub(r"^(?=[0-9])", "_", re.sub(r"[^A-Za-z0-9_]", "_", name)) or "_"


@lru_cache(maxsize=1024)
def _parsed(schema: TableSchema) -> Any:
    import fastavro

    return fastavro.parse_schema(avro_schema(schema))


def _record(name: str, columns: Iterable[Column]) -> dict[str, Any]:
    # The path makes the name unique: Avro does not allow two records of one name, and all three images have the
    # same columns.
    fields = [_field(f"{name}_{avro_name(column.name)}", column.name, column.type) for column in columns]
    names = [field["name"] for field in fields]
    if twice := sorted({each for each in names if names.count(each) > 1}):
        raise ValueError(f"columns have the same name in Avro, {', '.join(twice)}: rename them")
    return {"type": "record", "name": name.capitalize(), "fields": fields}


def _field(path: str, original: str, type_: ColumnType) -> dict[str, Any]:
    name = avro_name(original)
    # Nullable, because a later schema may make it so, and readers resolve by name.
    field = {"name": name, "type": ["null", _type(path, type_)], "default": None}
    return field if name == original else {**field, ORIGINAL_NAME: original}


def _type(path: str, type_: ColumnType) -> Any:
    if type_.kind is Kind.DECIMAL:
        return {
            "type": "bytes",
            "logicalType": "decimal",
            "precision": type_.precision,
            "scale": type_.scale or 0,
        }
    if type_.kind is Kind.ARRAY:
        return {"type": "array", "items": ["null", _type(path, type_.element or ColumnType(Kind.STRING))]}
    if type_.kind is Kind.STRUCT:
        # Named after its path, because a name may stand for one record only in a schema of Avro.
        fields = [_field(f"{path}_{avro_name(each.name)}", each.name, each.type) for each in type_.fields]
        return {"type": "record", "name": path, "fields": fields}
    return TYPES[type_.kind]


@lru_cache(maxsize=1024)
def _values(schema: TableSchema) -> Callable[[Image], dict[str, Any]]:
    """Return the function from a plain image to the fields of its record: Avro names, and times in microseconds."""
    rules = {column.name: (avro_name(column.name), _value(column.type)) for column in plain_schema(schema)}

    def convert(image: Image) -> dict[str, Any]:
        fields = {}
        for column, value in image.items():
            name, rule = rules[column]
            fields[name] = value if value is None or rule is None else rule(value)
        return fields

    return convert


def _value(type_: ColumnType) -> Callable[[Any], Any] | None:
    if type_.kind in (Kind.TIMESTAMP, Kind.LOCAL_TIMESTAMP):
        return _microseconds
    if type_.kind is Kind.ARRAY and type_.element and (inner := _value(type_.element)):
        return lambda values: [None if each is None else inner(each) for each in values]
    if type_.kind is Kind.STRUCT:
        rules = {each.name: (avro_name(each.name), _value(each.type)) for each in type_.fields}
        return lambda value: {
            rules[name][0]: each if each is None or (rule := rules[name][1]) is None else rule(each)
            for name, each in value.items()
        }
    return None


def _microseconds(nanoseconds: int) -> int:
    # Rounding would change a key without an error.
    microseconds, rest = divmod(nanoseconds, 1000)
    if rest:
        raise ValueError("a timestamp has nanoseconds, which Avro's timestamp-micros cannot hold")
    return microseconds
