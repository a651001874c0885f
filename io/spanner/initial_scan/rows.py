"""Turns the messages of StreamingRead into records of a snapshot. This is the hot path, without client classes.

    reader = RowReader(table, timestamp, capture)
    for message in call:                     # encoded PartialResultSets, in order, of one read
        for rows in reader.feed(message):    # none, if no row is complete with this message
            …
    reader.finish()                          # the read ended; half a row is an error

A row becomes one mod of a `DataChangeRecord` with the mod_type READ. Its keys and new values are JSON objects in the
form in which a change stream sends them, because both have the encoding of google.spanner.v1.TypeCode. So everything
that works on records of a change stream works on rows of a snapshot.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from google.protobuf import struct_pb2
from google.protobuf.message import DecodeError as MalformedError

from penstock.errors import DecodeError
from penstock.io.change_streams.protobuf import Field, Label, message_classes
from penstock.io.spanner.decode import merge_chunk
from penstock.io.spanner.initial_scan.frontier import Table
from penstock.io.spanner.record import ColumnType, DataChangeRecord, Mods

READ = "READ"
"""The mod_type of a row of a snapshot. A change stream has INSERT, UPDATE and DELETE."""

MAX_ROWS = 500
"""Rows in one record. A message of the service may have thousands of short rows, and a split falls between records."""

_CODES = {
    1: "BOOL",
    2: "INT64",
    3: "FLOAT64",
    4: "TIMESTAMP",
    5: "DATE",
    6: "STRING",
    7: "BYTES",
    8: "ARRAY",
    9: "STRUCT",
    10: "NUMERIC",
    11: "JSON",
    13: "PROTO",
    14: "ENUM",
    15: "FLOAT32",
    16: "INTERVAL",
    17: "UUID",
}
_ANNOTATIONS = {2: "PG_NUMERIC", 3: "PG_JSONB", 4: "PG_OID"}
"""google.spanner.v1.TypeCode and TypeAnnotationCode."""

_made = message_classes(
    "penstock.io.spanner.initial_scan.rows",
    {
        "Partial": (
            Field("metadata", 1, "bytes"),
            Field("values", 2, "bytes", Label.REPEATED),
            Field("chunked_value", 3, "bool"),
            Field("resume_token", 4, "bytes"),
        ),
        "Metadata": (Field("row_type", 1, "StructType"),),
        "StructType": (Field("fields", 1, "Column", Label.REPEATED),),
        "Column": (Field("name", 1, "string"), Field("type", 2, "Type")),
        "Type": (
            Field("code", 1, "int32"),
            Field("array_element_type", 2, "Type"),
            Field("type_annotation", 4, "int32"),
            Field("proto_type_fqn", 5, "string"),
        ),
    },
)
Partial = _made["Partial"]
"""A PartialResultSet whose values stay bytes, each an encoded google.protobuf.Value."""
_Metadata = _made["Metadata"]
_Value = struct_pb2.Value

# The encodings of null, true and false, which are compared instead of parsed.
_NULL, _TRUE, _FALSE = b"\x08\x00", b"\x20\x01", b"\x20\x00"
_STRING_TAG = 0x1A
_ONE_BYTE_LENGTH = 0x80
_quote = msgspec.json.Encoder().encode


class Rows(NamedTuple):
    """Rows that are complete: the record to emit, and the key of the last one as a JSON array."""

    record: DataChangeRecord
    last_key: str


class RowReader:
    """Decodes the messages of one read, in order, in one thread."""

    def __init__(self, table: Table, timestamp: int, capture: str = "") -> None:
        self._table = table
        self._timestamp = timestamp
        self._capture = capture
        self._columns: tuple[ColumnType, ...] = ()
        # The names of members are encoded once per table.
        self._names = [json.dumps(name, ensure_ascii=False) + ":" for name in table.columns]
        self._encoders: list[Callable[[bytes], str]] = []
        self._pending: list[bytes] = []
        self._cut = False
        self.resume_token = b""
        """With this token the service continues after the last message that was fed."""

    @property
    def columns(self) -> tuple[ColumnType, ...]:
        """The columns as change records describe them; empty before the first message."""
        return self._columns

    def feed(self, message: bytes) -> list[Rows]:
        """Return the rows that are complete with this encoded PartialResultSet, at most `MAX_ROWS` together.

        Raises:
            DecodeError: the message is malformed, or does not have the columns that were asked for.
        """
        try:
            partial = Partial.FromString(message)
        except MalformedError:
            raise DecodeError("the service sent bytes that are not a PartialResultSet") from None
        if partial.metadata:
            self._describe(partial.metadata)
        self.resume_token = partial.resume_token
        values = list(partial.values)
        if self._cut and values:
            values[0] = _joined(self._pending.pop(), values[0])
        # A message without values does not complete the value that is cut.
        self._cut = partial.chunked_value if values else self._cut
        self._pending += values
        width = len(self._names)
        # A value that is cut is pending too, and does not complete its row.
        count = (len(self._pending) - self._cut) // width
        whole, self._pending = self._pending[: count * width], self._pending[count * width :]
        step = MAX_ROWS * width
        return [self._rows(whole[start : start + step], width) for start in range(0, len(whole), step)]

    def finish(self) -> None:
        """Declare the read ended.

        Raises:
            DecodeError: it ended in the middle of a row.
        """
        # A read that ends with half a row has lost the rest.
        if self._pending:
            raise DecodeError("the read ended with status OK in the middle of a row")

    def _rows(self, values: list[bytes], width: int) -> Rows:
        # One JSON text per value, joined to objects: `json.dumps` of a dictionary per row takes several times longer.
        keys, names, encoders = self._table.key_size, self._names, self._encoders
        texts: list[str] = []
        encoded: list[str] = []
        for start in range(0, len(values), width):
            row = values[start : start + width]
            encoded = [encode(value) for encode, value in zip(encoders, row, strict=True)]
            members = [name + text for name, text in zip(names, encoded, strict=True)]
            # The third side is empty: a row of a snapshot has no old values.
            texts += "{" + ",".join(members[:keys]) + "}", "{" + ",".join(members[keys:]) + "}", "{}"
        return Rows(self._record(texts), "[" + ",".join(encoded[:keys]) + "]")

    def null_row(self) -> DataChangeRecord:
        """Return the record of a row that is NULL in all columns. They are known after the first message."""
        keys = self._table.key_size
        members = [f"{name}null" for name in self._names]
        return self._record(
            ["{" + ",".join(members[:keys]) + "}", "{" + ",".join(members[keys:]) + "}", "{}"]
        )

    def _record(self, texts: list[str]) -> DataChangeRecord:
        return DataChangeRecord(
            self._timestamp,
            "",
            "",
            True,
            self._table.name,
            self._columns,
            Mods(tuple(texts)),
            READ,
            self._capture,
            # One record and one partition: consumers that count the records of a transaction then find all of
            # them.
            1,
            1,
            "",
            False,
        )

    def _describe(self, metadata: bytes) -> None:
        fields = _Metadata.FromString(metadata).row_type.fields
        # Values have no names in a message, so a wrong order of columns would put values into other columns.
        if tuple(field.name for field in fields) != self._table.columns:
            raise DecodeError(
                f"a read of table {self._table.name} returned other columns than were asked for"
            )
        self._encoders = [_encoder(field.type.code) for field in fields]
        self._columns = tuple(
            ColumnType(field.name, _type_text(field.type), number < self._table.key_size, position)
            for number, (field, position) in enumerate(zip(fields, self._table.positions, strict=True))
        )


def _joined(first: bytes, second: bytes) -> bytes:
    whole = _Value.FromString(first)
    merge_chunk(whole, _Value.FromString(second))
    joined: bytes = whole.SerializeToString()
    return joined


def _type_text(type_: Any) -> str:
    """Return google.spanner.v1.Type as the JSON text of a change record."""
    return json.dumps(_type_document(type_), sort_keys=True, separators=(",", ":"))


def _type_document(type_: Any) -> dict[str, Any]:
    document: dict[str, Any] = {"code": _CODES.get(type_.code, f"TYPE_CODE_{type_.code}")}
    if type_.HasField("array_element_type"):
        document["array_element_type"] = _type_document(type_.array_element_type)
    if type_.type_annotation:
        document["type_annotation"] = _ANNOTATIONS.get(type_.type_annotation, str(type_.type_annotation))
    if type_.proto_type_fqn:
        document["proto_type_fqn"] = type_.proto_type_fqn
    return document


def _encoder(code: int) -> Callable[[bytes], str]:
    """Return what turns an encoded Value of a column of this type into JSON text."""
    return _plain_text if _CODES.get(code) in _WITHOUT_ESCAPES else _any_value


_WITHOUT_ESCAPES = frozenset(
    ("INT64", "NUMERIC", "TIMESTAMP", "DATE", "BYTES", "PROTO", "ENUM", "UUID", "INTERVAL")
)
"""Types whose text never holds a quotation mark, a backslash or a control character."""


def _plain_text(value: bytes) -> str:
    # Most values are short strings: one slice is several times faster than a parsed message.
    if value[0] == _STRING_TAG and len(value) < _ONE_BYTE_LENGTH and value[1] == len(value) - 2:
        return f'"{value[2:].decode()}"'
    return _any_value(value)


def _any_value(value: bytes) -> str:
    # Short strings again, with escapes.
    if value[0] == _STRING_TAG and len(value) < _ONE_BYTE_LENGTH and value[1] == len(value) - 2:
        return _quote(value[2:].decode()).decode()
    known = _CONSTANTS.get(value)
    return _json(_Value.FromString(value)) if known is None else known


_CONSTANTS = {_NULL: "null", _TRUE: "true", _FALSE: "false"}


def _json(value: Any) -> str:
    match value.WhichOneof("kind"):
        case "string_value":
            return _quote(value.string_value).decode()
        case "number_value":
            return repr(value.number_value)
        case "bool_value":
            return "true" if value.bool_value else "false"
        case "list_value":
            return "[" + ",".join([_json(each) for each in value.list_value.values]) + "]"
    return "null"
