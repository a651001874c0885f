"""Continuation tokens: the position of a stream, as a string that is opaque to clients. Pure.

    text = Token(uid, as_of_us, (Part(KeyRange(b"a", b"m"), sequence=7),)).encode()
    parts = parts_of(KeyRange(b"a", b"z"), uid, [(KeyRange(b"a", b"m"), text), (KeyRange(b"m", b"z"), other)])

A token holds everything that the server needs to resume: the id of the table's stream, and for each part of the
partition the sequence number of the next record. So the server has no state of its readers. When parents at unequal
positions merge, the token of the new partition has several parts until all of them are at the same position.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from penstock_emulators.bigtable.layout import KeyRange, LayoutError

MARK = "penstock"


class TokenError(ValueError):
    """A token is not one of this stream, or the tokens given do not make up the partition asked for."""


@dataclass(frozen=True, slots=True)
class Part:
    """The position in one key range: the next record is the first at or after `sequence` in the range.

    Records committed before `since_us` are not sent: the reader started at that time (inclusive).
    """

    keys: KeyRange
    sequence: int
    since_us: int = 0

    def wants(self, sequence: int, key: bytes, commit_us: int) -> bool:
        """Return whether a record is still to be sent."""
        return sequence >= self.sequence and commit_us >= self.since_us and self.keys.holds(key)


@dataclass(frozen=True, slots=True)
class Token:
    """A position in one partition of one table's stream.

    `parts` are ascending and adjacent. All records before `as_of_us` were read: a token older than the
    retention period has expired. A `loose` token is accepted for every range inside its own range, a bug of the service
    that tests can switch on.
    """

    uid: str
    as_of_us: int
    parts: tuple[Part, ...]
    loose: bool = False

    @property
    def keys(self) -> KeyRange:
        """The partition the token is for."""
        return KeyRange(self.parts[0].keys.start, self.parts[-1].keys.end)

    def encode(self) -> str:
        """Return the token as the string that clients see."""
        head = f"{MARK} {self.uid} {self.as_of_us} {int(self.loose)}"
        parts = "".join(
            f" {part.keys.start.hex()}:{part.keys.end.hex()}:{part.sequence}:{part.since_us}"
            for part in self.parts
        )
        return urlsafe_b64encode((head + parts).encode("ascii")).decode("ascii")

    @classmethod
    def decode(cls, text: str) -> Token:
        """Return the token in `text`.

        Raises:
            TokenError: this emulator has not made it.
        """
        try:
            mark, uid, as_of_us, loose, *parts = urlsafe_b64decode(text.encode("ascii")).decode().split(" ")
            token = cls(uid, int(as_of_us), tuple(_part(part) for part in parts), loose == "1")
        except (ValueError, LayoutError):
            raise TokenError("the continuation token is malformed") from None
        if mark != MARK or not token.parts:
            raise TokenError("the continuation token is malformed")
        return token


class Mint:
    """Makes the tokens of one part, which differ only in the position. Every record is sent with a token."""

    def __init__(self, uid: str, part: Part) -> None:
        """Encode the fields that all tokens share."""
        self._head = f"{MARK} {uid} "
        self._keys = f" 0 {part.keys.start.hex()}:{part.keys.end.hex()}:"
        self._since = f":{part.since_us}"

    def token(self, as_of_us: int, sequence: int) -> str:
        """Return what `Token.encode` would."""
        # Base64 hides the fields, as the service's tokens are opaque.
        text = f"{self._head}{as_of_us}{self._keys}{sequence}{self._since}"
        return urlsafe_b64encode(text.encode("ascii")).decode("ascii")


def opened_with(partition: KeyRange, uid: str, given: Iterable[tuple[KeyRange, str]]) -> Token:
    """Return the position of `partition` from continuation tokens, each with its partition.

    Raises:
        TokenError: a token is malformed, of another stream, or not for the partition it comes with; or the
            partitions do not cover `partition` exactly.

    Source: proto comments of ReadChangeStreamRequest.continuation_tokens.
    """
    # A client may send the tokens in any order.
    tokens = sorted(((keys, _checked(keys, uid, text)) for keys, text in given), key=lambda pair: pair[0])
    if not tokens:
        raise TokenError("no continuation token was given")
    _require_cover(partition, [keys for keys, _ in tokens])
    parts = joined([part for keys, token in tokens for part in cut(token.parts, keys)])
    # The oldest time counts, because all records before it were read.
    return Token(uid, min(token.as_of_us for _, token in tokens), parts)


def cut(parts: Iterable[Part], keys: KeyRange) -> tuple[Part, ...]:
    """Return the sections of `parts` inside `keys`."""
    return tuple(
        replace(part, keys=overlap) for part in parts if (overlap := part.keys.overlap(keys)) is not None
    )


def advanced(parts: Iterable[Part], sequence: int) -> tuple[Part, ...]:
    """Return `parts` after every record before `sequence` was sent. Parts at the same position become one."""
    return joined([replace(part, sequence=max(part.sequence, sequence)) for part in parts])


def joined(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Return adjacent parts with equal positions as one."""
    whole: list[Part] = []
    for part in parts:
        if whole and (whole[-1].sequence, whole[-1].since_us) == (part.sequence, part.since_us):
            # Neighbours with one position: the scan has passed both.
            whole[-1] = replace(part, keys=KeyRange(whole[-1].keys.start, part.keys.end))
        else:
            whole.append(part)
    return tuple(whole)


def part_for(parts: Sequence[Part], key: bytes) -> Part:
    """Return the part whose range may hold `key`: the last that starts at or before it, else the first."""
    return parts[max(0, bisect_right(parts, key, key=lambda part: part.keys.start) - 1)]


def _checked(keys: KeyRange, uid: str, text: str) -> Token:
    token = Token.decode(text)
    # The id of the stream changes with the table, so old tokens are recognized.
    if token.uid != uid:
        raise TokenError(
            "the continuation token is of another table, or from before the table was recreated or its "
            "change stream switched off"
        )
    if token.keys != keys and not (token.loose and token.keys.covers(keys)):
        raise TokenError("the continuation token is not for the partition that it comes with")
    return token


def _require_cover(partition: KeyRange, ranges: Sequence[KeyRange]) -> None:
    adjacent = all(left.end and left.end == right.start for left, right in pairwise(ranges))
    if not adjacent or (ranges[0].start, ranges[-1].end) != (partition.start, partition.end):
        raise TokenError("the partitions of the continuation tokens do not cover the partition exactly")


def _part(text: str) -> Part:
    start, end, sequence, since_us = text.split(":")
    return Part(KeyRange(bytes.fromhex(start), bytes.fromhex(end)), int(sequence), int(since_us))
