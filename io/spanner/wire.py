"""The wire format of a PartialResultSet, typed as far as the rows of a change stream need it.

Everything in a row is a `google.protobuf.Value`, list within list. Decoded as such, a record of one mod is mostly
Python objects that are made only to be asked for their single string. So here the same bytes are given other
message types: where the lists are walked, they are messages; where the values lie, they are left as bytes, from
which a short string is taken by slicing. The field numbers are those of google/protobuf/struct.proto and
google/spanner/v1/result_set.proto, type.proto; what is not named here is kept as an unknown field, so a row can be
encoded again and read as the Value that it is.
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
"""A PartialResultSet; its `values` are rows: lists of structs of three lists of records, one for each kind."""
Row = _made["Row"]
Mods = _made["Mods"]
"""A Value that is a list of lists of strings. Where there are many, asking each costs less than slicing each."""
Metadata = _made["Metadata"]
Value = struct_pb2.Value


def text(value: bytes) -> str:
    """Return the string in an encoded Value; the empty string for any other kind, null above all."""
    if len(value) < _ONE_BYTE_LENGTH and value[0] == _STRING_TAG and value[1] == len(value) - 2:
        return value[2:].decode()
    found: str = Value.FromString(value).string_value
    return found


def true(value: bytes) -> bool:
    """Say whether an encoded Value is the boolean true."""
    return value == _TRUE
