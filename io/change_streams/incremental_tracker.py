"""The restriction of a reader of a change stream with incremental snapshots: coder and tracker."""

from __future__ import annotations

from typing import Any

from penstock.io.change_streams.coders import OuterFrontierCoder
from penstock.io.change_streams.incremental.frontier import IncrementalFrontier, Merged
from penstock.io.change_streams.incremental.progress import SnapshotProgress
from penstock.io.change_streams.tracker import FrontierTracker


class IncrementalCoder(OuterFrontierCoder):
    """Encodes an `IncrementalFrontier`: ``{"v":1, "snapshots":[progress or null, hold, reader, dealt, lost],
    "stream":{…}}``.
    """

    frontier_type = IncrementalFrontier
    field = "snapshots"

    def outer_document(self, frontier: IncrementalFrontier) -> dict[str, Any]:
        progress = None if frontier.progress is None else frontier.progress.document()
        return {"snapshots": [progress, frontier.hold, frontier.reader, frontier.dealt, frontier.lost]}

    def outer_frontier(self, document: dict[str, Any], stream: Any) -> IncrementalFrontier:
        progress, *others = document["snapshots"]
        return IncrementalFrontier(
            stream, None if progress is None else SnapshotProgress.from_document(progress), *others
        )


class IncrementalTracker(FrontierTracker):
    """Claims steps of the change stream, and `Merged` claims."""

    def __init__(self, frontier: IncrementalFrontier, stream_tracker: type[FrontierTracker]) -> None:
        """`stream_tracker`: the tracker of the source, which knows which partition a step of the stream moves."""
        super().__init__(frontier.settled())
        self._stream_tracker = stream_tracker
        self._merged: Merged | None = None

    def moved_to(self, step: Any) -> tuple[Any, Any] | None:
        if type(step) is not Merged:
            return self._stream_tracker.moved_to(self, step)
        if step.step is None:
            return None
        moved = self._stream_tracker.moved_to(self, step.step)
        if moved is not None:
            # The position is collected by the base class. The progress belongs to the same claim.
            self._merged = step
        return moved

    def current_restriction(self) -> Any:
        frontier = super().current_restriction()
        if self._merged is not None:
            frontier = self._frontier = frontier.merged(self._merged)
            self._merged = None
        return frontier
