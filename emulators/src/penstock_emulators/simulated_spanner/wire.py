"""Protobuf messages written by hand, for the answers of which there are thousands a second.

A google.protobuf.Value costs about a microsecond with the protobuf classes; a data change record has fifty.
Field numbers: google/protobuf/struct.proto (Value: number 2, string 3, bool 4, struct 5, list 6; ListValue:
values 1) and google/spanner/v1/result_set.proto (PartialResultSet: metadata 1, values 2, chunked_value 3,
resume_token 4).
"""

from __future__ import annotations

from collections.abc import Iterable

NULL = b"\x08\x00"
"""Encoded Values."""
TRUE, FALSE = b"\x20\x01", b"\x20\x00"


def varint(number: int) -> bytes:
    """Return a base-128 varint."""
    # Nearly all lengths have one byte.
    if number < 0x80:
        return bytes((number,))
    parts = bytearray()
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def field(tag: bytes, body: bytes) -> bytes:
    """Return a length-delimited field; `tag` is its encoded tag."""
    return tag + varint(len(body)) + body


def string(text: str) -> bytes:
    """Return an encoded Value that holds a string."""
    return field(b"\x1a", text.encode())


def boolean(value: bool) -> bytes:
    """Return an encoded Value that holds a bool."""
    return TRUE if value else FALSE


def list_value(values: Iterable[bytes]) -> bytes:
    """Return an encoded Value that holds a list of encoded Values."""
    return field(b"\x32", b"".join([field(b"\x0a", each) for each in values]))


EMPTY_LIST = list_value(())


def partial_result_set(
    values: Iterable[bytes], *, metadata: bytes = b"", chunked: bool = False, resume_token: bytes = b""
) -> bytes:
    """Return an encoded PartialResultSet; `metadata` is an encoded ResultSetMetadata."""
    parts = [field(b"\x0a", metadata)] if metadata else []
    parts += [field(b"\x12", each) for each in values]
    if chunked:
        parts.append(b"\x18\x01")
    if resume_token:
        parts.append(field(b"\x22", resume_token))
    return b"".join(parts)
