"""The wire format of a change, typed so that parsing it also says whether it sets whole cells and nothing else.

That is what nearly every change does, and nothing in it has to be looked at one by one: so its entries can be left
unmade until somebody asks for them, and it can be encoded again as it is. To find out by a look at each mutation would
cost more than all the rest of decoding. So here the same bytes are given other message types. In these a mutation
*requires* a set_cell, a response a data_change, and whatever else could stand there (a chunk_info, another kind of
mutation, a heartbeat) is a message that requires a field which nobody sends. Then one question, whether all
that is required is there, answers for the whole message at once.

The field numbers are those of google/bigtable/v2/bigtable.proto and data.proto; what is not named here is kept as an
unknown field. Fields without presence, as in those files: a default is never encoded, so equal changes that set whole
cells have equal bytes, once `DiscardUnknownFields` has been called.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

_Field = descriptor_pb2.FieldDescriptorProto
_Presence = descriptor_pb2.FeatureSet
_SCALARS = {
    "bool": _Field.TYPE_BOOL,
    "bytes": _Field.TYPE_BYTES,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "string": _Field.TYPE_STRING,
}
_PACKAGE = "penstock.io.bigtable.wire"
_ANY, _REQUIRED, _REPEATED = range(3)
_NEVER = (1 << 29) - 1
"""The largest field number there is."""

_MESSAGES = {
    "Response": (
        ("data_change", 1, "DataChange", _REQUIRED),
        ("heartbeat", 2, "Other", _ANY),
        ("close_stream", 3, "Other", _ANY),
    ),
    "DataChange": (
        ("type_", 1, "int32", _ANY),
        ("source_cluster_id", 2, "string", _ANY),
        ("row_key", 3, "bytes", _ANY),
        ("commit_timestamp", 4, "Timestamp", _ANY),
        ("tiebreaker", 5, "int32", _ANY),
        ("chunks", 6, "MutationChunk", _REPEATED),
        ("done", 8, "bool", _ANY),
        ("token", 9, "string", _ANY),
        ("estimated_low_watermark", 10, "Timestamp", _ANY),
    ),
    "Timestamp": (("seconds", 1, "int64", _ANY), ("nanos", 2, "int32", _ANY)),
    "MutationChunk": (("chunk_info", 1, "Other", _ANY), ("mutation", 2, "Mutation", _REQUIRED)),
    "Mutation": (
        ("set_cell", 1, "SetCell", _REQUIRED),
        ("delete_from_column", 2, "Other", _ANY),
        ("delete_from_family", 3, "Other", _ANY),
        ("delete_from_row", 4, "Other", _ANY),
        ("add_to_cell", 5, "Other", _ANY),
        ("merge_to_cell", 6, "Other", _ANY),
    ),
    "SetCell": (
        ("family_name", 1, "string", _ANY),
        ("column_qualifier", 2, "bytes", _ANY),
        ("timestamp_micros", 3, "int64", _ANY),
        ("value", 4, "bytes", _ANY),
    ),
    "Other": (("never", _NEVER, "bool", _REQUIRED),),
}
"""Message to its fields: name, number, type, and whether it is required or repeated."""


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name=f"{_PACKAGE}.proto", package=_PACKAGE, syntax="editions")
    file.edition = descriptor_pb2.EDITION_2023
    file.options.features.field_presence = _Presence.IMPLICIT
    for message, fields in _MESSAGES.items():
        described = file.message_type.add(name=message)
        for name, number, kind, how in fields:
            field = described.field.add(name=name, number=number)
            field.label = _Field.LABEL_REPEATED if how == _REPEATED else _Field.LABEL_OPTIONAL
            if how == _REQUIRED:
                field.options.features.field_presence = _Presence.LEGACY_REQUIRED
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
Response = _made["Response"]
"""A ReadChangeStreamResponse, if it is initialized: with a data_change all of whose mutations set whole cells."""
DataChange = _made["DataChange"]


def whole_cells(data: bytes) -> Any | None:
    """Return the response that these bytes are, if it holds a data change that sets whole cells; otherwise None."""
    try:
        response = Response.FromString(data)
    except DecodeError:
        return None
    return response if response.IsInitialized() else None
