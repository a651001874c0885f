"""Deletion vectors of Delta: the rows of a data file that are deleted, as bytes and as entries of the log. Pure.

Needs pyroaring. Source: Delta's protocol, "Deletion Vectors" and "Deletion Vector Format".
"""

from __future__ import annotations

import array
import re
import struct
import uuid
import zlib
from collections.abc import Sequence

import msgspec
import numpy as np

from penstock.errors import UsageError
from penstock.io.columnar.positions import Positions

FOLDER = "_penstock_vectors"
"""Folder of the sink's vectors. `DeltaTable.vacuum(full=True)` of delta-rs 1.6 deletes vectors that are in use, except
in folders whose names begin with "_"."""

_MAGIC = struct.pack("<I", 1681511377)
_FORMAT = b"\x01"
_NAME = re.compile(r"deletion_vector_([0-9a-f-]{36})\.bin")
_LENGTH = struct.Struct(">I")
_TEXT_OF_UUID = 20
_DIGITS = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
"""Z85, which is another alphabet than the one of `base64.b85encode`."""


class Vector(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Where a vector is: the "deletion vector descriptor" of the protocol."""

    storage_type: str
    path_or_inline_dv: str
    size_in_bytes: int
    cardinality: int
    offset: int | None = None

    @property
    def id(self) -> str:
        """Tells vectors of one data file apart."""
        place = "" if self.offset is None else f"@{self.offset}"
        return f"{self.storage_type}{self.path_or_inline_dv}{place}"

    @property
    def path(self) -> str | None:
        """The file of the vector, relative to the table; None: it is inline.

        Raises:
            UsageError: the file is outside of the table.
        """
        if self.storage_type == "i":
            return None
        if self.storage_type != "u":
            raise UsageError(
                "a deletion vector of the table is outside of its folder, as in a shallow clone. Write the files of "
                "the table again (Spark: OPTIMIZE, or REORG TABLE … APPLY (PURGE)), or set its property "
                "delta.enableDeletionVectors to false"
            )
        # Before the UUID is the folder of the file, which may be empty. Source: Delta protocol, "Deletion Vector
        # Format".
        folder, text = self.path_or_inline_dv[:-_TEXT_OF_UUID], self.path_or_inline_dv[-_TEXT_OF_UUID:]
        name = f"deletion_vector_{uuid.UUID(bytes=from_z85(text))}.bin"
        return f"{folder}/{name}" if folder else name


def new_id(now_ms: int) -> uuid.UUID:
    """Return the id of a new file of vectors: a UUID of version 7, which has the time of its creation."""
    # `uuid.uuid7` came with Python 3.14.
    number = now_ms << 80 | uuid.uuid4().int & (1 << 80) - 1
    return uuid.UUID(int=number & ~(0xF << 76) | 7 << 76)


def created_ms(name: str) -> int | None:
    """Return when the sink has created the file of vectors with a name, in milliseconds; None: it is not the sink's."""
    found = _NAME.fullmatch(name)
    if found is None or (id_ := uuid.UUID(found[1])).version != 7:
        return None
    return id_.int >> 80


def vectors_of(rows: Sequence[Positions], id_: uuid.UUID) -> tuple[str, bytes, list[Vector]]:
    """Return the path of a new file below a table, its content, and a vector for each of several sets of rows."""
    parts, vectors, offset = [_FORMAT], [], len(_FORMAT)
    for positions in rows:
        data = encode(positions)
        parts += [_LENGTH.pack(len(data)), data, _LENGTH.pack(zlib.crc32(data))]
        # The offset is the one of the length before the data, and the size is the one of the data alone.
        vectors.append(Vector("u", FOLDER + to_z85(id_.bytes), len(data), len(positions), offset))
        offset += len(data) + 2 * _LENGTH.size
    return f"{FOLDER}/deletion_vector_{id_}.bin", b"".join(parts), vectors


def rows_in(vector: Vector, file: bytes) -> Positions:
    """Return the rows of a vector. `file` is the content of its file; any bytes if it is inline.

    Raises:
        UsageError: the file does not have the vector.
    """
    if vector.storage_type == "i":
        # Five characters have four bytes, so the last ones may be padding.
        return decode(from_z85(vector.path_or_inline_dv)[: vector.size_in_bytes])
    begin = (vector.offset or 0) + _LENGTH.size
    end = begin + vector.size_in_bytes
    data, check = file[begin:end], file[end : end + _LENGTH.size]
    if check != _LENGTH.pack(zlib.crc32(data)):
        raise UsageError(f"the deletion vector {vector.path} of the table is damaged. Restore the file")
    return decode(data)


def encode(positions: Positions) -> bytes:
    """Return rows as a 64-bit Roaring bitmap in its portable form, behind Delta's magic number."""
    from pyroaring import BitMap64

    return _MAGIC + bytes(BitMap64(array.array("Q", positions.astype(np.uint64).tobytes())).serialize())


def decode(data: bytes) -> Positions:
    """Return the rows of a bitmap; see `encode`."""
    from pyroaring import BitMap64

    if data[: len(_MAGIC)] != _MAGIC:
        raise UsageError("a deletion vector of the table has an unknown form. Update Penstock")
    return np.frombuffer(BitMap64.deserialize(data[len(_MAGIC) :]).to_array(), np.uint64).astype(np.int64)


def to_z85(data: bytes) -> str:
    """Return bytes as text. Their number is a multiple of four."""
    text = bytearray()
    for (number,) in struct.iter_unpack(">I", data):
        text += bytes(_DIGITS[number // 85**power % 85] for power in (4, 3, 2, 1, 0))
    return text.decode()


def from_z85(text: str) -> bytes:
    """Return the bytes of a text; see `to_z85`."""
    found = bytearray()
    for begin in range(0, len(text), 5):
        number = 0
        for character in text[begin : begin + 5].encode():
            number = number * 85 + _DIGITS.index(character)
        found += struct.pack(">I", number)
    return bytes(found)
