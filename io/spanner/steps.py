"""From the records of a query and its end to the steps that are claimed; how far the next query reaches. Pure."""

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
    """Turn records of one partition into steps to claim, without those that `position` has seen already.

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
    """Return how much history the next query of a partition that is behind may ask for, in nanoseconds.

    The more time a query covers, the later the service sends its first row, and a split bundle asks again for rows that
    it had not claimed. So a backlog is read in pieces: longer ones after few bytes, shorter ones after many.
    """
    if received_bytes < _FEW_BYTES:
        return min(2 * span, _SPANS[1])
    return max(span // 2, _SPANS[0]) if received_bytes > _MANY_BYTES else span


def last_step(
    token: str, position: Position, reached: int, end: int | None, *, announced: bool
) -> Step | None:
    """Return the step for the end of a query that covered the time up to `reached` and ended with status OK.

    `announced`: a child partitions record was among its rows. Without one a partition is not finished, only
    read to the frontier's `end` or not. Of the time up to `reached`, only the timestamp of the last record counts
    as read. A query that covers more than that timestamp has sent all its records, so the next query begins after
    it. It must: a query whose window holds only that record would send the record again, and no heartbeat.
    Heartbeats advance the position over the rest of the window.
    """
    if announced:
        return Finished(token)
    if reached == end:
        return Ended(token)
    if position.seen and reached > position.timestamp:
        return Advanced(token, Position(position.timestamp + 1))
    return None
