"""Frontiers of any shape: dealing and joining, watermarks, coders, and the effect of a close on the key space."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import LineageError
from penstock.io.bigtable.frontier import Advanced, Closed, Finished, Frontier, Segment
from penstock.io.bigtable.keys import EVERYTHING, KeyRange, missing, tiles, united
from penstock.io.bigtable.record import Continuation
from penstock.io.bigtable.tracker import FrontierCoder

pytestmark = pytest.mark.long(seconds=5)

keys = st.binary(min_size=1, max_size=2)
cuts = st.lists(keys, unique=True, max_size=6).map(sorted)


def layout(cut: list[bytes]) -> list[KeyRange]:
    return [KeyRange(*ends) for ends in zip([b"", *cut], [*cut, b""], strict=True)]


@st.composite
def ranges(draw: Any) -> KeyRange:
    return draw(st.sampled_from(layout(draw(cuts))))


@st.composite
def frontiers(draw: Any) -> Frontier:
    """Draw complete frontiers: segments that are being read, that wait for another layout, or that are done."""
    parts = layout(draw(cuts))
    targets = layout(draw(cuts))
    segments = []
    for part in parts:
        wanted = next((t for t in targets if t.covers(part) and draw(st.booleans())), part)
        token = (
            draw(st.one_of(st.none(), st.text(max_size=3))) if wanted == part else draw(st.text(max_size=3))
        )
        segments.append(Segment(part, token, draw(st.integers(0, 100)), wanted))
    row_range = draw(st.one_of(st.just(EVERYTHING), ranges()))
    end = draw(st.one_of(st.none(), st.integers(100, 200)))
    frontier = Frontier(tuple(segments), row_range, (), end).settled()
    for partition in [each for each in frontier.positions if end is not None and draw(st.booleans())]:
        if partition in frontier.positions:
            frontier = frontier.apply(Finished(partition))
    return frontier


# The first two claims are word for word those of Spanner's frontier: the runner relies on them in every source.
@given(frontiers(), st.integers(1, 6))
def test_deal_then_join_is_identity(frontier: Frontier, n: int) -> None:
    parts = frontier.deal(n)
    assert len(parts) <= n
    assert not any(part.done for part in parts)
    assert (Frontier.join(parts) if parts else frontier) == frontier


@given(frontiers(), st.integers(1, 6))
def test_the_lowest_part_has_the_watermark_of_the_whole(frontier: Frontier, n: int) -> None:
    watermarks = [part.watermark for part in frontier.deal(n)]
    assert min((w for w in watermarks if w is not None), default=None) == frontier.watermark


@given(frontiers(), st.integers(1, 6))
def test_parts_open_exactly_what_the_whole_would_open(frontier: Frontier, n: int) -> None:
    opened = [position for part in frontier.deal(n) for position in part.positions.items()]
    assert sorted(opened) == sorted(frontier.positions.items())


@given(frontiers())
def test_frontier_survives_its_coder(frontier: Frontier) -> None:
    coder = FrontierCoder()
    assert coder.decode(coder.encode(frontier)) == frontier


@given(frontiers())
def test_each_requested_key_is_held_once_or_read_to_the_end(frontier: Frontier) -> None:
    held = [segment.range for segment in frontier.segments]
    assert missing(frontier.row_range, [*held, *frontier.finished]) == []
    assert sum(a.intersection(b) is not None for a in held for b in held) == len(held)


@given(frontiers(), cuts, st.data())
def test_a_close_never_moves_a_watermark_back_and_keeps_every_key(
    frontier: Frontier, cut: list[bytes], source: Any
) -> None:
    if not frontier.positions:
        return
    partition = source.draw(st.sampled_from(sorted(frontier.positions)))
    wide = source.draw(st.booleans())
    parts = [(target, mine) for target in layout(cut) if (mine := target.intersection(partition))]
    continuations = tuple(Continuation(target if wide else mine, "new", target) for target, mine in parts)
    after = frontier.apply(Closed(partition, continuations))
    assert after.watermark is None or frontier.watermark is None or after.watermark >= frontier.watermark
    held = united(segment.range for segment in after.segments)
    assert missing(frontier.row_range, [*held, *after.finished]) == []


@given(frontiers(), st.integers(0, 200), st.data())
def test_an_advance_collapses_a_merged_stream_to_one_segment(
    frontier: Frontier, watermark: int, source: Any
) -> None:
    if not frontier.positions:
        return
    partition = source.draw(st.sampled_from(sorted(frontier.positions)))
    after = frontier.apply(Advanced(partition, "token", watermark))
    (segment,) = (segment for segment in after.segments if partition.covers(segment.range))
    assert (segment.range, segment.token, segment.target) == (partition, "token", partition)
    assert frontier.watermark is not None
    assert segment.watermark >= max(frontier.watermark, watermark)


@given(ranges(), cuts)
def test_a_close_with_a_hole_is_refused(partition: KeyRange, cut: list[bytes]) -> None:
    parts = [mine for target in layout(cut) if (mine := target.intersection(partition))]
    frontier = Frontier((Segment(partition, "t", 1, partition),))
    lacking = tuple(Continuation(part, "new", part) for part in parts[1:])
    with pytest.raises(LineageError, match="cover"):
        frontier.apply(Closed(partition, lacking))


@given(cuts, cuts)
def test_parts_tile_a_range_only_when_nothing_is_missing_or_beyond(
    one: list[bytes], two: list[bytes]
) -> None:
    parts = layout(sorted({*one, *two}))
    assert tiles(EVERYTHING, parts)
    assert not any(tiles(EVERYTHING, [p for p in parts if p != left]) for left in parts)
    assert all(tiles(whole, [part for part in parts if whole.covers(part)]) for whole in layout(one))


@given(frontiers())
def test_a_settled_frontier_stays_as_it_is(frontier: Frontier) -> None:
    assert frontier.settled() == frontier
    assert replace(frontier, dealt=True).settled().segments == frontier.segments
