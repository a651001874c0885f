"""Events as Arrow record batches, and back. Needs the extra `arrow`.

    for batch in arrow_batches(events):          # in the order of the events
        writer.write_batch(batch)

A batch holds neighbours of one source and one schema. Its columns:

| column | type |
|---|---|
| `op`, `user` | string |
| `timestamp` | timestamp, UTC |
| `key`, `before`, `after` | struct of the columns; null if the event has no such image |
| `key_sent`, `before_sent`, `after_sent` | list of the names of the columns that the image has, in its order |
| `version` | struct of order, transaction, sequence, index |
| `transaction`, `message` | struct, or null |
| `cells` | list of structs: the entries of a Bigtable change |

So NULL (null, and in `…_sent`), empty, and not sent (null, and not in `…_sent`) stay apart. Source and schema are in
the metadata of the batch's schema, under `penstock.source` and `penstock.schema`.

| kind | Arrow type | not carried |
|---|---|---|
| BOOL, integers, FLOAT32, FLOAT64 | the same | |
| DECIMAL with precision and scale | decimal128, decimal256 | trailing zeros; NaN and infinities raise |
| DECIMAL without | string | |
| STRING, JSON, ENUM, UUID, OTHER | string | |
| BYTES, PROTO | binary | |
| DATE | date32 | infinite dates raise |
| TIME | time64[ns] | |
| TIMESTAMP, LOCAL_TIMESTAMP | timestamp in `timestamp_unit`, with and without UTC | see below |
| INTERVAL | month_day_nano_interval | months or days beyond 32 bits raise |
| ARRAY, STRUCT | list, struct | an absent field of a struct becomes NULL |

64 bits of nanoseconds reach from 1677 to 2262. With `timestamp_unit="us"` the years 1 to 9999 fit, and a value that has
nanoseconds raises. Nothing is rounded: a value that its type cannot hold raises an UnwritableError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import groupby
from typing import Any, Literal

import msgspec
import pyarrow as pa

from penstock.errors import UnwritableError, UsageError
from penstock.event.column_types import ColumnType, Interval, Kind
from penstock.event.model import (
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

TimestampUnit = Literal["ns", "us"]
Rule = Callable[[Any], Any] | None

_IMAGES = ("key", "before", "after")
_SOURCE, _SCHEMA, _UNIT = b"penstock.source", b"penstock.schema", b"penstock.timestamp_unit"
_TIMESTAMPS = (Kind.TIMESTAMP, Kind.LOCAL_TIMESTAMP)
_TEXT, _NUMBER = pa.string(), pa.int64()
_VERSION_TYPE = pa.struct({"order": _NUMBER, "transaction": _TEXT, "sequence": _TEXT, "index": _NUMBER})
_TRANSACTION_TYPE = pa.struct(
    {
        "id": _TEXT,
        "records": _NUMBER,
        "partitions": _NUMBER,
        "last_in_partition": pa.bool_(),
        "tag": _TEXT,
        "origin": _TEXT,
        "system": pa.bool_(),
    }
)
_MESSAGE_TYPE = pa.struct({"prefix": _TEXT, "content": pa.binary(), "transactional": pa.bool_()})
_CELL_TYPE = pa.struct(
    {
        "mod": _TEXT,
        "family": _TEXT,
        "qualifier": pa.binary(),
        "start_us": _NUMBER,
        "end_us": _NUMBER,
        "value": pa.binary(),
        "number": _NUMBER,  # the input of an aggregate
    }
)
_SIMPLE = {
    Kind.BOOL: pa.bool_(),
    Kind.INT8: pa.int8(),
    Kind.INT16: pa.int16(),
    Kind.INT32: pa.int32(),
    Kind.INT64: pa.int64(),
    Kind.UINT8: pa.uint8(),
    Kind.UINT16: pa.uint16(),
    Kind.UINT32: pa.uint32(),
    Kind.UINT64: pa.uint64(),
    Kind.FLOAT32: pa.float32(),
    Kind.FLOAT64: pa.float64(),
    Kind.BYTES: pa.binary(),
    Kind.PROTO: pa.binary(),
    Kind.DATE: pa.date32(),
    Kind.TIME: pa.time64("ns"),
    Kind.INTERVAL: pa.month_day_nano_interval(),
}


def arrow_type(type_: ColumnType, timestamp_unit: TimestampUnit = "ns") -> pa.DataType:
    """Return the Arrow type of a column type."""
    match type_.kind:
        case Kind.DECIMAL:
            return _decimal_type(type_.precision, type_.scale)
        case Kind.TIMESTAMP:
            return pa.timestamp(timestamp_unit, "UTC")
        case Kind.LOCAL_TIMESTAMP:
            return pa.timestamp(timestamp_unit)
        case Kind.ARRAY:
            return pa.list_(arrow_type(type_.element or ColumnType(Kind.OTHER), timestamp_unit))
        case Kind.STRUCT:
            return pa.struct([(field.name, arrow_type(field.type, timestamp_unit)) for field in type_.fields])
    return _SIMPLE.get(type_.kind, _TEXT)


def arrow_batches(
    events: Iterable[ChangeEvent], *, timestamp_unit: TimestampUnit = "ns", batch_size: int = 10_000
) -> Iterator[pa.RecordBatch]:
    """Yield record batches of at most `batch_size` events, in the order of the events.

    Raises:
        UsageError: an argument is out of range.
        UnwritableError: a value that its Arrow type cannot hold; the message names the column.
    """
    if timestamp_unit not in ("ns", "us") or batch_size < 1:
        raise UsageError("arrow_batches: timestamp_unit is ns or us, and batch_size is at least 1")
    for (source, schema), neighbours in groupby(events, key=lambda event: (event.source, event.schema)):
        pending: list[ChangeEvent] = []
        for event in neighbours:
            pending.append(event)
            if len(pending) == batch_size:
                yield _batch(source, schema, pending, timestamp_unit)
                pending = []
        if pending:
            yield _batch(source, schema, pending, timestamp_unit)


def events_of_batch(batch: pa.RecordBatch) -> list[ChangeEvent]:
    """Return the events of a batch that `arrow_batches` made."""
    metadata = batch.schema.metadata
    source = msgspec.msgpack.decode(metadata[_SOURCE], type=Source)
    schema = TableSchema(msgspec.msgpack.decode(metadata[_SCHEMA], type=tuple[Column, ...]))
    unit = 1000 if metadata[_UNIT] == b"us" else 1
    columns = {name: _plain(batch.column(name)).to_pylist() for name in batch.schema.names}
    read = {column.name: _reader(column.type, unit) for column in schema}
    images = {
        name: [
            _image(value, sent, read)
            for value, sent in zip(columns[name], columns[f"{name}_sent"], strict=True)
        ]
        for name in _IMAGES
    }
    return [
        ChangeEvent(
            source,
            Op(columns["op"][row]),
            columns["timestamp"][row] * unit,
            images["key"][row],
            images["before"][row],
            images["after"][row],
            Version(**columns["version"][row]),
            schema,
            _optional(Transaction, columns["transaction"][row]),
            _optional(Message, columns["message"][row]),
            tuple(_cell_change(cell) for cell in columns["cells"][row]),
            columns["user"][row],
        )
        for row in range(batch.num_rows)
    ]


def _decimal_type(precision: int | None, scale: int | None) -> pa.DataType:
    if precision is None or scale is None or precision > 76:
        return _TEXT
    return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)


def _batch(
    source: Source, schema: TableSchema, events: Sequence[ChangeEvent], unit: TimestampUnit
) -> pa.RecordBatch:
    moments = [event.timestamp for event in events]
    arrays: dict[str, pa.Array] = {
        "op": pa.array([str(event.op) for event in events], _TEXT),
        "timestamp": arrow_array("timestamp", ColumnType(Kind.TIMESTAMP), moments, unit, source),
    }
    for name in _IMAGES:
        arrays |= _image_arrays(name, source, schema, [getattr(event, name) for event in events], unit)
    arrays |= {
        "version": pa.array([_fields(event.version) for event in events], _VERSION_TYPE),
        "transaction": pa.array([_fields(event.transaction) for event in events], _TRANSACTION_TYPE),
        "message": pa.array([_fields(event.message) for event in events], _MESSAGE_TYPE),
        "cells": pa.array([[_cell(cell) for cell in event.cells] for event in events], pa.list_(_CELL_TYPE)),
        "user": pa.array([event.user for event in events], _TEXT),
    }
    batch = pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
    return batch.replace_schema_metadata(
        {
            _SOURCE: msgspec.msgpack.encode(source),
            _SCHEMA: msgspec.msgpack.encode(schema.columns),
            _UNIT: unit.encode(),
        }
    )


def _image_arrays(
    name: str, source: Source, schema: TableSchema, images: Sequence[Image | None], unit: TimestampUnit
) -> dict[str, pa.Array]:
    known, none = set(schema.names), Image()
    for image in images:
        if image is not None and not image.keys() <= known:
            extra = ", ".join(sorted(image.keys() - known))
            raise UnwritableError(
                f"column {extra} of {source.qualified_table} is not in the schema, so Arrow has no type for it"
            )
    columns = [
        arrow_array(
            column.name, column.type, [(image or none).get(column.name) for image in images], unit, source
        )
        for column in schema
    ]
    if columns:
        fields = [pa.field(column.name, array.type) for column, array in zip(schema, columns, strict=True)]
        absent = pa.array([image is None for image in images], pa.bool_())
        struct = pa.StructArray.from_arrays(columns, fields=fields, mask=absent)
    else:  # `from_arrays` takes the number of rows from the first column
        struct = pa.array([None if image is None else {} for image in images], pa.struct([]))
    sent = pa.array([None if image is None else list(image) for image in images], pa.list_(_TEXT))
    return {name: struct, f"{name}_sent": sent}


def arrow_array(
    name: str, type_: ColumnType, values: list[Any], unit: TimestampUnit, source: Source
) -> pa.Array:
    held_as = arrow_type(type_, unit)
    write = _writer(type_, 1000 if unit == "us" else 1)
    try:
        written = values if write is None else [None if value is None else write(value) for value in values]
        return pa.array(written, held_as)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):  # their texts show values
        raise UnwritableError(
            f"column {name} of {source.qualified_table} has a value that Arrow's {held_as} cannot hold"
        ) from None


def python_values(array: pa.Array, type_: ColumnType, unit: TimestampUnit) -> list[Any]:
    """Return the values of an array that `arrow_array` made."""
    values, read = _plain(array).to_pylist(), _reader(type_, 1000 if unit == "us" else 1)
    return values if read is None else [None if value is None else read(value) for value in values]


def _writer(type_: ColumnType, unit: int) -> Rule:
    """Return the function from a Python value to what pyarrow converts without loss; None: no change."""
    if type_.kind in _TIMESTAMPS and unit > 1:
        return lambda value: _exact_quotient(value, unit)
    if type_.kind is Kind.DECIMAL:
        return str if _decimal_type(type_.precision, type_.scale) == _TEXT else _finite
    if type_.kind is Kind.INTERVAL:
        return Interval.parts
    return _nested(type_, lambda inner: _writer(inner, unit))


def _reader(type_: ColumnType, unit: int) -> Rule:
    """Return the way back of `_writer`, for the values of `_plain` arrays."""
    if type_.kind in _TIMESTAMPS and unit > 1:
        return lambda value: value * unit
    if type_.kind is Kind.DECIMAL and _decimal_type(type_.precision, type_.scale) == _TEXT:
        return Decimal
    if type_.kind is Kind.INTERVAL:
        return lambda value: Interval(*value)
    return _nested(type_, lambda inner: _reader(inner, unit))


def _nested(type_: ColumnType, rule_of: Callable[[ColumnType], Rule]) -> Rule:
    if type_.kind is Kind.ARRAY and type_.element:
        element = rule_of(type_.element)
        return element and (lambda values: [None if value is None else element(value) for value in values])
    if type_.kind is Kind.STRUCT:
        rules = {field.name: rule_of(field.type) for field in type_.fields}
        return lambda value: _by_field(rules, value)
    return None


def _by_field(rules: dict[str, Rule], value: dict[str, Any]) -> dict[str, Any]:
    if not value.keys() <= rules.keys():  # pyarrow would drop it
        raise ValueError("a struct has a field that its type does not have")
    converted = {}
    for name, each in value.items():
        rule = rules[name]
        converted[name] = each if each is None or rule is None else rule(each)
    return converted


def _finite(value: Decimal) -> Decimal:
    if not value.is_finite():  # pyarrow turns NaN into null
        raise ValueError("a decimal of Arrow is neither NaN nor infinite")
    return value


def _exact_quotient(value: int, unit: int) -> int:
    quotient, rest = divmod(value, unit)
    if rest:
        raise ValueError("the value has nanoseconds")
    return quotient


def _plain(array: pa.Array) -> pa.Array:
    """Return the array with dates and times as integers: the types of `datetime` cannot hold them all."""
    return array.cast(_plain_type(array.type))


def _plain_type(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(type_) or pa.types.is_time64(type_):
        return pa.int64()
    if pa.types.is_date32(type_):
        return pa.int32()
    if pa.types.is_list(type_):
        return pa.list_(_plain_type(type_.value_type))
    if pa.types.is_struct(type_):
        return pa.struct([(field.name, _plain_type(field.type)) for field in type_])
    return type_


def _image(value: dict[str, Any] | None, sent: list[str] | None, read: dict[str, Rule]) -> Image | None:
    if sent is None or value is None:
        return None
    image: Image = {}
    for name in sent:
        rule, held = read[name], value[name]
        image[name] = held if held is None or rule is None else rule(held)
    return image


def _fields(struct: msgspec.Struct | None) -> dict[str, Any] | None:
    return None if struct is None else {name: getattr(struct, name) for name in struct.__struct_fields__}


def _optional(struct: type[Any], fields: dict[str, Any] | None) -> Any:
    return None if fields is None else struct(**fields)


def _cell(cell: CellChange) -> dict[str, Any]:
    fields = {name: getattr(cell, name) for name in ("mod", "family", "qualifier", "start_us", "end_us")}
    number = isinstance(cell.value, int)
    return {**fields, "value": None if number else cell.value, "number": cell.value if number else None}


def _cell_change(fields: dict[str, Any]) -> CellChange:
    number, value = fields.pop("number"), fields.pop("value")
    return CellChange(**fields, value=value if number is None else number)
