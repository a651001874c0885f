"""The wire format of a PartialResultSet, typed as far as the rows of a change stream need it.

Everything in a row is a `google.protobuf.Value`, list within list. Decoded as such, a record of one mod is mostly
Python objects that are made only to be asked for their single string. So here the same bytes are given other
message types: where the lists are walked, they are messages; where the values lie, they are left as bytes, from
which a short string is taken by slicing. The field numbers are those of google/protobuf/struct.proto and
google/spanner/v1/result_set.proto, type.proto; what is not named here is kept as an unknown field, so a row can be
encoded again and read as the Value that it is.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, struct_pb2

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {"bytes": _Field.TYPE_BYTES, "bool": _Field.TYPE_BOOL, "string": _Field.TYPE_STRING}
_PACKAGE = "penstock.io.spanner.wire"

_STRING_TAG, _TRUE = 0x1A, b"\x20\x01"
_ONE_BYTE_LENGTH = 0x80


def _list_of(name: str, values: str) -> dict[str, tuple[tuple[str, int, str, bool], ...]]:
    """Describe a Value that holds a list: message `name`, whose values are of the type `values`."""
    return {
        name: (("list_value", 6, f"{name}List", False),),
        f"{name}List": (("values", 1, values, True),),
    }


_MESSAGES = {
    "Partial": (
        ("metadata", 1, "bytes", False),
        ("values", 2, "Row", True),
        ("chunked_value", 3, "bool", False),
    ),
    **_list_of("Row", "Struct"),
    **_list_of("Struct", "Entries"),
    **_list_of("Entries", "Fields"),
    **_list_of("Fields", "bytes"),
    **_list_of("Mods", "Mod"),
    **_list_of("Mod", "Text"),
    "Text": (("string_value", 3, "string", False),),
    "Metadata": (("row_type", 1, "StructType", False),),
    "StructType": (("fields", 1, "Field", True),),
    "Field": (("name", 1, "string", False), ("type", 2, "Type", False)),
    "Type": (("array_element_type", 2, "Type", False), ("struct_type", 3, "StructType", False)),
}
"""Message to its fields: name, number, type, repeated."""


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name=f"{_PACKAGE}.proto", package=_PACKAGE, syntax="proto3")
    for message, fields in _MESSAGES.items():
        described = file.message_type.add(name=message)
        for name, number, kind, repeated in fields:
            field = described.field.add(name=name, number=number)
            field.label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
            if kind in _SCALARS:
                field.type = _SCALARS[kind]
            else:
                field.type, field.type_name = _Field.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in _MESSAGES
    }


_made = _classes()
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
