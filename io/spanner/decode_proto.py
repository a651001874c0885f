"""Decodes rows of MUTABLE_KEY_RANGE streams: an encoded google.spanner.v1.ChangeStreamRecord in base64. Pure.

The message types are made here, because the client library's would import the client. Mods become the JSON text that
streams of the other mode send: an object from column names to values.

Source: google/spanner/v1/change_stream.proto and type.proto.
"""

from __future__ import annotations

import binascii
import json
import math
from collections.abc import Sequence
from typing import Any

import msgspec
from google.protobuf.message import DecodeError as MalformedError
from google.protobuf.struct_pb2 import Value

from penstock.errors import DecodeError
from penstock.io.change_streams.protobuf import Field, Label, message_classes
from penstock.io.spanner.record import (
    ChangeRecord,
    ColumnType,
    DamagedRecord,
    DataChangeRecord,
    HeartbeatRecord,
    Mods,
    PartitionEndRecord,
    PartitionEventRecord,
    PartitionStartRecord,
)
from penstock.timestamps import NANOS

_MAX_CACHED = 1000
"""Number of entries at which the cache is emptied: far more than a database has tables."""

_MESSAGES = {
    # Each kind of record is repeated, although it occurs once at most: a field without presence could not tell an
    # absent record from an empty one.
    "Record": (
        Field("data", 1, "bytes", Label.REPEATED),
        Field("heartbeat", 2, "Heartbeat", Label.REPEATED),
        Field("start", 3, "Start", Label.REPEATED),
        Field("end", 4, "End", Label.REPEATED),
        Field("event", 5, "Event", Label.REPEATED),
    ),
    "Data": (
        Field("commit_timestamp", 1, "Timestamp"),
        Field("record_sequence", 2, "string"),
        Field("server_transaction_id", 3, "string"),
        Field("is_last", 4, "bool"),
        Field("table", 5, "string"),
        Field("column_metadata", 6, "bytes", Label.REPEATED),
        Field("mods", 7, "Mod", Label.REPEATED),
        Field("mod_type", 8, "int32"),
        Field("value_capture_type", 9, "int32"),
        Field("records", 10, "int32"),
        Field("partitions", 11, "int32"),
        Field("transaction_tag", 12, "string"),
        Field("is_system", 13, "bool"),
    ),
    "Place": (
        Field("commit_timestamp", 1, "Timestamp"),
        Field("record_sequence", 2, "string"),
        Field("server_transaction_id", 3, "string"),
    ),
    "Mod": (
        Field("keys", 1, "ModValue", Label.REPEATED),
        Field("old_values", 2, "ModValue", Label.REPEATED),
        Field("new_values", 3, "ModValue", Label.REPEATED),
    ),
    "ModValue": (Field("column", 1, "int32"), Field("value", 2, "bytes")),
    "ColumnMetadata": (
        Field("name", 1, "string"),
        Field("type", 2, "Type"),
        Field("is_primary_key", 3, "bool"),
        Field("ordinal_position", 4, "int64"),
    ),
    "Type": (
        Field("code", 1, "int32"),
        Field("array_element_type", 2, "Type", Label.REPEATED),
        Field("struct_type", 3, "StructType", Label.REPEATED),
        Field("type_annotation", 4, "int32"),
        Field("proto_type_fqn", 5, "string"),
    ),
    "StructType": (Field("fields", 1, "StructField", Label.REPEATED),),
    "StructField": (Field("name", 1, "string"), Field("type", 2, "Type")),
    "Heartbeat": (Field("timestamp", 1, "Timestamp"),),
    "Start": (
        Field("start_timestamp", 1, "Timestamp"),
        Field("record_sequence", 2, "string"),
        Field("partition_tokens", 3, "string", Label.REPEATED),
    ),
    "End": (Field("end_timestamp", 1, "Timestamp"), Field("record_sequence", 2, "string")),
    "Event": (
        Field("commit_timestamp", 1, "Timestamp"),
        Field("record_sequence", 2, "string"),
        Field("partition_token", 3, "string"),
        Field("move_in_events", 4, "Move", Label.REPEATED),
        Field("move_out_events", 5, "Move", Label.REPEATED),
    ),
    "Move": (Field("token", 1, "string"),),
    "Timestamp": (Field("seconds", 1, "int64"), Field("nanos", 2, "int32")),
}
_made = message_classes("penstock.io.spanner.decode_proto", _MESSAGES)

TYPE_CODES = {
    1: "BOOL", 2: "INT64", 3: "FLOAT64", 4: "TIMESTAMP", 5: "DATE", 6: "STRING", 7: "BYTES", 8: "ARRAY", 9: "STRUCT",
    10: "NUMERIC", 11: "JSON", 13: "PROTO", 14: "ENUM", 15: "FLOAT32", 16: "INTERVAL", 17: "UUID",
}  # fmt: skip
TYPE_ANNOTATIONS = {2: "PG_NUMERIC", 3: "PG_JSONB", 4: "PG_OID"}
MOD_TYPES = {10: "INSERT", 20: "UPDATE", 30: "DELETE"}
CAPTURE_TYPES = {10: "OLD_AND_NEW_VALUES", 20: "NEW_VALUES", 30: "NEW_ROW", 40: "NEW_ROW_AND_OLD_VALUES"}
"""Names of the numbers of the enumerations."""


