"""Lines that were made of a whole batch land in the buckets in which single lines land."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.batches import ElementBatch
from penstock.io.files.write import _Lines
from penstock.io.staging.blocks import BLOCK_RECORDS, BucketRun
from penstock.io.staging.collect import CollectRecordsFn
from penstock.transforms.formats.lines import Line, line_runs

HOUR_US = 3_600_000_000
lines = st.lists(
    st.tuples(
        st.sampled_from(["orders", "users"]),
        st.sampled_from([None, "1", b"2", "3"]),
        st.text("ab", max_size=3),
        st.sampled_from([0, 1, HOUR_US - 1, HOUR_US, 5 * HOUR_US]),
    ),
    min_size=1,
)


def collected(elements: list[Any], times_us: list[int], shards: int) -> dict[str, list[tuple[int, bytes]]]:
    of_lines = _Lines(attrgetter("table"), attrgetter("table", "key"), None, attrgetter("line"), shards)
    collect = CollectRecordsFn(of_lines.encode, of_lines.bucket, places=of_lines.places)
    collect.start_bundle()
    assert collect.process(ElementBatch(elements, times_us)) is None
    return {each.value[0]: list(each.value[1].records()) for each in collect._outputs()}


@given(lines, st.integers(1, 3))
def test_runs_of_lines_land_where_single_lines_land(given_lines, shards):
    elements = [Line(table, key, text) for table, key, text, _ in given_lines]
    times_us = [time_us for *_, time_us in given_lines]
    runs = line_runs(lambda line: [line], elements, times_us)
    assert collected(*runs, shards) == collected(elements, times_us, shards)


def test_rows_of_one_record_are_in_one_block():
    of_lines = _Lines("t", None, None, str, 1)
    collect = CollectRecordsFn(of_lines.encode, of_lines.bucket, places=of_lines.places)
    collect.start_bundle()
    runs = [BucketRun("t", [0] * rows, [b"rows", *[b""] * (rows - 1)]) for rows in (3, BLOCK_RECORDS, 5, 1)]
    outputs = [*(collect.process(ElementBatch(runs, [0] * 4)) or ()), *collect._outputs()]
    blocks = [each.value[1] for each in outputs]
    assert [len(block.lengths) for block in blocks] == [3 + BLOCK_RECORDS, 6]
    assert all(block.lengths[0] for block in blocks)


def test_a_line_with_a_line_break_is_refused():
    with pytest.raises(ValueError, match="line break"):
        line_runs(lambda line: [line], [Line("orders", None, "a\nb")], [0])
