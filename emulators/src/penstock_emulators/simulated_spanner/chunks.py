"""Values that are too long for one message, cut in pieces that a client puts together again.

Source: google/spanner/v1/result_set.proto, "chunked_value". Strings are concatenated. Lists are concatenated,
and if the last element of the first and the first of the second are strings or lists, those two are merged by
the same rule: so if a list is cut after a string or list, the next piece begins with an empty one.
Clients differ in what they do if only one of the two can be merged; the empty element avoids that case.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf import struct_pb2


def pieces(value: bytes, size: int) -> Iterator[bytes]:
    """Yield an encoded google.protobuf.Value in pieces of about `size` bytes, each an encoded Value.

    Numbers, bools and nulls are never cut; a piece may therefore be longer than `size`.
    """
    if len(value) <= size:
        yield value
        return
    for piece in _cut(struct_pb2.Value.FromString(value), size):
        yield piece.SerializeToString()


def _cut(value: Any, size: int) -> Iterator[Any]:
    kind = value.WhichOneof("kind")
    if kind == "string_value":
        text = value.string_value
        # Characters, not bytes: a piece of text must be valid UTF-8 and may be a little longer.
        step = max(1, size)
        for start in range(0, max(1, len(text)), step):
            yield struct_pb2.Value(string_value=text[start : start + step])
    elif kind == "list_value":
        yield from _cut_list(list(value.list_value.values), size)
    else:
        yield value


def _cut_list(elements: list[Any], size: int) -> Iterator[Any]:
    current = struct_pb2.Value(list_value=struct_pb2.ListValue())
    for number, element in enumerate(elements):
        for part_number, part in enumerate(_cut(element, size)):
            full = current.ByteSize() + part.ByteSize() > size
            if part_number or (full and current.list_value.values):
                yield current
                current = struct_pb2.Value(list_value=struct_pb2.ListValue())
                if not part_number and _merges(elements[number - 1]):
                    current.list_value.values.append(_empty(elements[number - 1]))
            current.list_value.values.append(part)
    yield current


def _merges(value: Any) -> bool:
    return value.WhichOneof("kind") in ("string_value", "list_value")


def _empty(value: Any) -> Any:
    """Return what can be merged with `value` and changes nothing."""
    if value.WhichOneof("kind") == "string_value":
        return struct_pb2.Value(string_value="")
    return struct_pb2.Value(list_value=struct_pb2.ListValue())
