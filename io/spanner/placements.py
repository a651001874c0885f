"""Placements that are added while a change stream with per_placement_tvf is read. Pure.

Such a stream has one read function for each placement. The list of its functions is one more partition of the frontier:
a look at the list takes the place of a query, and a function that the list did not have before takes the place of a
child. So the list holds the watermark at the time of the last look, and it is in the checkpoint, like any partition.

The key of the list contains the functions that are known. When one more is found, the list ends, and announces two
partitions: the root partition of the function, and the list that knows it. Both begin when the function did.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from penstock.errors import PositionLostError
from penstock.io.change_streams.status import UnreachableError
from penstock.io.spanner.frontier import Advanced, Announced, Ended, Step
from penstock.io.spanner.position import Position
from penstock.io.spanner.preflight import placement_functions
from penstock.io.spanner.query import (
    CURRENT_TIME,
    ROOT,
    STREAMS,
    Query,
    change_stream_query,
    function_of,
    list_of_placements,
    partition_key,
    placements_of,
)
from penstock.io.spanner.record import ChildPartition, ChildPartitionsRecord
from penstock.io.spanner.source import ChangeStream
from penstock.timestamps import parse_timestamp

_HEARTBEAT_MS = 1000
"""Not used by the service: these queries end at their start."""


class Looked(NamedTuple):
    """The result of one look: the list is complete up to `time`, except for `function`, which exists from `start` on.

    `function` is the one that is not known and began first; empty: all are known. Times are nanoseconds.
    """

    time: int
    function: str = ""
    start: int = 0


class PlacementList(NamedTuple):
    """`look` looks at the list with a key, which is known up to a time; `every`: nanoseconds between two looks."""

    look: Callable[[str, int], Looked]
    every: int


Rows: TypeAlias = Callable[[Query], list[list[str]]]
"""Runs a query and returns its rows as text."""


def look_at_placements(stream: ChangeStream, rows: Rows, key: str, since: int) -> Looked:
    """Return the result of a look at the list with a key, which is known up to `since`.

    Raises:
        UnreachableError: a function that is not known has no partitions yet: look again.
    """
    # Read the time before the list, because a function may be added while the list is read.
    time = _time(rows)
    streams = [name for (name,) in rows(Query(STREAMS))]
    functions = placement_functions(stream, function_of(key), streams, rows)
    starts = {
        function: _first_time(stream, rows, function, since)
        for function in sorted({*functions} - placements_of(key))
    }
    if not starts:
        return Looked(time)
    function = min(starts, key=lambda each: (starts[each], each))
    return Looked(time, function, starts[function])


def _first_time(stream: ChangeStream, rows: Rows, function: str, since: int) -> int:
    def answers(timestamp: int) -> bool:
        try:
            return bool(rows(change_stream_query(function, ROOT, timestamp, timestamp, _HEARTBEAT_MS)))
        except PositionLostError:  # "too far in the past": the function began later
            return False

    start = first_time(answers, since, _time(rows))
    if start is None:
        raise UnreachableError(f"{stream}: {function} has no partitions yet")
    return start


def _time(rows: Rows) -> int:
    ((text,),) = rows(Query(CURRENT_TIME))
    return parse_timestamp(text)


def step_of(key: str, looked: Looked, end: int | None) -> Step:
    """Return the step of a look at the list with a key; `end`: last timestamp to read, inclusive."""
    if looked.function and (end is None or looked.start <= end):
        # The list continues as a child of itself, under a key that names this function too.
        following = list_of_placements(function_of(key), {*placements_of(key), looked.function})
        found = ChildPartition(partition_key(looked.function, ROOT), frozenset())
        record = ChildPartitionsRecord(looked.start, "0", (found, ChildPartition(following, frozenset())))
        return Announced(key, record, last=True)
    if end is not None and looked.time >= end:
        return Ended(key)
    return Advanced(key, Position(looked.time))


def first_time(answers: Callable[[int], bool], after: int, until: int) -> int | None:
    """Return the first time from `after` to `until`, both inclusive, at which a function has partitions; None: none.

    `answers` asks the service whether it has partitions at a time. A function of a placement that was added cannot be
    read before the placement existed, and the service does not say since when it does.
    """
    if answers(after):
        return after
    if not answers(until):
        return None
    # Invariant: there are no partitions at `after`, and there are some at `until`.
    while until - after > 1:
        middle = (after + until) // 2
        if answers(middle):
            until = middle
        else:
            after = middle
    return until
