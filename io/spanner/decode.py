"""Decodes the messages of ExecuteStreamingSql to change records. This is the hot path, without client classes.

    decoder = Decoder()
    for message in call:                 # encoded PartialResultSets, in order, of one query
        for record in decoder.feed(message): …
    decoder.finish()                     # the query ended; half a row is an error

A row has one column. Its type, which comes with the first message, says which of three forms the rows have:

- ARRAY of structs (GoogleSQL): everything is positional. The shapes are checked once per distinct row type, not per
  row. Records of exactly the documented fields take a fast path: see `wire`.
- JSON (PostgreSQL): see `decode_json`.
- PROTO or BYTES (MUTABLE_KEY_RANGE): see `decode_proto`.

A data change record that cannot be decoded, but whose place in its partition is readable, becomes a `DamagedRecord`.

A value that the service split (`chunked_value`) continues in the next message. Strings are concatenated. Lists are
concatenated, and their boundary elements merge by the same rule.

Source of the rules: google/spanner/v1/result_set.proto, "chunked_value".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError as MalformedError

from penstock.errors import DecodeError
from penstock.io.spanner import wire
from penstock.io.spanner.decode_json import decode_json
from penstock.io.spanner.decode_proto import decode_proto
from penstock.io.spanner.record import (
    ChangeRecord,
    ChildPartition,
    ChildPartitionsRecord,
    ColumnType,
    DamagedRecord,
    DataChangeRecord,
    HeartbeatRecord,
    Mod,
    Mods,
    new_records,
)
from penstock.io.spanner.wire import Value
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
_MAX_CACHED = 1000
"""Number of entries at which a cache is emptied: far more than a database has tables."""


class RowType(NamedTuple):
    """The form of a query's rows. `exact`: structs of only the documented fields; `decode`: of rows that are text."""

    exact: bool
    decode: Callable[[str], ChangeRecord] | None = None


class Decoder:
    """Decodes the messages of one query, in order, in one thread."""

    def __init__(self) -> None:
        self._pending: Any = None
        self._rows = RowType(exact=True)

    def feed(self, message: bytes) -> list[ChangeRecord]:
        """Return the records that are complete with this encoded PartialResultSet, in the service's order.

        Raises:
            DecodeError: a shape that is not a change stream's, or an unknown kind of record.
        """
        try:
            return self._decode_message(message)
        except MalformedError:
            raise DecodeError("the service sent bytes that are not a PartialResultSet") from None

    def _decode_message(self, message: bytes) -> list[ChangeRecord]:
        if self._rows.decode is not None:
            return self._decode_texts(wire.Texts.FromString(message))
        flat = wire.Flat.FromString(message)
        if flat.metadata:
            self._rows = row_type(flat.metadata)
            if self._rows.decode is not None:
                return self._decode_texts(wire.Texts.FromString(message))
        # The fast way needs whole rows, no further fields and data records only. Everything else is decoded again,
        # value by value: that is rare, and a wrong guess must not be possible.
        if self._rows.exact and self._pending is None and not flat.chunked_value:
            entries = flat.values.list_value.values.list_value.values.list_value.values
            decoded = _undamaged(entries.list_value.values)
            if decoded is not None:
                return decoded
        return self._decode_rows(wire.Partial.FromString(message))

    def _decode_texts(self, partial: Any) -> list[ChangeRecord]:
        # The slice copies the repeated field into a list in one call of C.
        texts = partial.values.string_value[:]
        if texts:
            if self._pending is not None:
                texts[0] = self._pending + texts[0]
            self._pending = texts.pop() if partial.chunked_value else None
        assert self._rows.decode is not None
        return list(map(self._rows.decode, texts))

    def finish(self) -> None:
        """Declare the query ended.

        Raises:
            DecodeError: it ended in the middle of a row.
        """
        # A query that ended early would lose the row: it is read again from the last position.
        if self._pending is not None:
            raise DecodeError("the query ended with status OK in the middle of a row")

    def _decode_rows(self, partial: Any) -> list[ChangeRecord]:
        """Decode row by row: messages with other records than data, and rows that are cut."""
        records: list[ChangeRecord] = []
        data: list[bytes] = []
        for row in self._whole_rows(partial):
            for struct in row.list_value.values:
                # A ChangeRecord is a struct of three lists, and only one of them has entries.
                kinds = struct.list_value.values
                entries = kinds[0].list_value.values
                if entries:
                    data.extend(entries)
                    continue
                # One heartbeat in a message must not make thousands of data records slow: those between two other
                # records are decoded at once.
                records.extend(self._data_records(data))
                data.clear()
                records.extend(_other_records(kinds))
        records.extend(self._data_records(data))
        return records

    def _whole_rows(self, partial: Any) -> list[Any]:
        rows = list(partial.values)
        if not rows:
            return rows
        # The service may cut anywhere, also within a text of a nested list, so the whole row is merged.
        if self._pending is not None:
            merge_chunk(self._pending, _as_value(rows[0]))
            # Chunks are merged as Values, because a chunk may be cut within any of them, also where `wire` declares
            # plain bytes.
            rows[0] = wire.Row.FromString(self._pending.SerializeToString())
            self._pending = None
        if partial.chunked_value:
            self._pending = _as_value(rows.pop())
        return rows

    def _data_records(self, entries: list[bytes]) -> list[ChangeRecord]:
        """Decode encoded data change records: in one call if all have the usual form, otherwise one by one."""
        if self._rows.exact and len(entries) > 1:
            # Encoded messages one after the other are one message that has the fields of all.
            decoded = _undamaged(wire.Entry.FromString(b"".join(entries)).list_value.values)
            if decoded is not None:
                return decoded
        return list(map(self._data_record, entries))

    def _data_record(self, entry: bytes) -> ChangeRecord:
        if self._rows.exact:
            decoded = _undamaged(wire.Entry.FromString(entry).list_value.values)
            if decoded is not None:
                return decoded[0]
        try:
            return _data_record_by_position(entry)
        except (ValueError, IndexError) as error:
            return _damaged(entry, error)


