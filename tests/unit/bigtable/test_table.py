"""The read of a whole table covers every row once."""

from __future__ import annotations

import pytest

from penstock.io.bigtable import ReadFromBigtableTable, SetCell, TableRow
from penstock.io.bigtable.keys import EVERYTHING, KeyRange, tiles
from penstock.io.bigtable.table import TableRowCoder, between


@pytest.mark.parametrize("row_range", [EVERYTHING, KeyRange(b"b", b"m"), KeyRange(b"c", b"")])
def test_sampled_keys_cut_the_range_and_lose_nothing(row_range: KeyRange) -> None:
    parts = between(row_range, [b"c", b"b", b"x", b"x", b""])
    assert tiles(row_range, parts)
    assert len(parts) == {EVERYTHING: 4, KeyRange(b"b", b"m"): 2}.get(row_range, 2)


def test_a_row_survives_its_coder() -> None:
    row = TableRow(b"\xff\0", (SetCell("f", b"q", 5, b"new"), SetCell("f", b"q", 4, b"")))
    assert TableRowCoder().decode(TableRowCoder().encode(row)) == row


def test_an_empty_range_is_refused() -> None:
    with pytest.raises(ValueError, match="must end after its start"):
        ReadFromBigtableTable(project="p", instance="i", table="t", row_range=(b"b", b"b"))
