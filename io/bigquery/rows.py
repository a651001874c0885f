"""Rows of the Storage Write API: protocol buffers whose type is made from the columns of the table.

Apache Arrow would be the other format of the API; tables that take changes (`_CHANGE_TYPE`) accept only this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from penstock.io.bigquery.columns import Field

CHANGE_TYPE, CHANGE_SEQUENCE_NUMBER = "_CHANGE_TYPE", "_CHANGE_SEQUENCE_NUMBER"
"""Pseudo-columns that tell BigQuery what to do with a row."""

REQUEST_BYTES = 9_000_000
"""The most bytes of rows in one request. BigQuery takes 10 MB with the schema and the rest of the request."""

_Proto = descriptor_pb2.FieldDescriptorProto
_PROTO_TYPES = {
    "BOOL": _Proto.TYPE_BOOL,
    "INT64": _Proto.TYPE_INT64,
    "FLOAT64": _Proto.TYPE_DOUBLE,
    "BYTES": _Proto.TYPE_BYTES,
    "DATE": _Proto.TYPE_INT32,
    "TIMESTAMP": _Proto.TYPE_INT64,
}
"""All other types are texts."""


class RowLayout:
    """The message type of the rows of a table. Columns that are absent from a row are NULL."""

    def __init__(self, fields: Iterable[Field]) -> None:
        self.fields = tuple(fields)
        self.descriptor = descriptor_pb2.DescriptorProto(name="Row")
        # Numbers of fields count from 1 in protocol buffers.
        for number, field in enumerate(self.fields, 1):
            self.descriptor.field.add(
                name=field.name,
                number=number,
                type=_PROTO_TYPES.get(field.type, _Proto.TYPE_STRING),
                label=_Proto.LABEL_REPEATED if field.mode == "REPEATED" else _Proto.LABEL_OPTIONAL,
            )
        # proto2, because it tells an absent field from a default value, and absent is NULL.
        file = descriptor_pb2.FileDescriptorProto(name="row.proto", syntax="proto2")
        file.message_type.add().CopyFrom(self.descriptor)
        # A pool of its own: layouts of several tables would have the same names in the default pool.
        pool = descriptor_pool.DescriptorPool()
        pool.Add(file)
        self._message = message_factory.GetMessageClass(pool.FindMessageTypeByName("Row"))

    def encode(self, row: Mapping[str, Any]) -> bytes:
        """Return a row as bytes.

        Raises:
            ValueError: a text is not Unicode, a number does not fit its column, or the row is too large.
        """
        try:
            present = {name: value for name, value in row.items() if value is not None}
            content = bytes(self._message(**present).SerializeToString())
        except (ValueError, TypeError):
            # The message of protobuf shows the value.
            raise ValueError("a value does not fit the type of its column") from None
        # Checked here, because the service would refuse the whole request and name no row.
        if len(content) > REQUEST_BYTES:
            raise ValueError("the row is larger than a request of BigQuery may be (10 MB)")
        return content


class EncodedRow(NamedTuple):
    """An encoded row, and the index of its event in the batch."""

    event_index: int
    content: bytes


def fitting(rows: Sequence[EncodedRow]) -> list[EncodedRow]:
    """Return the first rows that fit into one request, at least one."""
    size, part = 0, list[EncodedRow]()
    for row in rows:
        size += len(row.content)
        if part and size > REQUEST_BYTES:
            break
        part.append(row)
    return part


# Layouts are compared by identity: a connection is kept while the layout is the same object.
@lru_cache(maxsize=1024)
def layout_of(fields: tuple[Field, ...]) -> RowLayout:
    """Return the layout of a table, made once."""
    return RowLayout(fields)


def change_layout(fields: Iterable[Field]) -> RowLayout:
    """Return the layout of rows that are changes of the table."""
    return layout_of((*fields, Field(CHANGE_TYPE, "STRING"), Field(CHANGE_SEQUENCE_NUMBER, "STRING")))