def _other_records(kinds: Any) -> list[ChangeRecord]:
    """Decode a ChangeRecord that has heartbeats or child partitions.

    Raises:
        DecodeError: it has neither.
    """
    heartbeats, children = kinds[1].list_value.values, kinds[2].list_value.values
    if not heartbeats and not children:
        raise DecodeError(
            "the change stream sent a record that is neither data, heartbeat nor child partitions"
        )
    return [
        *(_heartbeat(_values(entry)) for entry in heartbeats),
        *(_child_partitions(_values(entry)) for entry in children),
    ]


def _as_value(message: Any) -> Any:
    """Return a message of `wire` as the Value that it is on the wire."""
    return Value.FromString(message.SerializeToString())


def _values(entry: bytes) -> Any:
    """Return the values of an encoded Value that is a list."""
    return Value.FromString(entry).list_value.values


_STRINGS, _BOOLS, _LISTS = 9, 2, 2
"""Number of fields of each kind in a data change record."""


def _undamaged(fields: Any) -> list[Any] | None:
    """Decode data change records as `_data_records` does; None also if one of them is damaged."""
    # None and not an error: the caller decodes the records one by one, and finds the bad one.
    try:
        return _data_records(fields)
    except (ValueError, IndexError):
        return None


def _damaged(entry: bytes, error: Exception) -> DamagedRecord:
    """Return a record that cannot be decoded, if it can be placed in its partition.

    Raises:
        DecodeError: it cannot.
    """
    try:
        # The three fields that place a record in its partition come first.
        timestamp, sequence, transaction = [field.string_value for field in _values(entry)[:3]]
        reason = (
            f"a field of the data change record does not have its documented form ({type(error).__name__})"
        )
        int(sequence)  # a record whose sequence is no number has no place
        return DamagedRecord(parse_timestamp(timestamp), sequence, transaction, reason, entry)
    except ValueError:
        raise DecodeError(
            "the change stream sent a data change record without a readable timestamp"
        ) from None


def _data_records(fields: Any) -> list[Any] | None:
    """Decode data change records from the fields, by kind, of a number of entries.

    None: the entries are not all data change records, or a field is NULL. Then each kind has another number of fields
    than in data change records: a heartbeat has one string, and a child partitions record two and one list.
    """
    strings, bools, lists = fields.string_value[:], fields.bool_value[:], fields.list_value[:]
    count = len(bools) // _BOOLS
    found = len(strings), len(bools), len(lists)
    if not count or found != (count * _STRINGS, count * _BOOLS, count * _LISTS) or fields.null_value:
        return None
    # Field by field for all records, not record by record: the loops run in C. Each kind of field keeps the order of
    # `_DATA_FIELDS`, so the n-th string of every record is at n, n + 9, n + 18 and so on.
    at, sequence, transaction, table, kind, capture, records, partitions, tag = [
        strings[field::_STRINGS] for field in range(_STRINGS)
    ]
    columns, mods = lists[::_LISTS], lists[1::_LISTS]
    return new_records(
        map(parse_timestamp, at),
        sequence,
        transaction,
        bools[::_BOOLS],
        table,
        map(_columns, columns),
        _mods_of_records(mods),
        kind,
        capture,
        map(int, records),
        map(int, partitions),
        tag,
        bools[1::_BOOLS],
    )


_BETWEEN_RECORDS = "|"
"""A text that no side of a mod can be: sides are JSON objects or empty."""
_BOUNDARY = wire.ListValue(
    values=[wire.Value(list_value=wire.ListValue(values=[wire.Value(string_value=_BETWEEN_RECORDS)]))]
).SerializeToString()
"""A mod with this text as its only side, encoded."""


