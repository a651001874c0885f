"""The restriction of the reader: a Frontier, with its coder and its tracker."""

from __future__ import annotations

import json

from penstock.coders import VersionedCoder
from penstock.errors import LineageError
from penstock.io.change_streams.tracker import FrontierTracker
from penstock.io.spanner.frontier import Advanced, Frontier, Position, Step, Waiting, abbreviate

VERSION = 1


class FrontierCoder(VersionedCoder):
    """Encodes a Frontier as compact JSON: ``{"v":1, "end", "dealt", "globally_ordered", "open":[…], "waiting":[…]}``.

    An open partition is ``[token, timestamp, {transaction: [[first, last], …]}]``, a waiting one
    ``[token, start, [unfinished parents]]``; both are sorted by token, so equal frontiers have equal bytes.
    """

    value_type = Frontier
    what = "a frontier"

    def encode(self, value: Frontier) -> bytes:
        document = {
            "v": VERSION,
            "end": value.end,
            "dealt": value.dealt,
            "globally_ordered": value.globally_ordered,
            "open": [[token, at.timestamp, dict(at.seen)] for token, at in sorted(value.open.items())],
            "waiting": [
                [token, child.start, sorted(child.unfinished)]
                for token, child in sorted(value.waiting.items())
            ],
        }
        return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()

    def decode(self, encoded: bytes) -> Frontier:
        """Return the frontier.

        Raises:
            ValueError: the bytes were written by a version that this one does not know.
        """
        document = json.loads(encoded)
        self.check_version(document.get("v"))
        return Frontier(
            {token: Position(timestamp, _seen(seen)) for token, timestamp, seen in document["open"]},
            {token: Waiting(start, frozenset(parents)) for token, start, parents in document["waiting"]},
            document["end"],
            document["dealt"],
            document["globally_ordered"],
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
