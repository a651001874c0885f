"""The restriction of the reader: a Frontier, with its coder and its tracker."""

from __future__ import annotations

from typing import Any

from penstock.errors import LineageError
from penstock.io.change_streams import coders
from penstock.io.change_streams.tracker import FrontierTracker
from penstock.io.spanner.frontier import Advanced, Frontier, Step, Waiting, abbreviate
from penstock.io.spanner.position import Position


class FrontierCoder(coders.FrontierCoder):
    """Encodes a Frontier as compact JSON, with the names of its fields and ``"v":1``.

    An open partition is ``[key, timestamp, seen]``, a waiting one ``[key, start, [unfinished], seen]``; seen is
    ``{transaction: [[first, last], …]}``. Both are sorted by key, so equal frontiers have equal bytes.
    """

    value_type = Frontier

    def document(self, frontier: Frontier) -> dict[str, Any]:
        return {
            "end": frontier.end,
            "dealt": frontier.dealt,
            "globally_ordered": frontier.globally_ordered,
            "mutable": frontier.mutable,
            "finished": dict(frontier.finished),
            "open": [[token, at.timestamp, dict(at.seen)] for token, at in sorted(frontier.open.items())],
            "waiting": [
                [token, child.start, sorted(child.unfinished), dict(child.seen)]
                for token, child in sorted(frontier.waiting.items())
            ],
        }

    def frontier(self, document: dict[str, Any]) -> Frontier:
        return Frontier(
            {token: Position(timestamp, _seen(seen)) for token, timestamp, seen in document["open"]},
            {
                token: Waiting(start, frozenset(parents), _seen(seen))
                for token, start, parents, seen in document["waiting"]
            },
            document["end"],
            document["dealt"],
            document["globally_ordered"],
            document["mutable"],
            document["finished"],
        )


def _seen(document: dict[str, list[list[int]]]) -> dict[str, tuple[tuple[int, int], ...]]:
    return {
        transaction: tuple([(first, last) for first, last in runs]) for transaction, runs in document.items()
    }


class SpannerTracker(FrontierTracker):
    """Claims of records by token and position."""

    def __init__(self, frontier: Frontier) -> None:
        super().__init__(frontier.settled())

    def moved_to(self, step: Step) -> tuple[str, Position] | None:
        if type(step) is not Advanced:
            return None
        if step.token not in self._readable:
            raise LineageError(f"a record of a partition that is not open: {abbreviate(step.token)}")
        return step.token, step.position
