"""Message types for a change, made so that parsing also tells whether the change only sets whole cells.

Nearly every change only sets whole cells. Its entries need no checks, so they can be decoded on first access, and the
message can be encoded again unchanged. To check each mutation in Python would cost more than the rest of decoding.
Therefore the same bytes are parsed as other message types. In these, a mutation *requires* a set_cell, and a response
a data_change. Everything else that may occur (a chunk_info, another kind of mutation, a heartbeat) is declared as
a message with a required field that is never sent. So one call of `IsInitialized` answers for the whole message.

The field numbers come from google/bigtable/v2/bigtable.proto and data.proto. Other fields stay unknown fields.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError

from penstock.io.change_streams.protobuf import Field, Label, message_classes

_NEVER = (1 << 29) - 1
"""The largest field number that protobuf allows."""

_MESSAGES = {
    "Response": (
        Field("data_change", 1, "DataChange", Label.REQUIRED),
        Field("heartbeat", 2, "Other"),
        Field("close_stream", 3, "Other"),
    ),
    "DataChange": (
        Field("type_", 1, "int32"),
        Field("source_cluster_id", 2, "string"),
        Field("row_key", 3, "bytes"),
        Field("commit_timestamp", 4, "Timestamp"),
        Field("tiebreaker", 5, "int32"),
        Field("chunks", 6, "MutationChunk", Label.REPEATED),
        Field("done", 8, "bool"),
        Field("token", 9, "string"),
        Field("estimated_low_watermark", 10, "Timestamp"),
    ),
    "Timestamp": (Field("seconds", 1, "int64"), Field("nanos", 2, "int32")),
    "MutationChunk": (Field("chunk_info", 1, "Other"), Field("mutation", 2, "Mutation", Label.REQUIRED)),
    "Mutation": (
        Field("set_cell", 1, "SetCell", Label.REQUIRED),
        Field("delete_from_column", 2, "Other"),
        Field("delete_from_family", 3, "Other"),
        Field("delete_from_row", 4, "Other"),
        Field("add_to_cell", 5, "Other"),
        Field("merge_to_cell", 6, "Other"),
    ),
    "SetCell": (
        Field("family_name", 1, "string"),
        Field("column_qualifier", 2, "bytes"),
        Field("timestamp_micros", 3, "int64"),
        Field("value", 4, "bytes"),
    ),
    "Other": (Field("never", _NEVER, "bool", Label.REQUIRED),),
}

_made = message_classes("penstock.io.bigtable.wire", _MESSAGES)
Response = _made["Response"]
"""A ReadChangeStreamResponse, if it is initialized: with a data_change all of whose mutations set whole cells."""
DataChange = _made["DataChange"]


def whole_cells(data: bytes) -> Any | None:
    """Return the parsed response if it holds a data change that only sets whole cells, otherwise None."""
    try:
        response = Response.FromString(data)
    except DecodeError:
        # The decoder of all messages parses it again, and says what is wrong.
        return None
    return response if response.IsInitialized() else None
