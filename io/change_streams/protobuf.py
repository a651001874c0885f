"""Message types for bytes of a known wire format, made for what a reader wants to find out about them.

The same bytes may be read as any messages whose field numbers and wire types agree: a part that nobody walks as
plain bytes, a part that must not occur as a message that requires what nobody sends. What has no name in such a type
is kept as an unknown field, so that a message can be encoded again as it came.
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
    """How often a field stands in its message."""

    ANY = auto()
    REQUIRED = auto()
    REPEATED = auto()


class Field(NamedTuple):
    """A field of a message type; `type` is a scalar's name or that of another message."""

    name: str
    number: int
    type: str
    label: Label = Label.ANY


def message_classes(package: str, messages: Mapping[str, tuple[Field, ...]]) -> dict[str, Any]:
    """Return the class of each message, by its name.

    Scalars have no presence, as in proto3: a default is never encoded, so equal messages have equal bytes once
    `DiscardUnknownFields` has been called. Whether all that is required is there is what `IsInitialized` says.
    """
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="editions")
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
