"""The restriction of a reader that begins with a snapshot: coder and tracker."""

from __future__ import annotations

from typing import Any

from penstock.errors import LineageError
from penstock.io.change_streams.coders import FrontierCoder
from penstock.io.change_streams.tracker import FrontierTracker
from penstock.io.postgres.initial_scan.frontier import (
    BlockRange,
    BlocksRead,
    RangeProgress,
    ScanFrontier,
    ScannedTable,
    ScanView,
)
from penstock.io.postgres.position import ReadView


class ScanCoder(FrontierCoder):
    """Encodes a `ScanFrontier`, or the frontier of the log exactly as the coder of the log does.

    A scan is ``{"v":1, "scan":[watermark, end, dealt], "views":{slot: [view, lsn, watermark]}, "tables":[[slot, name,
    has_key]…], "ranges":[[number, table, start, end, rows]…], "rows":[[table, rows]…], "lost":[[table, start, end,
    rows]…], "stream":{…} or null}``.
    """

    value_type = object
    what = "a frontier"

    def __init__(self, stream: FrontierCoder) -> None:
        """`stream` encodes the frontier of the log."""
        super().__init__()
        self._stream = stream

    def document(self, frontier: Any) -> dict[str, Any]:
        if not isinstance(frontier, ScanFrontier):
            return self._stream.document(frontier)
        return {
            "scan": [frontier.watermark_at, frontier.end, frontier.dealt],
            "views": {slot: [list(each.view), *each[1:]] for slot, each in frontier.views.items()},
            "tables": [list(table) for table in frontier.tables],
            "ranges": [[number, *each] for number, each in sorted(frontier.ranges.items())],
            "rows": [list(each) for each in sorted(frontier.rows.items())],
            "lost": [list(each) for each in frontier.lost],
            "stream": None if frontier.stream is None else self._stream.document(frontier.stream),
        }

    def frontier(self, document: dict[str, Any]) -> Any:
        if "scan" not in document:
            return self._stream.frontier(document)
        watermark, end, dealt = document["scan"]
        stream = document["stream"]
        return ScanFrontier(
            {slot: ScanView(ReadView(*view), *rest) for slot, (view, *rest) in document["views"].items()},
            tuple(ScannedTable(*table) for table in document["tables"]),
            {number: BlockRange(*each) for number, *each in document["ranges"]},
            dict(document["rows"]),
            tuple(BlockRange(*each) for each in document["lost"]),
            None if stream is None else self._stream.frontier(stream),
            end,
            watermark,
            dealt,
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ScanCoder) and self._stream == other._stream

    def __hash__(self) -> int:
        return hash((ScanCoder, self._stream))


class ScanTracker(FrontierTracker):
    """Claims of rows, by the number of their range and its progress."""

    def moved_to(self, step: Any) -> tuple[int, RangeProgress] | None:
        if type(step) is not BlocksRead:
            return None
        if step.number not in self._readable:
            raise LineageError(f"rows of range {step.number}, which is not read here")
        return step.number, step.progress
