"""The coder of a reader that begins with a snapshot."""

from __future__ import annotations

from typing import Any

from penstock.io.change_streams.coders import OuterFrontierCoder
from penstock.io.postgres.initial_scan.frontier import BlockRange, ScanFrontier, ScannedTable, ScanView
from penstock.io.postgres.position import ReadView


class ScanCoder(OuterFrontierCoder):
    """Encodes a `ScanFrontier`: ``{"v":1, "scan":[watermark, end, dealt], "views":{slot: [view, lsn, watermark]},
    "tables":[[slot, name, has_key]…], "ranges":[[number, table, start, end, rows]…], "rows":[[table, rows]…],
    "lost":[[table, start, end, rows]…], "stream":{…} or null}``.
    """

    frontier_type = ScanFrontier
    field = "scan"

    def outer_document(self, frontier: ScanFrontier) -> dict[str, Any]:
        return {
            "scan": [frontier.watermark_at, frontier.end, frontier.dealt],
            "views": {slot: [list(each.view), *each[1:]] for slot, each in frontier.views.items()},
            "tables": [list(table) for table in frontier.tables],
            "ranges": [[number, *each] for number, each in sorted(frontier.ranges.items())],
            "rows": [list(each) for each in sorted(frontier.rows.items())],
            "lost": [list(each) for each in frontier.lost],
        }

    def outer_frontier(self, document: dict[str, Any], stream: Any) -> ScanFrontier:
        watermark, end, dealt = document["scan"]
        return ScanFrontier(
            {slot: ScanView(ReadView(*view), *rest) for slot, (view, *rest) in document["views"].items()},
            tuple(ScannedTable(*table) for table in document["tables"]),
            {number: BlockRange(*each) for number, *each in document["ranges"]},
            dict(document["rows"]),
            tuple(BlockRange(*each) for each in document["lost"]),
            stream,
            end,
            watermark,
            dealt,
        )
