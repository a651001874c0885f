"""Records as the one column of a change stream query's rows, in the three forms that the service has.

- GoogleSQL, IMMUTABLE_KEY_RANGE: an array of structs with three arrays, of which one has an element. All is
  positional; keys, new and old values are JSON text.
- PostgreSQL, IMMUTABLE_KEY_RANGE: one JSONB object with one key.
- MUTABLE_KEY_RANGE: a google.spanner.v1.ChangeStreamRecord, as PROTO in GoogleSQL and as bytea in PostgreSQL;
  on the wire both are base64.

Source: Spanner documentation, "Change stream partitions, records, and queries", "Change streams record
formats"; change_stream.proto; PostgreSQL's timestamps have the form of Google's emulator, measured.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from google.cloud.spanner_v1.types import change_stream as change_stream_types
from google.cloud.spanner_v1.types import result_set as result_set_types
from google.cloud.spanner_v1.types import type as type_types

from penstock_emulators.simulated_spanner import wire
from penstock_emulators.simulated_spanner.column_type import POSTGRESQL, ColumnType, json_text
from penstock_emulators.simulated_spanner.record import (
    Children,
    DataChange,
    Heartbeat,
    Mod,
    PartitionEnd,
    PartitionEvent,
    PartitionStart,
    Record,
    RecordColumn,
)
from penstock_emulators.simulated_spanner.rows import Row
from penstock_emulators.simulated_spanner.schema import MUTABLE
from penstock_emulators.simulated_spanner.timestamp import SECOND, format_timestamp
from penstock_emulators.simulated_spanner.value import Value

_ChangeStreamRecord = change_stream_types.ChangeStreamRecord.pb()
_Metadata = result_set_types.ResultSetMetadata.pb()
_Type = type_types.Type.pb()
_TypeCode = type_types.TypeCode
_Annotation = type_types.TypeAnnotationCode

_PROTO_NAME = "google.spanner.v1.ChangeStreamRecord"
_DATA_FIELDS = (
    ("commit_timestamp", "TIMESTAMP"),
    ("record_sequence", "STRING"),
    ("server_transaction_id", "STRING"),
    ("is_last_record_in_transaction_in_partition", "BOOL"),
    ("table_name", "STRING"),
    (
        "column_types",
        (("name", "STRING"), ("type", "JSON"), ("is_primary_key", "BOOL"), ("ordinal_position", "INT64")),
    ),
    ("mods", (("keys", "JSON"), ("new_values", "JSON"), ("old_values", "JSON"))),
    ("mod_type", "STRING"),
    ("value_capture_type", "STRING"),
    ("number_of_records_in_transaction", "INT64"),
    ("number_of_partitions_in_transaction", "INT64"),
    ("transaction_tag", "STRING"),
    ("is_system_transaction", "BOOL"),
)
_CHILD_FIELDS = (
    ("start_timestamp", "TIMESTAMP"),
    ("record_sequence", "STRING"),
    ("child_partitions", (("token", "STRING"), ("parent_partition_tokens", ["STRING"]))),
)
_ROW_TYPE = (
    ("data_change_record", _DATA_FIELDS),
    ("heartbeat_record", (("timestamp", "TIMESTAMP"),)),
    ("child_partitions_record", _CHILD_FIELDS),
)


def encoder(dialect: str, partition_mode: str) -> Callable[[Record], bytes]:
    """Return the function that encodes a record as a google.protobuf.Value."""
    if partition_mode == MUTABLE:
        return proto_value
    return json_value if dialect == POSTGRESQL else struct_value


@lru_cache(maxsize=64)
def row_metadata(dialect: str, partition_mode: str, function: str) -> bytes:
    """Return the encoded ResultSetMetadata of a change stream query."""
    metadata = _Metadata()
    field = metadata.row_type.fields.add()
    # The names of the column, as the two dialects have them.
    field.name = function if dialect == POSTGRESQL else "ChangeRecord"
    if partition_mode == MUTABLE and dialect == POSTGRESQL:
        field.type_.code = _TypeCode.BYTES
    elif partition_mode == MUTABLE:
        field.type_.code = _TypeCode.PROTO
        field.type_.proto_type_fqn = _PROTO_NAME
    elif dialect == POSTGRESQL:
        field.type_.code = _TypeCode.JSON
        field.type_.type_annotation = _Annotation.PG_JSONB
    else:
        _fill_type(field.type_, _ROW_TYPE)
    return metadata.SerializeToString()


def _fill_type(target: Any, kind: Any) -> None:
    """Fill a Type: a name is a scalar, a list an array of scalars, a tuple an array of structs."""
    if isinstance(kind, str):
        target.code = _TypeCode[kind]
        return
    target.code = _TypeCode.ARRAY
    if isinstance(kind, list):
        target.array_element_type.code = _TypeCode[kind[0]]
        return
    target.array_element_type.code = _TypeCode.STRUCT
    for name, inner in kind:
        field = target.array_element_type.struct_type.fields.add()
        field.name = name
        _fill_type(field.type_, inner)


def struct_value(record: Record) -> bytes:
    """Encode a record as the array of structs of GoogleSQL."""
    # One of three arrays has an element, which says the kind of the record.
    kinds = [wire.EMPTY_LIST, wire.EMPTY_LIST, wire.EMPTY_LIST]
    if isinstance(record, DataChange):
        kinds[0] = wire.list_value((_data_struct(record),))
    elif isinstance(record, Heartbeat):
        kinds[1] = wire.list_value((wire.list_value((_moment(record.timestamp),)),))
    elif isinstance(record, Children):
        kinds[2] = wire.list_value((_children_struct(record),))
    else:
        raise TypeError(f"{type(record).__name__} is no record of an IMMUTABLE_KEY_RANGE stream")
    return wire.list_value((wire.list_value(kinds),))


def _moment(timestamp: int) -> bytes:
    return wire.string(format_timestamp(timestamp))


def _data_struct(record: DataChange) -> bytes:
    return wire.list_value(
        (
            _moment(record.timestamp),
            wire.string(f"{record.sequence:08d}"),
            wire.string(record.transaction),
            wire.boolean(record.is_last),
            wire.string(record.table),
            _columns_struct(record.columns),
            wire.list_value([_mod_struct(mod) for mod in record.mods]),
            wire.string(record.mod_type),
            wire.string(record.capture),
            wire.string(str(record.records_in_transaction)),
            wire.string(str(record.partitions_in_transaction)),
            wire.string(record.tag),
            wire.boolean(record.is_system),
        )
    )


@lru_cache(maxsize=1024)
# The columns of a table are the same in all of its records.
def _columns_struct(columns: tuple[RecordColumn, ...]) -> bytes:
    return wire.list_value(
        [
            wire.list_value(
                (
                    wire.string(each.name),
                    wire.string(json_text(each.kind)),
                    wire.boolean(each.is_key),
                    wire.string(str(each.ordinal)),
                )
            )
            for each in columns
        ]
    )


def _mod_struct(mod: Mod) -> bytes:
    return wire.list_value([wire.string(_json(side)) for side in (mod.keys, mod.new, mod.old)])


_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, sort_keys=True).encode
"""Keys are sorted, as in the documentation's examples."""


