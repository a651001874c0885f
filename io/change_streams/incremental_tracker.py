"""The restriction of a reader of a change stream with incremental snapshots: coder and tracker."""

from __future__ import annotations

from typing import Any

from penstock.io.change_streams.coders import FrontierCoder
from penstock.io.change_streams.incremental.frontier import IncrementalFrontier, Merged
from penstock.io.change_streams.incremental.progress import SnapshotProgress
from penstock.io.change_streams.tracker import FrontierTracker


class IncrementalCoder(FrontierCoder):
    """Encodes a `IncrementalFrontier`, or the frontier of a change stream exactly as the stream's coder does.

    A `IncrementalFrontier` is ``{"v":1, "snapshots":[progress or null, hold, reader, dealt, lost], "stream":{…}}``.
    """

    value_type = object
    what = "a frontier"

    def __init__(self, stream: FrontierCoder) -> None:
        """`stream` encodes the frontier of the change stream."""
        super().__init__()
        self._stream = stream

    def document(self, frontier: Any) -> dict[str, Any]:
        if not isinstance(frontier, IncrementalFrontier):
            return self._stream.document(frontier)
        progress = None if frontier.progress is None else frontier.progress.document()
        return {
            "snapshots": [progress, frontier.hold, frontier.reader, frontier.dealt, frontier.lost],
            "stream": self._stream.document(frontier.stream),
        }

    def frontier(self, document: dict[str, Any]) -> Any:
        if "snapshots" not in document:
            return self._stream.frontier(document)
        progress, hold, reader, dealt, lost = document["snapshots"]
        return IncrementalFrontier(
            self._stream.frontier(document["stream"]),
            None if progress is None else SnapshotProgress.from_document(progress),
            hold,
            reader,
            dealt,
            lost,
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IncrementalCoder) and self._stream == other._stream

    def __hash__(self) -> int:
        return hash((IncrementalCoder, self._stream))


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
