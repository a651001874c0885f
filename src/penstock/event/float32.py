"""Floating-point numbers of 32 bits as Python's floats of 64 bits. Pure."""

from __future__ import annotations

from contextlib import suppress
from struct import Struct

_pack = Struct("f").pack


def shortest(number: float) -> float:
    """Return the float with the fewest digits that is the same number in 32 bits: 3.14 for 3.140000104904175.

    Databases print a number of 32 bits with these digits, and so do formats that write a Python float.
    """
    if number - number != 0:
        return number
    same = _pack(number)
    # 9 digits name every number of 32 bits; a number that has a text of up to 6 digits is named by it.
    for digits in range(6, 9):
        candidate = float(f"{number:.{digits}g}")
        with suppress(OverflowError):  # the largest number, rounded up
            if _pack(candidate) == same:
                return candidate
    return float(f"{number:.9g}")
