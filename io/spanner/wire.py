"""Message types for a PartialResultSet, made for the rows of a change stream.

Everything in a row is a `google.protobuf.Value`, lists within lists. If it were parsed as such, most Python objects
of a record would be made only to read one string from them. Therefore the same bytes are parsed as other message
types. The lists that the decoder iterates are messages; the values in them stay bytes, and a short string is read
by slicing. The field numbers are those of google/protobuf/struct.proto and google/spanner/v1/result_set.proto,
type.proto. Other fields stay unknown fields, so a row can be encoded again and parsed as a Value.
"""

from __future__ import annotations

from google.protobuf import struct_pb2

from penstock.io.change_streams.protobuf import Field, Label, message_classes

_STRING_TAG, _TRUE = 0x1A, b"\x20\x01"
_ONE_BYTE_LENGTH = 0x80


def _list_of(name: str, values: str) -> dict[str, tuple[Field, ...]]:
    """Describe a Value that holds a list: message `name`, whose values are of the type `values`."""
    return {
        name: (Field("list_value", 6, f"{name}List"),),
        f"{name}List": (Field("values", 1, values, Label.REPEATED),),
    }


_MESSAGES = {
    "Partial": (
        Field("metadata", 1, "bytes"),
        Field("values", 2, "Row", Label.REPEATED),
        Field("chunked_value", 3, "bool"),
    ),
    **_list_of("Row", "Struct"),
    **_list_of("Struct", "Entries"),
    **_list_of("Entries", "Fields"),
    **_list_of("Fields", "bytes"),
    **_list_of("Mods", "Mod"),
    **_list_of("Mod", "Text"),
    "Text": (Field("string_value", 3, "string"),),
    "Metadata": (Field("row_type", 1, "StructType"),),
    "StructType": (Field("fields", 1, "Field", Label.REPEATED),),
    "Field": (Field("name", 1, "string"), Field("type", 2, "Type")),
    "Type": (Field("array_element_type", 2, "Type"), Field("struct_type", 3, "StructType")),
}

_made = message_classes("penstock.io.spanner.wire", _MESSAGES)
Partial = _made["Partial"]
"""A PartialResultSet. Its `values` are rows: lists of structs of three lists of records, one for each kind."""
Row = _made["Row"]
Mods = _made["Mods"]
"""A Value that is a list of lists of strings. For many values, attribute access costs less than slicing."""
Metadata = _made["Metadata"]
Value = struct_pb2.Value


def text(value: bytes) -> str:
    """Return the string in an encoded Value; the empty string for any other kind, such as null."""
    if len(value) < _ONE_BYTE_LENGTH and value[0] == _STRING_TAG and value[1] == len(value) - 2:
        return value[2:].decode()
    found: str = Value.FromString(value).string_value
    return found


def true(value: bytes) -> bool:
    """Return whether an encoded Value is the boolean true."""
    return value == _TRUE
