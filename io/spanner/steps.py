"""From what a query sends and how it ends to the steps that are claimed; how far the next one reaches. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from penstock.io.spanner.frontier import Advanced, Announced, Ended, Finished, Position, Step
from penstock.io.spanner.record import ChangeRecord, ChildPartitionsRecord, DataChangeRecord

_MILLI = 1_000_000
FIRST_SPAN = 2000 * _MILLI
"""How much history the first query of a partition may ask for, in nanoseconds."""
_SPANS = (250 * _MILLI, 3_600_000 * _MILLI)
_FEW_BYTES, _MANY_BYTES = 256 << 10, 4 << 20

PendingStep: TypeAlias = tuple[DataChangeRecord | None, Step]
"""A step to claim, with the record to emit when the claim is granted (None: nothing to emit)."""


def to_steps(
    token: str, position: Position, records: Iterable[ChangeRecord]
) -> tuple[list[PendingStep], Position]:
    """Turn records of one partition into steps to claim, leaving out what `position` has seen already.

    Returns the steps and the position after them.
    """
    steps: list[PendingStep] = []
    for record in records:
        if isinstance(record, DataChangeRecord):
            after = position.after(record)
            if after is not None:
                steps.append((record, Advanced(token, after)))
                position = after
        elif isinstance(record, ChildPartitionsRecord):
            position = position.reached(record.start_timestamp)
            steps.append((None, Announced(token, record)))
        else:
            after = position.reached(record.timestamp)
            if after is not position:
                steps.append((None, Advanced(token, after)))
                position = after
    return steps, position


def next_span(span: int, received_bytes: int) -> int:
    """Return how much history the next query of a partition that lies behind may ask for, in nanoseconds.

    The service sends the first row of a query later, the more the query covers, and what a cut bundle had not
    claimed is asked for again; so a backlog is read in pieces: longer ones after little came, shorter ones
    after much.
    """
    if received_bytes < _FEW_BYTES:
        return min(2 * span, _SPANS[1])
    return max(span // 2, _SPANS[0]) if received_bytes > _MANY_BYTES else span


def last_step(
    token: str, position: Position, reached: int, end: int | None, *, announced: bool
) -> Step | None:
    """Return the step that the end of a query means: it ended with status OK and had reached to `reached`.

    `announced`: a child partitions record was among its rows. Without one a partition is not finished, only
    read to the frontier's `end` or not. Of the time up to `reached` no more is taken for read than the
    timestamp of the last record, which only a query that goes beyond it completes: the next one then begins
    after it. (It must: a window in which nothing but that record is sent again carries no heartbeat.) The
    rest of the window is left to heartbeats.
    """
    if announced:
        return Finished(token)
    if reached == end:
        return Ended(token)
    if position.seen and reached > position.timestamp:
        return Advanced(token, Position(position.timestamp + 1))
    return None
