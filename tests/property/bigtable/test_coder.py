"""The coder of Bigtable's records: every record survives it, and equal records have equal bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.io.bigtable import (
    AddToCell,
    ChangeStreamMutation,
    ChangeStreamMutationCoder,
    DeleteCells,
    DeleteFamily,
    MergeToCell,
    MutationType,
    SetCell,
    UnknownMutation,
)
from penstock.io.bigtable.coder import ChangeStreamCoder
from penstock.io.bigtable.keys import KeyRange
from penstock.io.bigtable.source import ChangeStream

int64 = st.integers(-(1 << 63), (1 << 63) - 1)
texts = st.text(max_size=8)
raw = st.binary(max_size=300)
entries = st.one_of(
    st.builds(SetCell, texts, raw, int64, raw),
    st.builds(DeleteCells, texts, raw, int64, st.one_of(st.none(), int64)),
    st.builds(DeleteFamily, texts),
    st.builds(AddToCell, texts, raw, int64, st.one_of(int64, raw)),
    st.builds(MergeToCell, texts, raw, int64, st.one_of(int64, raw)),
    st.builds(UnknownMutation, raw),
)
records = st.builds(
    ChangeStreamMutation,
    raw,
    st.sampled_from(MutationType),
    texts,
    int64,
    st.integers(-(1 << 31), (1 << 31) - 1),
    texts,
    int64,
    st.lists(entries, max_size=8).map(tuple),
)
CODER = ChangeStreamMutationCoder()


@given(records)
def test_a_record_survives_its_coder(record: ChangeStreamMutation) -> None:
    assert CODER.decode(CODER.encode(record)) == record


@given(records, records)
def test_equal_records_and_only_they_have_equal_bytes(
    one: ChangeStreamMutation, other: ChangeStreamMutation
) -> None:
    assert (CODER.encode(one) == CODER.encode(other)) == (one == other)


@pytest.mark.parametrize("size", [255, 256, 65_535, 65_536])
def test_values_of_every_width_survive(size: int) -> None:
    cell = SetCell("f", b"q", 0, b"x" * size)
    record = ChangeStreamMutation(b"r", MutationType.USER, "c", 1, 0, "t", 1, (cell,))
    assert CODER.decode(CODER.encode(record)) == record


def test_a_record_of_another_version_is_refused_with_advice() -> None:
    record = ChangeStreamMutation(b"r", MutationType.USER, "c", 1, 0, "t", 1, ())
    with pytest.raises(ValueError, match="version 3 cannot be read .* finish the job"):
        CODER.decode(b"\3" + CODER.encode(record)[1:])


@given(int64, st.one_of(st.none(), int64), raw, raw)
def test_a_change_stream_survives_its_coder(start: int, end: int | None, first: bytes, last: bytes) -> None:
    stream = ChangeStream("p", "i", "t", start, end, KeyRange(first, last))
    assert ChangeStreamCoder().decode(ChangeStreamCoder().encode(stream)) == stream
