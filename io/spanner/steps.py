"""Converts the records of a query, and its end, to the steps that are claimed; plans the next query's period. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeAlias

from penstock.io.change_streams.undecodable import UndecodableRecord
from penstock.io.spanner.frontier import Advanced, Announced, Ended, Finished, MovedIn, Step
from penstock.io.spanner.position import Position
from penstock.io.spanner.query import function_of, partition_key, token_of
from penstock.io.spanner.record import (
    ChangeRecord,
    ChildPartition,
    ChildPartitionsRecord,
    DamagedRecord,
    DataChangeRecord,
    HeartbeatRecord,
    PartitionEndRecord,
    PartitionEventRecord,
    PartitionStartRecord,
)

_MILLI = 1_000_000
FIRST_SPAN = 10_000 * _MILLI
"""How much history the first query of a partition may ask for, in nanoseconds."""
_SPANS = (250 * _MILLI, 3_600_000 * _MILLI)
_FEW_BYTES, _MANY_BYTES = 1 << 20, 4 << 20

PendingStep: TypeAlias = tuple[list[DataChangeRecord | UndecodableRecord], Step]
"""A step to claim, with the records to emit when the claim is granted: a run of records, or none."""

Wanted: TypeAlias = Callable[[DataChangeRecord], bool]
"""Whether a record is emitted. A record that is not emitted still advances the position."""

MAX_IN_CLAIM = 100
"""The most records that one step covers. A claim costs as much as a record, and a split has to wait for its end."""


def to_steps(
    key: str,
    position: Position,
    records: Iterable[ChangeRecord],
    wanted: Wanted | None = None,
    max_in_claim: int = MAX_IN_CLAIM,
) -> tuple[list[PendingStep], Position]:
    """Turn records of one partition into steps to claim, without those that `position` has seen already.

    One step covers a run of data records, `max_in_claim` at most: to claim it is to claim them all. Every other record
    has its own step. Returns the steps and the position after them. A step after which the partition is not read on
    (`closes`) is the last one: records after it are ignored.
    """
    steps: list[PendingStep] = []
    run: list[DataChangeRecord | UndecodableRecord] = []
    covered = 0  # by the run, including records that are not emitted

    def end_run() -> None:
        nonlocal run, covered
        if covered:
            steps.append((run, Advanced(key, position)))
            run, covered = [], 0

    for record in records:
        if isinstance(record, (DataChangeRecord, DamagedRecord)):
            after = position.after_sequence(
                record.commit_timestamp, record.server_transaction_id, record.record_sequence
            )
            if after is None:  # the record was read before the checkpoint
                continue
            position = after
            if isinstance(record, DamagedRecord):
                run.append(_undecodable(key, record))
            elif wanted is None or wanted(record):
                run.append(record)
            covered += 1
            # Counted with the records that are not emitted, because they advance the position too.
            if covered == max_in_claim:
                end_run()
            continue
        # The run ends before any other record: a step of it would claim a time that its records do not have.
        end_run()
        if isinstance(record, HeartbeatRecord):
            after = position.reached(record.timestamp)
            if after is not position:
                steps.append(([], Advanced(key, after)))
                position = after
        else:
            step, position = _lineage_step(key, position, record)
            if step is not None:
                steps.append(([], step))
                if closes(step):
                    break
    end_run()
    return steps, position


def _lineage_step(
    key: str,
    position: Position,
    record: ChildPartitionsRecord | PartitionStartRecord | PartitionEventRecord | PartitionEndRecord,
) -> tuple[Step | None, Position]:
    """Return the step of a record about partitions, None if it was seen, and the position after it."""
    if isinstance(record, PartitionEndRecord):
        return Finished(key), position.reached(record.end_timestamp)
    if isinstance(record, PartitionEventRecord):
        after = position.after_sequence(record.commit_timestamp, "", record.record_sequence)
        if after is None:
            return None, position
        if not record.sources:  # keys moved out: the destinations wait for this partition's position
            return Advanced(key, after), after
        sources = frozenset([partition_key(function_of(key), source) for source in record.sources])
        return MovedIn(key, after, sources), after
    return Announced(key, _with_keys(function_of(key), record)), position.reached(record.start_timestamp)


def closes(step: Step) -> bool:
    """Whether the partition is not read on after this step, until the frontier opens it again, if ever."""
    return isinstance(step, MovedIn | Finished | Ended)


def announces_end(step: Step) -> bool:
    """Whether a query that sent this step's record has read the partition to its end, if it ends with status OK."""
    return isinstance(step, Announced) and (
        isinstance(step.record, ChildPartitionsRecord) or not token_of(step.token)
    )


def _with_keys(
    function: str, record: ChildPartitionsRecord | PartitionStartRecord
) -> ChildPartitionsRecord | PartitionStartRecord:
    """Replace the tokens in a record by the keys of their partitions."""
    if not function:
        return record
    if isinstance(record, PartitionStartRecord):
        keys = [partition_key(function, token) for token in record.partition_tokens]
        return replace(record, partition_tokens=tuple(keys))
    children = [
        ChildPartition(
            partition_key(function, child.token),
            frozenset([partition_key(function, parent) for parent in child.parent_partition_tokens]),
        )
        for child in record.child_partitions
    ]
    return replace(record, child_partitions=tuple(children))


def _undecodable(key: str, record: DamagedRecord) -> UndecodableRecord:
    return UndecodableRecord(
        commit_timestamp=record.commit_timestamp,
        partition=token_of(key),
        position=f"{record.server_transaction_id}/{record.record_sequence}",
        reason=record.reason,
        data=record.data,
        format=record.format,
    )


def next_span(span: int, received_bytes: int) -> int:
    """Return how much history the next query of a partition that is behind may ask for, in nanoseconds.

    The more time a query covers, the later the service sends its first row, and a split bundle asks again for rows that
    it had not claimed. So a backlog is read in pieces: longer ones after few bytes, shorter ones after many.
    """
    if received_bytes < _FEW_BYTES:
        return min(4 * span, _SPANS[1])
    return max(span // 2, _SPANS[0]) if received_bytes > _MANY_BYTES else span


def last_step(key: str, position: Position, reached: int, end: int | None, *, announced: bool) -> Step | None:
    """Return the step for the end of a query that covered the time up to `reached` and ended with status OK.

    `announced`: a record that `announces_end` was among its rows. Without one a partition is not finished, only
    read to the frontier's `end` or not. Of the time up to `reached`, only the timestamp of the last record counts
    as read. A query that covers more than that timestamp has sent all its records, so the next query begins after
    it. It must: a query whose window holds only that record would send the record again, and no heartbeat.
    Heartbeats advance the position over the rest of the window.
    """
    if announced:
        return Finished(key)
    if reached == end:
        return Ended(key)
    if position.seen and reached > position.timestamp:
        return Advanced(key, Position(position.timestamp + 1))
    return None
