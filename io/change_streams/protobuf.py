"""Makes message types for a known wire format, for decoders that need only a part of each message.

The same bytes can be parsed as any message types whose field numbers and wire types agree. Parts that are not inspected
are declared `bytes`. Parts that must be absent are declared as a message with a required field that is never sent, so
`IsInitialized()` is false if they occur. Other fields are kept as unknown fields, so a message can be encoded again
unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_Described = descriptor_pb2.FieldDescriptorProto
_Presence = descriptor_pb2.FeatureSet
_SCALARS = {
    "bool": _Described.TYPE_BOOL,
    "bytes": _Described.TYPE_BYTES,
    "int32": _Described.TYPE_INT32,
    "int64": _Described.TYPE_INT64,
    "string": _Described.TYPE_STRING,
}


class Label(Enum):
    """How often a field occurs in its message."""

    ANY = auto()
    REQUIRED = auto()
    REPEATED = auto()


class Field(NamedTuple):
    """A field of a message type; `type` is the name of a scalar type or of another message."""

    name: str
    number: int
    type: str
    label: Label = Label.ANY


def message_classes(package: str, messages: Mapping[str, tuple[Field, ...]]) -> dict[str, Any]:
    """Return the class of each message, by its name.

    Scalars have no presence, as in proto3: a default is never encoded, so equal messages have equal bytes once
    `DiscardUnknownFields` has been called. `IsInitialized` says whether all required fields are present.
    """
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="editions")
    # Editions, because neither proto2 nor proto3 has required fields and implicit presence in one file.
    file.edition = descriptor_pb2.EDITION_2023
    file.options.features.field_presence = _Presence.IMPLICIT
    for message, fields in messages.items():
        described = file.message_type.add(name=message)
        for each in fields:
            field = described.field.add(name=each.name, number=each.number)
            repeated = each.label is Label.REPEATED
            field.label = _Described.LABEL_REPEATED if repeated else _Described.LABEL_OPTIONAL
            if each.label is Label.REQUIRED:
                field.options.features.field_presence = _Presence.LEGACY_REQUIRED
            if each.type in _SCALARS:
                field.type = _SCALARS[each.type]
            else:
                field.type, field.type_name = _Described.TYPE_MESSAGE, f".{package}.{each.type}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in messages
    }
