"""Decodes the messages of ExecuteStreamingSql to change records. This is the hot path, without client classes.

    decoder = Decoder()
    for message in call:                 # encoded PartialResultSets, in order, of one query
        for record in decoder.feed(message): …
    decoder.finish()                     # the query ended; half a row is an error

A row has one column, a list of structs; everything in it is positional. The shapes are checked once per
distinct row type, not per row. A value that the service split (`chunked_value`) continues in the next message. Strings
are concatenated. Lists are concatenated, and their boundary elements merge by the same rule.

Source of the rules: google/spanner/v1/result_set.proto, "chunked_value".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from google.protobuf.message import DecodeError as MalformedError

from penstock.errors import DecodeError
from penstock.io.spanner import wire
from penstock.io.spanner.record import (
    ChangeRecord,
    ChildPartition,
    ChildPartitionsRecord,
    ColumnType,
    DataChangeRecord,
    HeartbeatRecord,
    Mod,
    Mods,
)
from penstock.io.spanner.wire import Value, text, true
from penstock.timestamps import parse_timestamp

_DATA_FIELDS = (
    "commit_timestamp",
    "record_sequence",
    "server_transaction_id",
    "is_last_record_in_transaction_in_partition",
    "table_name",
    "column_types",
    "mods",
    "mod_type",
    "value_capture_type",
    "number_of_records_in_transaction",
    "number_of_partitions_in_transaction",
    "transaction_tag",
    "is_system_transaction",
)
_RECORD_FIELDS = ("data_change_record", "heartbeat_record", "child_partitions_record")
_MOST_CACHED = 1000
"""Number of entries at which a cache is emptied: far more than a database has tables."""


class Decoder:
    """Decodes the messages of one query, in order, in one thread."""

    def __init__(self) -> None:
        self._pending: Any = None

    def feed(self, message: bytes) -> list[ChangeRecord]:
        """Return the records that are complete with this encoded PartialResultSet, in the service's order.

        Raises:
            DecodeError: a shape that is not a change stream's, or an unknown kind of record.
        """
        try:
            partial = wire.Partial.FromString(message)
        except MalformedError:
            raise DecodeError("the service sent bytes that are not a PartialResultSet") from None
        if partial.metadata:
            _check_once(partial.metadata)
        records: list[ChangeRecord] = []
        for row in self._whole_rows(partial):
            for struct in row.list_value.values:
                _decode_struct(struct.list_value.values, records)
        return records

    def finish(self) -> None:
        """Declare the query ended.

        Raises:
            DecodeError: it ended in the middle of a row.
        """
        if self._pending is not None:
            raise DecodeError("the query ended with status OK in the middle of a row")

    def _whole_rows(self, partial: Any) -> list[Any]:
        rows = list(partial.values)
        if not rows:
            return rows
        if self._pending is not None:
            merge_chunk(self._pending, _as_value(rows[0]))
            rows[0] = wire.Row.FromString(self._pending.SerializeToString())
            self._pending = None
        if partial.chunked_value:
            self._pending = _as_value(rows.pop())
        return rows


def _as_value(message: Any) -> Any:
    """Return a message of `wire` as the Value that it is on the wire."""
    return Value.FromString(message.SerializeToString())


def _decode_struct(kinds: Any, records: list[ChangeRecord]) -> None:
    data = kinds[0].list_value.values
    if data:
        records.extend([_data_record(entry.list_value.values) for entry in data])
        return
    heartbeats, children = kinds[1].list_value.values, kinds[2].list_value.values
    records.extend([_heartbeat(_as_value(entry).list_value.values) for entry in heartbeats])
    records.extend([_child_partitions(_as_value(entry).list_value.values) for entry in children])
    if not heartbeats and not children:
        raise DecodeError(
            "the change stream sent a record that is neither data, heartbeat nor child partitions. "
            "Streams with partition_mode MUTABLE_KEY_RANGE are not supported yet; use an "
            "IMMUTABLE_KEY_RANGE stream"
        )


def _data_record(fields: Any) -> DataChangeRecord:
    # One slice reads all thirteen fields at once, which is faster than indexing. `_DATA_FIELDS` are their names.
    at, sequence, transaction, last, table, columns, mods, kind, capture, records, partitions, tag, system = (
        fields[:13]
    )
    return DataChangeRecord(
        parse_timestamp(text(at)),
        text(sequence),
        text(transaction),
        true(last),
        _known_text(table),
        _columns(columns),
        _mods(wire.Mods.FromString(mods).list_value.values),
        _known_text(kind),
        _known_text(capture),
        int(_known_text(records)),
        int(_known_text(partitions)),
        _known_text(tag),
        true(system),
    )


_known_texts: dict[bytes, str] = {}
_known_columns: dict[bytes, tuple[ColumnType, ...]] = {}
_known_row_types: set[bytes] = set()
"""Caches of a process, for values that repeat in every record or query. Threads may fill them at the same time."""


def _known_text(value: bytes) -> str:
    found = _known_texts.get(value)
    if found is None:
        if len(_known_texts) >= _MOST_CACHED:
            _known_texts.clear()
        found = _known_texts[value] = text(value)
    return found


def _columns(value: bytes) -> tuple[ColumnType, ...]:
    columns = _known_columns.get(value)
    if columns is None:
        if len(_known_columns) >= _MOST_CACHED:
            _known_columns.clear()
        entries = Value.FromString(value).list_value.values
        columns = _known_columns[value] = tuple([_column(entry.list_value.values) for entry in entries])
    return columns


def _check_once(metadata: bytes) -> None:
    if metadata not in _known_row_types:
        check_row_type(wire.Metadata.FromString(metadata).row_type)
        _known_row_types.add(metadata)


def check_row_type(row_type: Any) -> None:
    """Compare a query's row type with the documented one; further fields at the end are accepted.

    Raises:
        DecodeError: fields are missing, renamed or in another order.
    """
    kinds: Any = _struct_fields(row_type.fields[0]) if row_type.fields else ()
    _check_names(kinds, _RECORD_FIELDS)
    data = _struct_fields(kinds[0])
    _check_names(data, _DATA_FIELDS)
    _check_names(_struct_fields(data[_DATA_FIELDS.index("mods")]), Mod._fields)


def _struct_fields(field: Any) -> Any:
    """Return the fields of the structs in a column of type ARRAY<STRUCT<…>>."""
    return field.type.array_element_type.struct_type.fields


def _check_names(fields: Iterable[Any], expected: tuple[str, ...]) -> None:
    names = tuple(field.name for field in fields)
    if names[: len(expected)] != expected:
        raise DecodeError(
            f"the change stream's rows have the fields {', '.join(names) or '(none)'} where "
            f"{', '.join(expected)} are documented. Is the database's dialect GoogleSQL?"
        )


def merge_chunk(first: Any, second: Any) -> None:
    """Append the chunk `second` to the protobuf Value `first`, in place.

    Raises:
        DecodeError: the two are of different kinds, or of a kind that is never split (number, bool, null).
    """
    kind = first.WhichOneof("kind")
    if kind != second.WhichOneof("kind") or kind not in ("string_value", "list_value"):
        raise DecodeError(f"a chunk of kind {second.WhichOneof('kind')} follows one of kind {kind}")
    if kind == "string_value":
        first.string_value += second.string_value
        return
    head, tail = first.list_value.values, second.list_value.values
    joined = bool(head and tail) and _is_cuttable(head[-1])
    if joined:
        merge_chunk(head[-1], tail[0])
    head.extend(tail[1:] if joined else tail)


def _is_cuttable(value: Any) -> bool:
    return value.WhichOneof("kind") in ("string_value", "list_value")


def _mods(entries: Any) -> Mods:
    # This is the innermost loop of the reader. Indexing costs less than unpacking here.
    texts: list[str] = []
    for entry in entries:
        side = entry.list_value.values
        texts += side[0].string_value, side[1].string_value, side[2].string_value
    return Mods(tuple(texts))


def _column(fields: Any) -> ColumnType:
    return ColumnType(
        fields[0].string_value, fields[1].string_value, fields[2].bool_value, int(fields[3].string_value)
    )


def _heartbeat(fields: Any) -> HeartbeatRecord:
    return HeartbeatRecord(parse_timestamp(fields[0].string_value))


def _child_partitions(fields: Any) -> ChildPartitionsRecord:
    return ChildPartitionsRecord(
        parse_timestamp(fields[0].string_value),
        fields[1].string_value,
        tuple([_child(entry.list_value.values) for entry in fields[2].list_value.values]),
    )


def _child(fields: Any) -> ChildPartition:
    parents = frozenset([token.string_value for token in fields[1].list_value.values])
    return ChildPartition(fields[0].string_value, parents)
