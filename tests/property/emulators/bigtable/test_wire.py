"""Hand-encoded messages equal those of Google's protobuf classes, and chunks add up to the record."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock_emulators.bigtable import wire
from penstock_emulators.bigtable.wire import Mutation, Origin, RecordEncoder, Response

times = st.integers(0, 1 << 52)


@st.composite
def mutations(draw) -> list:
    made = []
    for size in draw(st.lists(st.integers(0, 40), min_size=1, max_size=6)):
        mutation = Mutation()
        if draw(st.booleans()):
            mutation.set_cell.family_name = "f"
            mutation.set_cell.column_qualifier = draw(st.binary(max_size=3))
            mutation.set_cell.value = bytes(range(size))
        else:
            mutation.delete_from_family.family_name = "f" * size
        made.append(mutation)
    return made


def parsed(messages: tuple[bytes, ...], token: str = "token", watermark_us: int = 5) -> list:
    *first, last = messages
    responses = [*map(wire.data_change, first), wire.finished(last, token, watermark_us)]
    return [Response.FromString(response).data_change for response in responses]


@given(
    st.binary(min_size=1, max_size=200),
    times,
    times,
    st.integers(-(1 << 31), (1 << 31) - 1),
    mutations(),
    st.sampled_from(["", "cluster", "c" * 150]),
)
def test_a_record_in_one_message_has_every_field(
    key: bytes, commit_us: int, watermark_us: int, tiebreaker: int, some: list, cluster: str
) -> None:
    origin = Origin(cluster, tiebreaker, wire.USER)
    messages = RecordEncoder(origin, 1 << 20).messages(key, commit_us, some)
    (change,) = parsed(messages, "t" * 200, watermark_us)
    assert (change.type_, change.row_key, change.done, change.token) == (1, key, True, "t" * 200)
    assert (change.source_cluster_id, change.tiebreaker) == (cluster, tiebreaker)
    assert change.commit_timestamp.ToMicroseconds() == commit_us
    assert change.estimated_low_watermark.ToMicroseconds() == watermark_us
    assert [chunk.mutation for chunk in change.chunks] == some


@given(mutations(), st.integers(1, 30))
def test_chunks_add_up_and_appear_where_the_documentation_allows_them(some: list, size: int) -> None:
    messages = RecordEncoder(Origin("c"), size).messages(b"key", 1, some)
    changes = parsed(messages)
    assert [change.type_ for change in changes] == [1] + [3] * (len(changes) - 1)
    whole, open_cell = [], None
    for change in changes:
        assert change.chunks
        for place, chunk in enumerate(change.chunks):
            info = chunk.chunk_info
            if not info.chunked_value_size:
                assert open_cell is None
                whole.append(chunk.mutation)
                continue
            assert 0 < len(chunk.mutation.set_cell.value) <= size
            if open_cell is None:
                open_cell = Mutation.FromString(chunk.mutation.SerializeToString())
                assert info.chunked_value_offset == 0
            else:
                assert place == 0
                assert info.chunked_value_offset == len(open_cell.set_cell.value)
                open_cell.set_cell.value += chunk.mutation.set_cell.value
            if info.last_chunk:
                assert len(open_cell.set_cell.value) == info.chunked_value_size
                whole.append(open_cell)
                open_cell = None
            else:
                assert place == len(change.chunks) - 1
    assert whole == some
