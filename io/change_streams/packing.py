"""Arrays of unsigned integers and of texts as bytes, little endian, for the coders of records. Pure."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator
from typing import AnyStr

_CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}
"""Type codes of `array`, by width in bytes."""


def width_of(largest: int) -> int:
    """Return the number of bytes that hold `largest`: 1, 2, 4 or 8."""
    return 1 if largest < 1 << 8 else 2 if largest < 1 << 16 else 4 if largest < 1 << 32 else 8


def pack(numbers: list[int], width: int, *, signed: bool = False) -> bytes:
    """Return the numbers as integers of `width` bytes."""
    return _little_endian(array(_code(width, signed), numbers)).tobytes()


def unpack(encoded: bytes, width: int, *, signed: bool = False) -> array[int]:
    """Return the numbers that `pack` encoded."""
    numbers = array(_code(width, signed))
    numbers.frombytes(encoded)
    return _little_endian(numbers)


def cut(text: AnyStr, lengths: Iterable[int], start: int = 0) -> Iterator[AnyStr]:
    """Yield the consecutive pieces of `text` with these lengths, from `start` on."""
    for length in lengths:
        yield text[start : start + length]
        start += length


def _code(width: int, signed: bool) -> str:
    return _CODES[width].lower() if signed else _CODES[width]


def _little_endian(numbers: array[int]) -> array[int]:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
