"""The restriction of a reader that begins with a snapshot: coder and tracker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.io.change_streams.coders import OuterFrontierCoder
from penstock.io.change_streams.range_frontier import RangeAdvanced, RangeRead
from penstock.io.change_streams.range_tracker import RangeTracker
from penstock.io.spanner.initial_scan.frontier import KeyRange, ScanFrontier, Table


class ScanCoder(OuterFrontierCoder):
    """Encodes a `ScanFrontier`: ``{"v":1, "snapshot":[timestamp, readable_until, capture, dealt], "tables":[[name,
    key_size, [[column, position]…]]…], "ranges":[[number, table, start, start_open, end]…], "stream":{…} or null}``.
    """

    frontier_type = ScanFrontier
    field = "snapshot"

    def outer_document(self, frontier: ScanFrontier) -> dict[str, Any]:
        return {
            "snapshot": [frontier.timestamp, frontier.readable_until, frontier.capture, frontier.dealt],
            "tables": [_table_document(table) for table in frontier.tables],
            "ranges": [
                [number, each.table, each.start, each.start_open, each.end]
                for number, each in sorted(frontier.ranges.items())
            ],
        }

    def outer_frontier(self, document: dict[str, Any], stream: Any) -> ScanFrontier:
        timestamp, readable_until, capture, dealt = document["snapshot"]
        return ScanFrontier(
            timestamp,
            tuple(_table(each) for each in document["tables"]),
            {
                number: KeyRange(table, start, end, start_open)
                for number, table, start, start_open, end in document["ranges"]
            },
            stream,
            readable_until,
            capture,
            dealt,
        )


def _table_document(table: Table) -> list[Any]:
    columns = [list(each) for each in zip(table.columns, table.positions, strict=True)]
    return [table.name, table.key_size, columns]


def _table(document: list[Any]) -> Table:
    name, key_size, columns = document
    return Table(name, tuple(c for c, _ in columns), tuple(p for _, p in columns), key_size)


class ScanTracker(RangeTracker):
    """Claims of rows, by the number of their range and the last key.

    If `whole_ranges`, a range can only be claimed as a whole: the service sends its rows in any order, so a key says
    nothing about the rows that are still to come. Then no split is granted between the first row and the end of a
    range. The bundle ends with the range in which a split was refused, so that the runner gets it then.
    """

    def __init__(self, frontier: ScanFrontier, *, whole_ranges: bool = False) -> None:
        super().__init__(frontier)
        self._whole_ranges = whole_ranges
        self._in_range = False
        self._split_refused = False

    def try_claim(self, position: Any) -> bool:
        granted = super().try_claim(position)
        if granted and self._whole_ranges:
            if type(position) is RangeAdvanced:
                self._in_range = True
            elif type(position) is RangeRead:
                self._in_range = False
                self._frontier = replace(self._frontier, resting=self._split_refused)
        return granted

    def try_split(self, fraction_of_remainder: float) -> tuple[Any, Any] | None:
        # Remembered, so that the bundle ends with this range and does not begin the next one.
        self._split_refused = self._split_refused or self._in_range
        return None if self._in_range else super().try_split(fraction_of_remainder)
