"""Deals the ranges of a scan over several readers. Pure."""

from __future__ import annotations

from collections.abc import Iterable


def deal_numbers(numbers: Iterable[int], n: int) -> list[list[int]]:
    """Return the numbers of ranges in at most `n` parts of about the same length; one empty part if there are none.

    A range keeps its part from one deal to the next where possible, because the worker may have read ahead in it.
    """
    ordered = sorted(numbers)
    parts: list[list[int]] = [[] for _ in range(max(1, min(n, len(ordered))))]
    for number in ordered:
        parts[number % len(parts)].append(number)
    # Move ranges from the longest to the shortest part until their lengths differ by one at most.
    while len(longest := max(parts, key=len)) - len(shortest := min(parts, key=len)) > 1:
        shortest.append(longest.pop())
    return parts
