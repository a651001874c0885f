"""Decodes rows of PostgreSQL databases: one JSON object, with one member that names the kind of record. Pure.

The sides of a mod keep the text that the service sent.

Source: Cloud Spanner documentation, "Change streams partitions, records, and queries" (PostgreSQL tabs); timestamps
have the form that Google's emulator writes.
"""

from __future__ import annotations

import json

import msgspec

from penstock.errors import DecodeError
from penstock.io.spanner.record import (
    ChangeRecord,
    ChildPartition,
    ChildPartitionsRecord,
    ColumnType,
    DamagedRecord,
    DataChangeRecord,
    HeartbeatRecord,
    Mods,
)
from penstock.timestamps import parse_timestamp

_MAX_CACHED = 1000
"""Number of entries at which the cache is emptied: far more than a database has tables."""
_ABSENT = msgspec.Raw(b"{}")
_NULL = b"null"


# Raw: the text of the service is passed on without being parsed.
class _Mod(msgspec.Struct):
    keys: msgspec.Raw = _ABSENT
    new_values: msgspec.Raw = _ABSENT
    old_values: msgspec.Raw = _ABSENT


class _Place(msgspec.Struct):
    commit_timestamp: str
    record_sequence: str
    server_transaction_id: str


class _Data(_Place, kw_only=True):
    is_last_record_in_transaction_in_partition: bool
    table_name: str
    column_types: msgspec.Raw
    mods: list[_Mod]
    mod_type: str
    value_capture_type: str
    number_of_records_in_transaction: int
    number_of_partitions_in_transaction: int
    transaction_tag: str = ""
    is_system_transaction: bool = False


class _Column(msgspec.Struct):
    name: str
    type: msgspec.Raw
    is_primary_key: bool
    ordinal_position: int


class _Heartbeat(msgspec.Struct):
    timestamp: str


class _Child(msgspec.Struct):
    token: str
    parent_partition_tokens: list[str] = []


class _Children(msgspec.Struct):
    start_timestamp: str
    record_sequence: str
    child_partitions: list[_Child]


# The kind of record is the member that is not null.
class _Row(msgspec.Struct):
    data_change_record: msgspec.Raw = msgspec.Raw(_NULL)
    heartbeat_record: _Heartbeat | None = None
    child_partitions_record: _Children | None = None


_row = msgspec.json.Decoder(_Row).decode
_data = msgspec.json.Decoder(_Data, strict=False).decode  # numbers may come as text, as INT64 does
_place = msgspec.json.Decoder(_Place).decode
_column_list = msgspec.json.Decoder(list[_Column], strict=False).decode


def decode_json(text: str) -> ChangeRecord:
    """Return the record in one row.

    Raises:
        DecodeError: the row is no JSON object, has no known kind of record, or cannot be placed in its partition.
    """
    try:
        row = _row(text)
        data = bytes(row.data_change_record)
        if data != _NULL:
            return _data_record(data)
        if row.heartbeat_record is not None:
            return HeartbeatRecord(_moment(row.heartbeat_record.timestamp))
        if row.child_partitions_record is not None:
            return _child_partitions(row.child_partitions_record)
    except ValueError as error:
        raise DecodeError(
            f"a row of the change stream does not have its documented form: {_reason(error)}"
        ) from None
    raise DecodeError("the change stream sent a record that is neither data, heartbeat nor child partitions")


def _data_record(encoded: bytes) -> DataChangeRecord | DamagedRecord:
    try:
        data = _data(encoded)
        return DataChangeRecord(
            _moment(data.commit_timestamp),
            data.record_sequence,
            data.server_transaction_id,
            data.is_last_record_in_transaction_in_partition,
            data.table_name,
            _columns(bytes(data.column_types)),
            Mods(tuple([_side(s) for mod in data.mods for s in (mod.keys, mod.new_values, mod.old_values)])),
            data.mod_type,
            data.value_capture_type,
            data.number_of_records_in_transaction,
            data.number_of_partitions_in_transaction,
            data.transaction_tag,
            data.is_system_transaction,
        )
    except ValueError as error:
        place = _place(encoded)  # without it, the error of the row is raised
        return DamagedRecord(
            _moment(place.commit_timestamp),
            place.record_sequence,
            place.server_transaction_id,
            _reason(error),
            encoded,
            "JSON",
        )


def _reason(error: ValueError) -> str:
    # msgspec's messages name types and members; others may show a value.
    return str(error) if isinstance(error, msgspec.ValidationError) else type(error).__name__


def _side(raw: msgspec.Raw) -> str:
    encoded = bytes(raw)
    return "" if encoded == _NULL else encoded.decode()


_known_columns: dict[bytes, tuple[ColumnType, ...]] = {}
"""A cache of the process: column types repeat in every record. Threads may fill it at the same time."""


def _columns(encoded: bytes) -> tuple[ColumnType, ...]:
    columns = _known_columns.get(encoded)
    if columns is None:
        if len(_known_columns) >= _MAX_CACHED:
            _known_columns.clear()
        columns = _known_columns[encoded] = tuple([_column(each) for each in _column_list(encoded)])
    return columns


def _column(column: _Column) -> ColumnType:
    # The same text as in GoogleSQL, whatever the spaces and the order of members.
    kind = json.dumps(json.loads(bytes(column.type)), sort_keys=True, separators=(",", ":"))
    return ColumnType(column.name, kind, column.is_primary_key, column.ordinal_position)


def _child_partitions(record: _Children) -> ChildPartitionsRecord:
    children = [
        ChildPartition(child.token, frozenset(child.parent_partition_tokens))
        for child in record.child_partitions
    ]
    return ChildPartitionsRecord(_moment(record.start_timestamp), record.record_sequence, tuple(children))


def _moment(text: str) -> int:
    # Spanner's PostgreSQL dialect writes the offset, and the parser takes Z.
    return parse_timestamp(f"{text[:-6]}Z" if text.endswith("+00:00") else text)
