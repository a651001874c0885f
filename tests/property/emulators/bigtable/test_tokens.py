"""Tokens contain everything that a server needs: parts can be merged, split and advanced without loss."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_emulators.bigtable.layout import KeyRange
from penstock_emulators.bigtable.tokens import (
    Mint,
    Part,
    Token,
    TokenError,
    advanced,
    cut,
    opened_with,
    part_for,
)

UID = "0123456789abcdef"
numbers = st.integers(0, 1 << 50)


@st.composite
def positions(draw, start: bytes = b"", end: bytes = b"") -> tuple[Part, ...]:
    inner = draw(st.lists(st.binary(min_size=1, max_size=3), max_size=4, unique=True))
    bounds = [start, *sorted(key for key in inner if start < key and (not end or key < end)), end]
    return tuple(
        Part(KeyRange(low, high), draw(st.integers(0, 5)), draw(st.sampled_from([0, 7])))
        for low, high in pairwise(bounds)
    )


@given(numbers, positions(), st.booleans())
def test_a_token_decodes_to_what_was_encoded(as_of_us: int, parts: tuple[Part, ...], loose: bool) -> None:
    token = Token(UID, as_of_us, parts, loose)
    assert Token.decode(token.encode()) == token


@given(numbers, numbers, numbers, st.binary(max_size=3), st.binary(min_size=4, max_size=4))
def test_a_minted_token_is_the_token_of_that_position(
    as_of_us: int, sequence: int, since_us: int, start: bytes, end: bytes
) -> None:
    keys = KeyRange(start, end) if start < end else KeyRange(start, b"")
    minted = Mint(UID, Part(keys, 0, since_us)).token(as_of_us, sequence)
    assert minted == Token(UID, as_of_us, (Part(keys, sequence, since_us),)).encode()


@given(
    positions(), st.lists(st.binary(min_size=1, max_size=3), max_size=3, unique=True), st.binary(max_size=4)
)
def test_parts_that_are_split_and_merged_select_the_same_records(
    parts: tuple[Part, ...], bounds: list[bytes], key: bytes
) -> None:
    ranges = [KeyRange(low, high) for low, high in pairwise([b"", *sorted(bounds), b""])]
    given_back = [(keys, Token(UID, 9, cut(parts, keys)).encode()) for keys in reversed(ranges)]
    opened = opened_with(KeyRange(b"", b""), UID, given_back)
    for sequence in range(6):
        for commit_us in (6, 7):
            wanted = part_for(parts, key).wants(sequence, key, commit_us)
            assert part_for(opened.parts, key).wants(sequence, key, commit_us) == wanted


@given(positions(), st.integers(0, 6), st.binary(max_size=4), st.integers(0, 9))
def test_an_advanced_token_selects_the_same_records_except_earlier_ones(
    parts: tuple[Part, ...], sequence: int, key: bytes, later: int
) -> None:
    moved = part_for(advanced(parts, sequence), key)
    assert moved.wants(later, key, 9) == (later >= sequence and part_for(parts, key).wants(later, key, 9))


@given(positions(), st.integers(0, 3))
def test_a_missing_a_repeated_and_a_foreign_token_are_refused(parts: tuple[Part, ...], place: int) -> None:
    tokens = [(part.keys, Token(UID, 9, (part,)).encode()) for part in parts]
    place %= len(tokens)
    with pytest.raises(TokenError):
        opened_with(KeyRange(b"", b""), UID, tokens[:place] + tokens[place + 1 :])
    with pytest.raises(TokenError, match="cover"):
        opened_with(KeyRange(b"", b""), UID, [*tokens, tokens[place]])
    with pytest.raises(TokenError, match="another table"):
        opened_with(KeyRange(b"", b""), "f" * 16, tokens)


@given(st.text(max_size=20) | st.binary(max_size=20).map(lambda b: b.decode("latin-1")))
def test_bytes_that_are_not_a_token_are_refused(text: str) -> None:
    with pytest.raises(TokenError):
        Token.decode(text)
