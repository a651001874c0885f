"""The geometry of the charts and of the partitions."""

from __future__ import annotations

from penstock.telemetry.lineage import PartitionSpan
from penstock.ui.drawings import MAX_PARTITIONS, chart, lineage, shortened


def test_a_chart_needs_two_points_and_says_its_values_in_words() -> None:
    assert chart([(0.0, 1.0)]) is None
    found = chart([(0.0, 1.0), (10.0, 3.0), (20.0, 2.0)])
    assert found is not None
    assert found.summary == "now 2, lowest 1, highest 3"
    assert found.points.split()[1] == "505.0,10.0"  # half of the time, at the top


def test_a_constant_value_is_a_line_and_a_negative_one_is_below_zero() -> None:
    assert chart([(0.0, 0.0), (0.0, 0.0)]) is not None
    found = chart([(0.0, -1.0), (1.0, 1.0)])
    assert found is not None
    assert [text for _, text in found.ticks] == ["1", "-1"]


def test_a_split_a_merge_and_a_wait_are_lines_between_bars() -> None:
    parent = PartitionSpan("a", 0.0)
    child = PartitionSpan("b", 10.0, sources=[(10.0, "a")], waits_for={"a"})
    found = lineage([parent, child], 20.0)
    assert found is not None
    assert [bar.kind for bar in found.bars] == ["open", "waiting"]
    assert [link.kind for link in found.links] == ["edge", "wait"]
    assert found.bars[1].x > found.bars[0].x


def test_open_partitions_stay_in_a_drawing_without_room_for_all() -> None:
    old = PartitionSpan("old and open", 0.0)
    closed = [PartitionSpan(f"p{number}", 1.0 + number, 2.0 + number) for number in range(MAX_PARTITIONS)]
    found = lineage([old, *closed], 500.0)
    assert found is not None
    assert (len(found.bars), found.left_out) == (MAX_PARTITIONS, 1)
    assert found.bars[0].span is old
    assert lineage([PartitionSpan("unknown")], 500.0) is None


def test_long_names_keep_their_ends() -> None:
    assert shortened("a" * 30 + "z" * 30) == "aaaaaaaaa…zzzzzzzzz"
    assert shortened("short") == "short"
