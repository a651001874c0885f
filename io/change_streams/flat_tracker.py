"""The coder and the tracker of a `FlatFrontier`."""

from __future__ import annotations

from typing import Any

from penstock.errors import LineageError
from penstock.io.change_streams import coders
from penstock.io.change_streams.flat import Advanced, Ended, FlatFrontier, FlatPosition
from penstock.io.change_streams.tracker import FrontierTracker


class FlatFrontierCoder(coders.FrontierCoder):
    """Encodes a `FlatFrontier`: ``{"end", "positions": {partition: [position, watermark]}, "v":1}``."""

    value_type = FlatFrontier

    def document(self, frontier: FlatFrontier) -> dict[str, Any]:
        return {"end": frontier.end, "positions": dict(frontier.positions)}

    def frontier(self, document: dict[str, Any]) -> FlatFrontier:
        positions = {name: FlatPosition(*position) for name, position in document["positions"].items()}
        return FlatFrontier(positions, document["end"])


class FlatTracker(FrontierTracker):
    """Claims of records and heartbeats by partition and position."""

    def moved_to(self, step: Advanced | Ended) -> tuple[str, FlatPosition] | None:
        if type(step) is not Advanced:
            return None
        if step.partition not in self._readable:
            raise LineageError(f"a record of partition {step.partition}, which is not read here")
        return step.partition, step.position
