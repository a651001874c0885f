"""The restriction of the reader: a Frontier, with its coder and its tracker."""

from __future__ import annotations

from typing import Any

from penstock.errors import LineageError
from penstock.io.change_streams import coders
from penstock.io.change_streams.tracker import FrontierTracker
from penstock.io.ydb.frontier import Advanced, Frontier, Position, Step, Waiting


class FrontierCoder(coders.FrontierCoder):
    """Encodes a Frontier as compact JSON with ``"v":1``.

    An open partition is ``[number, position]``, a waiting one ``[number, [unfinished], position or null, first,
    sought]``. A position is ``[offset, watermark, sought, snapshot or null, schema, [[parent, end], …]]``. Its schema
    is an index in the list of schemas, because partitions share them. Entries are sorted, so equal frontiers have
    equal bytes.
    """

    value_type = Frontier

    def document(self, frontier: Frontier) -> dict[str, Any]:
        # Most partitions have the same schema, so positions name it by its index. All lists are sorted: equal frontiers
        # have equal documents.
        openings = [child.opening for child in frontier.waiting.values() if child.opening is not None]
        schemas = sorted({position.schema for position in (*frontier.open.values(), *openings)})

        def encoded(position: Position | None) -> list[Any] | None:
            if position is None:
                return None
            return [*position[:4], schemas.index(position.schema), position.parents]

        return {
            "created_at": frontier.created_at,
            "dealt": frontier.dealt,
            "end": frontier.end,
            "start": frontier.start,
            "schemas": schemas,
            "open": [[number, encoded(position)] for number, position in sorted(frontier.open.items())],
            "waiting": [
                [number, sorted(child.unfinished), encoded(child.opening), child.first, child.sought]
                for number, child in sorted(frontier.waiting.items())
            ],
        }

    def frontier(self, document: dict[str, Any]) -> Frontier:
        schemas = document["schemas"]

        def decoded(position: list[Any]) -> Position:
            offset, watermark, sought, snapshot, schema, parents = position
            return Position(
                offset,
                watermark,
                sought,
                # JSON has no tuples, and equal positions must compare equal: a parked reader is found by its position.
                None if snapshot is None else tuple(snapshot),
                schemas[schema],
                tuple([(parent, end) for parent, end in parents]),
            )

        return Frontier(
            {number: decoded(position) for number, position in document["open"]},
            {
                number: Waiting(frozenset(unfinished), None if opening is None else decoded(opening), *place)
                for number, unfinished, opening, *place in document["waiting"]
            },
            document["start"],
            document["end"],
            document["dealt"],
            tuple(document["created_at"]),
        )


class YdbTracker(FrontierTracker):
    """Claims of records by partition and position."""

    def __init__(self, frontier: Frontier) -> None:
        super().__init__(frontier.settled())

    def moved_to(self, step: Step) -> tuple[int, Position] | None:
        if type(step) is not Advanced:
            return None
        if step.partition not in self._readable:
            raise LineageError(f"a record of partition {step.partition}, which is not open")
        return step.partition, step.position