def _mods_of_records(encoded: list[bytes]) -> list[Mods]:
    """Decode the mods of several records.

    One call of the parser for all records, with a boundary after each: for a record of one mod, a separate call
    costs more than everything else in the record.
    """
    # The boundary is encoded once. Joining bytes costs less than building messages.
    sides = wire.Mods.FromString(_BOUNDARY.join([*encoded, b""])).values.list_value.values
    texts = sides.string_value[:]
    # A NULL side or a text that looks like a boundary: then each record is parsed on its own.
    if sides.null_value or texts.count(_BETWEEN_RECORDS) != len(encoded):
        return list(map(_mods, encoded))
    # The usual small transaction: three texts and the boundary.
    if len(texts) == 4 * len(encoded) and texts[3::4].count(_BETWEEN_RECORDS) == len(encoded):
        return list(map(Mods, zip(texts[::4], texts[1::4], texts[2::4], strict=True)))
    found, start = [], 0
    for _ in encoded:
        end = texts.index(_BETWEEN_RECORDS, start)
        found.append(_whole_mods(texts[start:end]))
        start = end + 1
    return found


def _mods(mods: bytes) -> Mods:
    sides = wire.Mods.FromString(mods).values.list_value.values
    return _mods_by_position(mods) if sides.null_value else _whole_mods(sides.string_value[:])


def _whole_mods(texts: list[str]) -> Mods:
    if len(texts) % 3:
        raise ValueError("a mod has not three sides")
    return Mods(tuple(texts))


def _data_record_by_position(entry: bytes) -> DataChangeRecord:
    """Decode a data change record that has NULLs or further fields at the end."""
    fields = _values(entry)
    # By their numbers, so fields that a newer service appends are ignored.
    return DataChangeRecord(
        parse_timestamp(fields[0].string_value),
        fields[1].string_value,
        fields[2].string_value,
        fields[3].bool_value,
        fields[4].string_value,
        _columns(fields[5].list_value.SerializeToString()),
        _mods_by_position(fields[6].list_value.SerializeToString()),
        fields[7].string_value,
        fields[8].string_value,
        int(fields[9].string_value),
        int(fields[10].string_value),
        fields[11].string_value,
        fields[12].bool_value,
    )


def _mods_by_position(mods: bytes) -> Mods:
    sides = [entry.list_value.values for entry in wire.ListValue.FromString(mods).values]
    # Further sides of a newer service are ignored.
    if any(len(side) < 3 for side in sides):
        raise ValueError("a mod has not three sides")
    return Mods(tuple([text.string_value for side in sides for text in side[:3]]))


_known_columns: dict[bytes, tuple[ColumnType, ...]] = {}
_known_row_types: dict[bytes, RowType] = {}
"""Caches of a process, for values that repeat in every record or query. Threads may fill them at the same time."""


def _columns(value: bytes) -> tuple[ColumnType, ...]:
    columns = _known_columns.get(value)
    if columns is None:
        if len(_known_columns) >= _MAX_CACHED:
            # Emptied whole: schemas change rarely, and an order of use would cost in every record.
            _known_columns.clear()
        entries = wire.ListValue.FromString(value).values
        columns = _known_columns[value] = tuple([_column(entry.list_value.values) for entry in entries])
    return columns


_JSON, _PROTO, _BYTES = 11, 13, 7
"""Codes of types (google.spanner.v1.TypeCode)."""
_TEXT_FORMS = {_JSON: decode_json, _PROTO: decode_proto, _BYTES: decode_proto}


def row_type(metadata: bytes) -> RowType:
    """Return the form of the rows of a query with this encoded ResultSetMetadata.

    Raises:
        DecodeError: no change stream has this type: fields are missing, renamed or in another order. Further
            fields at the end are accepted.
    """
    known = _known_row_types.get(metadata)
    if known is None:
        known = _known_row_types[metadata] = _row_type(wire.Metadata.FromString(metadata).row_type)
    return known


def _row_type(row: Any) -> RowType:
    code = row.fields[0].type.code if len(row.fields) == 1 else None
    if code in _TEXT_FORMS:
        # Text forms are decoded as text; nothing in them is positional.
        return RowType(exact=False, decode=_TEXT_FORMS[code])
    kinds: Any = _struct_fields(row.fields[0]) if row.fields else ()
    _check_names(kinds, _RECORD_FIELDS)
    data = _struct_fields(kinds[0])
    _check_names(data, _DATA_FIELDS)
    mod = _struct_fields(data[_DATA_FIELDS.index("mods")])
    _check_names(mod, Mod._fields)
    return RowType(exact=len(data) == len(_DATA_FIELDS) and len(mod) == len(Mod._fields))


def _struct_fields(field: Any) -> Any:
    """Return the fields of the structs in a column of type ARRAY<STRUCT<…>>."""
    return field.type.array_element_type.struct_type.fields


def _check_names(fields: Iterable[Any], expected: tuple[str, ...]) -> None:
    names = tuple(field.name for field in fields)
    # Further fields at the end are allowed, so that a newer service does not stop a pipeline.
    if names[: len(expected)] != expected:
        raise DecodeError(
            f"the change stream's rows have the fields {', '.join(names) or '(none)'} where "
            f"{', '.join(expected)} are documented"
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
    # PartialResultSet.chunked_value: the last value of a list is joined with the first of the next, unless it is of a
    # kind that is never split.
    joined = bool(head and tail) and _is_cuttable(head[-1])
    if joined:
        merge_chunk(head[-1], tail[0])
    head.extend(tail[1:] if joined else tail)


def _is_cuttable(value: Any) -> bool:
    return value.WhichOneof("kind") in ("string_value", "list_value")


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
