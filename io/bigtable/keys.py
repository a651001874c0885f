"""Ranges of row keys: start inclusive, end exclusive, an empty end means without end. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock.errors import UsageError


class KeyRange(NamedTuple):
    """Row keys from `start`, inclusive, to `end`, exclusive; an `end` of ``b""`` means without end.

    Ranges sort by start. The functions here never return an empty range; `checked` rejects one from a caller.
    """

    start: bytes
    end: bytes

    def holds(self, key: bytes) -> bool:
        """Return whether the row key is in the range."""
        return self.start <= key and (not self.end or key < self.end)

    def covers(self, other: KeyRange) -> bool:
        """Return whether every key of `other` is in the range."""
        return self.start <= other.start and _end(other.end) <= _end(self.end)

    def intersection(self, other: KeyRange) -> KeyRange | None:
        """Return the keys that both have, or None."""
        start = self.start if self.start >= other.start else other.start
        if not self.end or not other.end:
            end = self.end or other.end
        else:
            end = self.end if self.end <= other.end else other.end
        return KeyRange(start, end) if not end or start < end else None

    def hull(self, other: KeyRange) -> KeyRange:
        """Return the smallest range that covers both."""
        return KeyRange(min(self.start, other.start), max(self.end, other.end, key=_end))

    def checked(self) -> KeyRange:
        """Return the range itself.

        Raises:
            UsageError: it is empty, its end is before its start, or its keys are not bytes.
        """
        if not isinstance(self.start, bytes) or not isinstance(self.end, bytes):
            raise UsageError("row keys of a range must be bytes, not text: pass (b'from', b'to')")
        if (False, self.start) >= _end(self.end):
            raise UsageError("a range of row keys must end after its start; pass b'' for no end")
        return self


EVERYTHING = KeyRange(b"", b"")


def _end(end: bytes) -> tuple[bool, bytes]:
    """Make ends comparable: the empty one comes after all others."""
    return (not end, end)


def tiles(whole: KeyRange, parts: Sequence[KeyRange]) -> bool:
    """Return whether `parts` cover `whole` exactly, without gaps and without overlaps."""
    at, ended = whole.start, False
    for part in sorted(parts):
        # After a part without an end, `at` is also the first key, and would accept a part that begins there.
        if ended or part.start != at:
            return False
        at, ended = part.end, not part.end
    return bool(parts) and at == whole.end


def missing(whole: KeyRange, parts: Iterable[KeyRange]) -> list[KeyRange]:
    """Return the ranges of `whole` that no part covers, in order. Parts may overlap and extend beyond `whole`."""
    holes: list[KeyRange] = []
    # Invariant: `left` is the rest of `whole` after the parts that were looked at; None: nothing remains.
    left: KeyRange | None = whole
    for part in sorted(parts):
        if left is None or (common := left.intersection(part)) is None:
            continue
        if left.start < common.start:
            holes.append(KeyRange(left.start, common.start))
        left = KeyRange(common.end, left.end) if common.end != left.end else None
    return [*holes, left] if left is not None else holes


def united(ranges: Iterable[KeyRange]) -> tuple[KeyRange, ...]:
    """Return the same keys as ascending ranges that neither overlap nor touch."""
    whole: list[KeyRange] = []
    for part in sorted(ranges):
        if whole and (not whole[-1].end or part.start <= whole[-1].end):
            whole[-1] = whole[-1].hull(part)
        else:
            whole.append(part)
    return tuple(whole)


def abbreviate(part: KeyRange) -> str:
    """Return a range for messages, with its keys cut to a few bytes, because row keys are user data."""
    return f"[{_short(part.start)}, {_short(part.end) if part.end else 'end'})"


def _short(key: bytes) -> str:
    text = ascii(key[:6])[2:-1]
    return f"'{text}…'" if len(key) > 6 else f"'{text}'"