def _children_struct(record: Children) -> bytes:
    children = [
        wire.list_value((wire.string(token), wire.list_value([wire.string(each) for each in parents])))
        for token, parents in record.children
    ]
    return wire.list_value(
        (_moment(record.timestamp), wire.string(f"{record.sequence:08d}"), wire.list_value(children))
    )


def json_value(record: Record) -> bytes:
    """Encode a record as the JSONB of PostgreSQL."""
    if isinstance(record, DataChange):
        content = {"data_change_record": _data_json(record)}
    elif isinstance(record, Heartbeat):
        content = {"heartbeat_record": {"timestamp": _pg_moment(record.timestamp)}}
    elif isinstance(record, Children):
        children = [{"token": t, "parent_partition_tokens": list(p)} for t, p in record.children]
        content = {
            "child_partitions_record": {
                "start_timestamp": _pg_moment(record.timestamp),
                "record_sequence": f"{record.sequence:08d}",
                "child_partitions": children,
            }
        }
    else:
        raise TypeError(f"{type(record).__name__} is no record of an IMMUTABLE_KEY_RANGE stream")
    return wire.string(_json(content))


def _pg_moment(timestamp: int) -> str:
    return format_timestamp(timestamp).removesuffix("Z") + "+00:00"


def _data_json(record: DataChange) -> dict[str, Any]:
    return {
        "commit_timestamp": _pg_moment(record.timestamp),
        "record_sequence": f"{record.sequence:08d}",
        "server_transaction_id": record.transaction,
        "is_last_record_in_transaction_in_partition": record.is_last,
        "table_name": record.table,
        "column_types": [
            {
                "name": each.name,
                "type": each.kind.as_json(),
                "is_primary_key": each.is_key,
                "ordinal_position": each.ordinal,
            }
            for each in record.columns
        ],
        "mods": [{"keys": mod.keys, "new_values": mod.new, "old_values": mod.old} for mod in record.mods],
        "mod_type": record.mod_type,
        "value_capture_type": record.capture,
        "number_of_records_in_transaction": record.records_in_transaction,
        "number_of_partitions_in_transaction": record.partitions_in_transaction,
        "transaction_tag": record.tag,
        "is_system_transaction": record.is_system,
    }


def proto_value(record: Record) -> bytes:
    """Encode a record as the ChangeStreamRecord of MUTABLE_KEY_RANGE streams, in base64."""
    return wire.string(base64.b64encode(proto_record(record).SerializeToString()).decode())


