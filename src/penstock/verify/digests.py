"""Digests of rows, made of whole columns. Pure. Needs pyarrow.

Two rows have the same digest if their keys and all of their values are equal. The bytes of a row are, one after the
other: a bit for each column that is NULL, and of each other column its value, in the bytes that Arrow has for it. A
text has its length before it. So no two rows share their bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvariantError
from penstock.verify.keys import encode_values

SIZE = 16
DIGESTS = pa.schema([("key", pa.string()), ("digest", pa.binary(SIZE))])
"""The columns of the digests of rows. The digest covers the key too."""
_NO_ROW = bytes(SIZE)
_NUMBERS = pa.binary(8)


def digests_of(keys: Sequence[str] | pa.Array, rows: Iterable[bytes]) -> pa.RecordBatch:
    """Return the digests of rows. `rows`: the bytes of each, which include the key."""
    made = b"".join([blake2b(row, digest_size=SIZE).digest() for row in rows])
    array = pa.Array.from_buffers(pa.binary(SIZE), len(made) // SIZE, [None, pa.py_buffer(made)])
    return pa.record_batch([pa.array(keys, pa.string()), array], schema=DIGESTS)


def no_rows(keys: Sequence[str]) -> pa.RecordBatch:
    """Return digests for rows that the target cannot have: they are equal to no digest of a row."""
    return pa.record_batch(
        [pa.array(keys, pa.string()), pa.array([_NO_ROW] * len(keys), pa.binary(SIZE))], schema=DIGESTS
    )


def digests_of_values(rows: Iterable[Sequence[Any]]) -> pa.RecordBatch:
    """Return the digests of rows of Python values, the key first.

    `digests_of_columns` returns other digests for the same rows, so both sides must use one of the two.
    """
    rows = list(rows)
    return digests_of([row[0] for row in rows], map(encode_values, rows))


def digests_of_columns(keys: pa.Array, columns: Sequence[pa.Array]) -> pa.RecordBatch:
    """Return the digests of rows with these keys, which are texts, and columns."""
    return digests_of(keys, row_bytes([keys, *columns]))


def row_bytes(columns: Sequence[pa.Array]) -> list[bytes]:
    """Return the bytes of each row; a column has the same type on both sides."""
    return list(_joined(columns).to_pylist())


def _joined(columns: Sequence[pa.Array]) -> pa.Array:
    empty = pa.scalar(b"", pa.binary())
    return pc.binary_join_element_wise(
        *_null_bits(columns), *_all_parts(columns), empty, null_handling="replace", null_replacement=b""
    )


def _all_parts(columns: Sequence[pa.Array]) -> list[pa.Array]:
    return [part for column in columns for part in _parts(column)]


def _null_bits(columns: Sequence[pa.Array]) -> list[pa.Array]:
    remaining, found = iter(columns), []
    while part := list(islice(remaining, 64)):
        bits = np.zeros(len(part[0]), np.uint64)
        for number, column in enumerate(part):
            if column.null_count:
                bits |= column.is_null().to_numpy(zero_copy_only=False).astype(np.uint64) << np.uint64(number)
        found.append(_of_numbers(bits))
    return found


def _parts(column: pa.Array) -> list[pa.Array]:
    type_ = column.type
    if pa.types.is_boolean(type_):
        return _parts(column.cast(pa.uint8()))
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        return _with_length(column.cast(pa.binary()))
    if pa.types.is_primitive(type_) or pa.types.is_decimal(type_) or pa.types.is_fixed_size_binary(type_):
        fixed = pa.binary(type_.bit_width // 8)
        same = pa.Array.from_buffers(fixed, len(column), column.buffers(), offset=column.offset)
        return [same.cast(pa.binary())]
    if pa.types.is_struct(type_):
        fields = column.flatten()
        return [*_null_bits(fields), *_all_parts(fields)]
    if not pa.types.is_list(type_):
        raise InvariantError(f"no sink of Penstock writes a column of type {type_}")
    sizes = pc.list_value_length(column).fill_null(0).to_numpy()
    offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())
    return _with_length(pc.binary_join(pa.ListArray.from_arrays(offsets, _joined([column.flatten()])), b""))


def _with_length(column: pa.Array) -> list[pa.Array]:
    lengths = pc.binary_length(column).fill_null(0).cast(pa.uint64())
    return [_of_numbers(lengths.to_numpy()), column]


def _of_numbers(numbers: npt.NDArray[np.uint64]) -> pa.Array:
    whole = pa.py_buffer(np.ascontiguousarray(numbers))
    return pa.Array.from_buffers(_NUMBERS, len(numbers), [None, whole]).cast(pa.binary())