def decode_proto(text: str) -> ChangeRecord:
    """Return the record in one row.

    Raises:
        DecodeError: the row is no encoded message, has no known kind of record, or cannot be placed in its partition.
    """
    try:
        record = _made["Record"].FromString(binascii.a2b_base64(text))
        if record.data:
            return _data_record(record.data[0])
    except (ValueError, MalformedError):
        raise DecodeError("a row of the change stream is not a ChangeStreamRecord in base64") from None
    if record.heartbeat:
        return HeartbeatRecord(_moment(record.heartbeat[0].timestamp))
    if record.start:
        start = record.start[0]
        return PartitionStartRecord(
            _moment(start.start_timestamp), start.record_sequence, tuple(start.partition_tokens)
        )
    if record.end:
        return PartitionEndRecord(_moment(record.end[0].end_timestamp), record.end[0].record_sequence)
    if record.event:
        event = record.event[0]
        return PartitionEventRecord(
            _moment(event.commit_timestamp),
            event.record_sequence,
            frozenset([move.token for move in event.move_in_events]),
            frozenset([move.token for move in event.move_out_events]),
        )
    raise DecodeError(
        "the change stream sent a record that is neither data, heartbeat, partition start, partition end nor "
        "partition event"
    )


def _moment(timestamp: Any) -> int:
    moment: int = timestamp.seconds * NANOS + timestamp.nanos
    return moment


def _data_record(encoded: bytes) -> DataChangeRecord | DamagedRecord:
    try:
        data = _made["Data"].FromString(encoded)
        columns, names = _columns(data.column_metadata)
        return DataChangeRecord(
            _moment(data.commit_timestamp),
            data.record_sequence,
            data.server_transaction_id,
            data.is_last,
            data.table,
            columns,
            _mods(data.mods, names),
            MOD_TYPES[data.mod_type],
            CAPTURE_TYPES[data.value_capture_type],
            data.records,
            data.partitions,
            data.transaction_tag,
            data.is_system,
        )
    except (ValueError, LookupError, MalformedError) as error:
        place = _made["Place"].FromString(encoded)
        # A record that is damaged as a whole has no place either.
        if not place.server_transaction_id or not place.record_sequence or not place.commit_timestamp.seconds:
            raise
        return DamagedRecord(
            _moment(place.commit_timestamp),
            place.record_sequence,
            place.server_transaction_id,
            _reason(error),
            encoded,
            "google.spanner.v1.ChangeStreamRecord.DataChangeRecord",
        )


def _reason(error: Exception) -> str:
    # Numbers of columns and enumerations are no values of rows; other messages may show some.
    return f"a number without a meaning: {error}" if isinstance(error, LookupError) else type(error).__name__


_known_columns: dict[tuple[bytes, ...], tuple[tuple[ColumnType, ...], list[bytes]]] = {}
"""A cache of the process: column types repeat in every record. Threads may fill it at the same time."""


def _columns(encoded: Sequence[bytes]) -> tuple[tuple[ColumnType, ...], list[bytes]]:
    """Return the columns of a record, and the beginning of each one's member in a JSON object."""
    key = tuple(encoded)
    known = _known_columns.get(key)
    if known is None:
        if len(_known_columns) >= _MAX_CACHED:
            _known_columns.clear()
        columns = tuple([_column(_made["ColumnMetadata"].FromString(each)) for each in key])
        # The name of a member is encoded once per table, and not once per value.
        names = [msgspec.json.encode(column.name) + b":" for column in columns]
        known = _known_columns[key] = columns, names
    return known


def _column(metadata: Any) -> ColumnType:
    kind = json.dumps(_type(metadata.type), sort_keys=True, separators=(",", ":"))
    return ColumnType(metadata.name, kind, metadata.is_primary_key, metadata.ordinal_position)


def _type(message: Any) -> dict[str, Any]:
    """Return a Type as the JSON that streams of the other mode send."""
    # A code that this release does not know becomes a type that it does not know.
    kind: dict[str, Any] = {"code": TYPE_CODES.get(message.code, f"TYPE_CODE_{message.code}")}
    if message.array_element_type:
        kind["array_element_type"] = _type(message.array_element_type[0])
    if message.struct_type:
        fields = [{"name": each.name, "type": _type(each.type)} for each in message.struct_type[0].fields]
        kind["struct_type"] = {"fields": fields}
    if message.type_annotation:
        kind["type_annotation"] = TYPE_ANNOTATIONS.get(
            message.type_annotation, f"TYPE_ANNOTATION_{message.type_annotation}"
        )
    if message.proto_type_fqn:
        kind["proto_type_fqn"] = message.proto_type_fqn
    return kind


def _mods(mods: Any, names: list[bytes]) -> Mods:
    texts: list[str] = []
    for mod in mods:
        texts += _side(mod.keys, names), _side(mod.new_values, names), _side(mod.old_values, names)
    return Mods(tuple(texts))


def _side(values: Any, names: list[bytes]) -> str:
    members = []
    for each in values:
        # Python would take a negative index from the end of the list.
        if each.column < 0:
            raise LookupError(each.column)
        members.append(names[each.column] + _json(each.value))
    return (b"{" + b",".join(members) + b"}").decode()


def _json(encoded: bytes) -> bytes:
    """Return an encoded google.protobuf.Value as JSON text."""
    return msgspec.json.encode(_plain(Value.FromString(encoded)))


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "string_value" or kind == "bool_value":
        return getattr(value, kind)
    if kind == "list_value":
        return [_plain(each) for each in value.list_value.values]
    if kind == "number_value":
        return _number(value.number_value)
    if kind == "struct_value":
        return {name: _plain(each) for name, each in value.struct_value.fields.items()}
    return None


def _number(number: float) -> float | str:
    """Return a number, or its text if JSON has no such number (NaN and infinities)."""
    if math.isfinite(number):
        return number
    # Protobuf has these numbers, and JSON has not.
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
