"""The restriction of the reader: a Frontier, with its coder and its tracker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.errors import LineageError
from penstock.io.bigtable.frontier import Advanced, Frontier, Segment, Step
from penstock.io.bigtable.keys import KeyRange, abbreviate
from penstock.io.change_streams import coders
from penstock.io.change_streams.tracker import FrontierTracker


class FrontierCoder(coders.FrontierCoder):
    """Encodes a Frontier as compact JSON: ``{"v":1, "row_range", "dealt", "end", "finished", "segments":[…]}``.

    A segment is ``[start, end, token, watermark]``, followed by the start and end of its target where that is
    another range; row keys are text in which each character is one byte (Latin-1). Equal frontiers have
    equal bytes.
    """

    value_type = Frontier

    def document(self, frontier: Frontier) -> dict[str, Any]:
        return {
            "row_range": _keys(frontier.row_range),
            "dealt": frontier.dealt,
            "end": frontier.end,
            "finished": [_keys(part) for part in frontier.finished],
            "segments": [_segment(segment) for segment in frontier.segments],
        }

    def frontier(self, document: dict[str, Any]) -> Frontier:
        return Frontier(
            tuple([_read_segment(*fields) for fields in document["segments"]]),
            _read_keys(document["row_range"]),
            tuple([_read_keys(part) for part in document["finished"]]),
            document["end"],
            document["dealt"],
        )


def _segment(segment: Segment) -> list[Any]:
    target = [] if segment.target == segment.range else _keys(segment.target)
    return [*_keys(segment.range), segment.token, segment.watermark, *target]


def _read_segment(start: str, end: str, token: str | None, watermark: int, *target: str) -> Segment:
    own = _read_keys((start, end))
    return Segment(own, token, watermark, _read_keys(target) if target else own)


def _keys(part: KeyRange) -> list[str]:
    return [part.start.decode("latin-1"), part.end.decode("latin-1")]


def _read_keys(texts: Iterable[str]) -> KeyRange:
    return KeyRange._make(text.encode("latin-1") for text in texts)


class BigtableTracker(FrontierTracker):
    """Claims of records by partition, token and watermark."""

    def __init__(self, frontier: Frontier) -> None:
        super().__init__(frontier.settled())

    def moved_to(self, step: Step) -> tuple[KeyRange, tuple[str, int]] | None:
        if type(step) is not Advanced:
            return None
        if step.partition not in self._readable:
            raise LineageError(f"a record of {abbreviate(step.partition)}, which may not be open")
        return step.partition, (step.token, step.watermark)
