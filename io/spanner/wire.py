"""Message types for a PartialResultSet, made for the rows of a change stream.

Everything in a row is a `google.protobuf.Value`, lists within lists. If it were parsed as such, most Python objects
of a record would be made only to read one string from them. Therefore the same bytes are parsed as other message
types. The field numbers come from google/protobuf/struct.proto and google/spanner/v1/result_set.proto, type.proto.

`Flat`, `Entry`, `Mods` and `Texts` use a rule of the wire format: if a field that is *not* repeated occurs several
times, a parser merges its messages, and merging appends their repeated fields. They declare a list's values as one
such message whose content is repeated. So the parser itself collects the strings of all values into one list, which
Python reads in one call: 0.4 µs a mod, where an object for each value costs 1.5 µs. They lose which kind of value came
at which place, so they are only for lists whose kinds are known, and only if nothing in them is NULL.

`Row` and the types in it lose nothing: fields that they do not declare stay unknown fields, so a row can be encoded
again and parsed as a Value.

Source: protobuf.dev, "Encoding", "Last One Wins".
"""

from __future__ import annotations

from google.protobuf import struct_pb2

from penstock.io.change_streams.protobuf import Field, Label, message_classes


def _list_of(name: str, values: str) -> dict[str, tuple[Field, ...]]:
    """Describe a Value that holds a list: message `name`, whose values are of the type `values`."""
    return {
        name: (Field("list_value", 6, f"{name}List"),),
        f"{name}List": (Field("values", 1, values, Label.REPEATED),),
    }


def _one_of(name: str, value: str) -> dict[str, tuple[Field, ...]]:
    """Describe a Value that holds a list, as one message `value` into which all values of the list are merged."""
    return {
        name: (Field("list_value", 6, f"{name}List"),),
        f"{name}List": (Field("values", 1, value),),
    }


_MESSAGES = {
    "Partial": (
        Field("metadata", 1, "bytes"),
        Field("values", 2, "Row", Label.REPEATED),
        Field("chunked_value", 3, "bool"),
    ),
    **_list_of("Row", "Struct"),
    **_list_of("Struct", "Entries"),
    **_list_of("Entries", "bytes"),
    "Flat": (
        Field("metadata", 1, "bytes"),
        Field("values", 2, "FlatRow"),
        Field("chunked_value", 3, "bool"),
    ),
    **_one_of("FlatRow", "FlatStruct"),
    **_one_of("FlatStruct", "FlatEntries"),
    **_one_of("FlatEntries", "Entry"),
    **_one_of("Entry", "FieldsByKind"),
    "FieldsByKind": (
        Field("null_value", 1, "int32", Label.REPEATED),
        Field("string_value", 3, "string", Label.REPEATED),
        Field("bool_value", 4, "bool", Label.REPEATED),
        Field("list_value", 6, "bytes", Label.REPEATED),
    ),
    "Mods": (Field("values", 1, "Mod"),),
    **_one_of("Mod", "SidesByKind"),
    "SidesByKind": (
        Field("null_value", 1, "int32", Label.REPEATED),
        Field("string_value", 3, "string", Label.REPEATED),
    ),
    "Metadata": (Field("row_type", 1, "StructType"),),
    "StructType": (Field("fields", 1, "Field", Label.REPEATED),),
    "Field": (Field("name", 1, "string"), Field("type", 2, "Type")),
    "Type": (
        Field("code", 1, "int32"),
        Field("array_element_type", 2, "Type"),
        Field("struct_type", 3, "StructType"),
    ),
    "Texts": (
        Field("values", 2, "TextsByKind"),
        Field("chunked_value", 3, "bool"),
    ),
    "TextsByKind": (Field("string_value", 3, "string", Label.REPEATED),),
}

_made = message_classes("penstock.io.spanner.wire", _MESSAGES)
Partial = _made["Partial"]
"""A PartialResultSet. Its `values` are rows: lists of structs of three lists of records, one for each kind."""
Row = _made["Row"]
Flat = _made["Flat"]
"""A PartialResultSet, with the fields of all entries of all rows by kind, in their order within each kind."""
Entry = _made["Entry"]
"""The same for one entry: a Value that is a list of values."""
Mods = _made["Mods"]
"""A ListValue of lists of strings; `values.list_value.values` has all strings of all lists as one list."""
Texts = _made["Texts"]
"""A PartialResultSet of one column of strings; `values.string_value` has all of them."""
Metadata = _made["Metadata"]
ListValue, Value = struct_pb2.ListValue, struct_pb2.Value