def proto_record(record: Record) -> Any:
    """Return a record as a ChangeStreamRecord message."""
    # Built with the protobuf classes, not by hand: these messages nest deeper, and speed matters less here.
    message = _ChangeStreamRecord()
    if isinstance(record, DataChange):
        _fill_data(message.data_change_record, record)
    elif isinstance(record, Heartbeat):
        _fill_moment(message.heartbeat_record.timestamp, record.timestamp)
    elif isinstance(record, PartitionStart):
        start = message.partition_start_record
        _fill_moment(start.start_timestamp, record.timestamp)
        start.record_sequence = f"{record.sequence:08d}"
        start.partition_tokens.extend(record.tokens)
    elif isinstance(record, PartitionEvent):
        event = message.partition_event_record
        _fill_moment(event.commit_timestamp, record.timestamp)
        event.record_sequence = f"{record.sequence:08d}"
        event.partition_token = record.token
        for source in record.sources:
            event.move_in_events.add().source_partition_token = source
        for destination in record.destinations:
            event.move_out_events.add().destination_partition_token = destination
    elif isinstance(record, PartitionEnd):
        _fill_moment(message.partition_end_record.end_timestamp, record.timestamp)
        message.partition_end_record.record_sequence = f"{record.sequence:08d}"
        message.partition_end_record.partition_token = record.token
    else:
        raise TypeError(f"{type(record).__name__} is no record of a MUTABLE_KEY_RANGE stream")
    return message


def _fill_moment(target: Any, timestamp: int) -> None:
    target.seconds, target.nanos = divmod(timestamp, SECOND)


def _fill_data(target: Any, record: DataChange) -> None:
    _fill_moment(target.commit_timestamp, record.timestamp)
    target.record_sequence = f"{record.sequence:08d}"
    target.server_transaction_id = record.transaction
    target.is_last_record_in_transaction_in_partition = record.is_last
    target.table = record.table
    for column in record.columns:
        metadata = target.column_metadata.add()
        metadata.name = column.name
        fill_column_type(metadata.type_, column.kind)
        metadata.is_primary_key = column.is_key
        metadata.ordinal_position = column.ordinal
    # Values name their columns by index in `column_metadata`.
    indexes = {column.name: number for number, column in enumerate(record.columns)}
    for mod in record.mods:
        message = target.mods.add()
        for side, row in (
            (message.keys, mod.keys),
            (message.new_values, mod.new),
            (message.old_values, mod.old),
        ):
            _fill_values(side, row, indexes)
    target.mod_type = target.ModType.Value(record.mod_type)
    target.value_capture_type = target.ValueCaptureType.Value(record.capture)
    target.number_of_records_in_transaction = record.records_in_transaction
    target.number_of_partitions_in_transaction = record.partitions_in_transaction
    target.transaction_tag = record.tag
    target.is_system_transaction = record.is_system


def _fill_values(side: Any, row: Row, indexes: dict[str, int]) -> None:
    for name, value in row.items():
        entry = side.add()
        entry.column_metadata_index = indexes[name]
        fill_value(entry.value, value)


def fill_column_type(target: Any, kind: ColumnType) -> None:
    """Fill a google.spanner.v1.Type message."""
    target.code = _TypeCode[kind.code]
    if kind.annotation:
        target.type_annotation = _Annotation[kind.annotation]
    if kind.name:
        target.proto_type_fqn = kind.name
    if kind.element is not None:
        fill_column_type(target.array_element_type, kind.element)


def fill_value(target: Any, value: Value) -> None:
    """Fill a google.protobuf.Value message."""
    if value is None:
        target.null_value = 0
    # A bool before a number: in Python it is one.
    elif isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, (int, float)):
        target.number_value = value
    elif isinstance(value, str):
        target.string_value = value
    else:
        # An empty list would otherwise leave the value without a kind.
        target.list_value.SetInParent()
        for each in value:
            fill_value(target.list_value.values.add(), each)


def python_value(message: Any) -> Value:
    """Return the Python form of a google.protobuf.Value message."""
    kind = message.WhichOneof("kind")
    if kind is None or kind == "null_value":
        return None
    if kind == "list_value":
        return [python_value(each) for each in message.list_value.values]
    return getattr(message, kind)


def value_bytes(value: Value) -> bytes:
    """Return a value as an encoded google.protobuf.Value."""
    if value is None:
        return wire.NULL
    if isinstance(value, bool):
        return wire.boolean(value)
    if isinstance(value, str):
        return wire.string(value)
    if isinstance(value, list):
        return wire.list_value([value_bytes(each) for each in value])
    return _number(value)


def _number(value: float) -> bytes:
    # Protobuf: field 2 as a little-endian double.
    return b"\x11" + struct.pack("<d", value)
