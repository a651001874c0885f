"""The checks before a read: the changefeed exists and can be read from the start. Pure."""

from __future__ import annotations

from penstock.errors import PositionLostError, SetupError
from penstock.io.change_streams.incremental.options import INITIAL, NEVER
from penstock.io.ydb.description import Description, PartitionDescription
from penstock.io.ydb.frontier import UNKNOWN, Frontier, Position, Waiting
from penstock.io.ydb.source import ChangeStream
from penstock.timestamps import NANOS, format_timestamp


def check_changefeed(
    stream: ChangeStream, found: Description | None, names: tuple[str, ...], consumer: str
) -> None:
    """Check that the changefeed exists and can be read. `names`: the changefeeds of the table.

    Raises:
        SetupError: it cannot; the message names the fix.
    """
    if found is None:
        raise SetupError(
            f"{stream}: the table has no such changefeed (it has: {', '.join(sorted(names)) or 'none'}). Create it: "
            f"ALTER TABLE `{stream.table}` ADD CHANGEFEED {stream.changefeed} WITH (MODE = 'NEW_AND_OLD_IMAGES', "
            "FORMAT = 'JSON', VIRTUAL_TIMESTAMPS = TRUE, BARRIERS_INTERVAL = Interval('PT1S'))"
        )
    if found.table.mode == "" or found.table.format == "":
        raise SetupError(f"{stream}: its mode or format is not known to this release. Update penstock")
    if found.disabled and stream.end is None:
        raise SetupError(
            f"{stream}: it is disabled and takes no more changes, so a read without end would wait forever. Pass an "
            "end to read what it has, or create a new changefeed"
        )
    if consumer and consumer not in found.consumers:
        known = ", ".join(sorted(found.consumers)) or "none"
        raise SetupError(
            f"{stream}: its topic has no consumer {consumer!r} (it has: {known}). Create it: "
            f"ALTER TOPIC `{stream.table}/{stream.changefeed}` ADD CONSUMER {consumer}"
        )


def check_snapshot(stream: ChangeStream, found: Description, snapshot: str) -> None:
    """Check that the changefeed can give what the argument `snapshot` asks for: initial, never, or empty for either.

    Raises:
        SetupError: it cannot; the message names the fix.
    """
    if snapshot == INITIAL and not found.initial_scan:
        raise SetupError(
            f"{stream}: it was created without an initial scan, and YDB scans a table only when a changefeed is "
            f"created. For snapshot=initial, create another one: ALTER TABLE `{stream.table}` ADD CHANGEFEED … WITH "
            "(INITIAL_SCAN = TRUE, …)"
        )
    if snapshot == INITIAL and stream.start:
        raise SetupError(
            f"{stream}: a start leaves out the rows of the initial scan. Leave start out, or pass snapshot=never"
        )
    marked = found.table.format == "DEBEZIUM_JSON" or (found.has_commit_times and found.created_at[1])
    if snapshot == NEVER and found.initial_scan and not marked:
        raise SetupError(
            f"{stream}: snapshot=never cannot tell rows of its initial scan from changes. This needs "
            "VIRTUAL_TIMESTAMPS = TRUE and a server that says which transaction created the topic, or the format "
            "DEBEZIUM_JSON. Create a changefeed without INITIAL_SCAN, or pass a start after the scan"
        )


def check_scan_is_whole(stream: ChangeStream, found: Description, snapshot: str) -> None:
    """Check that retention has not deleted rows of the initial scan, when a pipeline starts without a checkpoint.

    Raises:
        PositionLostError: it may have.
    """
    known = {partition.number for partition in found.partitions}
    # A parent that the topic does not have any more was deleted with its records.
    deleted = any(
        partition.first > 0 or not known.issuperset(partition.parents) for partition in found.partitions
    )
    if snapshot == INITIAL and deleted:
        raise PositionLostError(
            f"{stream}: the retention period has passed for the first records, so rows of the initial scan may be "
            "missing. For snapshot=initial, create another changefeed with INITIAL_SCAN = TRUE"
        )


def check_retention(stream: ChangeStream, found: Description, now: int) -> None:
    """Check that the topic still has the changes from the start on. `now` is in nanoseconds.

    Raises:
        PositionLostError: some may have been deleted.
    """
    if not stream.start:
        return
    oldest = now - round(found.retention_seconds * NANOS)
    deleted = any(partition.first > 0 for partition in found.partitions)
    # The service deletes messages some time after the period. A topic that has deleted none still has all changes.
    if stream.start < oldest and deleted:
        raise PositionLostError(
            f"{stream}: it keeps records for {found.retention_seconds / 3600:g} hours, so the changes from "
            f"{format_timestamp(stream.start)} on are not complete any more. Pass a start after "
            f"{format_timestamp(oldest)}, or none to read what there is"
        )


def check_positions(stream: ChangeStream, frontier: Frontier, found: Description, now: int) -> None:
    """Check that the topic still has everything after the positions of a checkpoint.

    Raises:
        PositionLostError: it has not; the message says what to do.
    """
    if frontier.created_at != found.created_at:
        raise PositionLostError(
            f"{stream}: it was dropped and created again after the checkpoint was made, so the changes between are "
            f"lost. {_START_AGAIN}"
        )
    partitions = {partition.number: partition for partition in found.partitions}
    oldest = now - round(found.retention_seconds * NANOS)
    for number, position in frontier.open.items():
        partition = partitions.get(number)
        if partition is None:
            raise PositionLostError(
                f"{stream}: partition {number} was deleted before it was read to its end. {_START_AGAIN}"
            )
        # The offset that is sought may be before `first`: retention has only deleted messages from before the start.
        if partition.end is None or (position.sought and frontier.start >= oldest):
            continue
        if position.offset < partition.first:
            raise lost_records(stream, number, position.offset, partition.first)
        if position.offset > partition.end:
            raise PositionLostError(
                f"{stream}: partition {number} ends at offset {partition.end}, and the checkpoint stands at "
                f"{position.offset}. The server has lost records. {_START_AGAIN}"
            )


def lost_records(stream: ChangeStream, partition: int, expected: int, found: int) -> PositionLostError:
    """Return the error for records that retention has deleted before they were read."""
    return PositionLostError(
        f"{stream}: partition {partition} has a gap. The next record should have offset {expected}, and the first one "
        f"that is left has {found}: the retention period has passed, and {found - expected} records are lost. "
        f"{_START_AGAIN}, and raise RETENTION_PERIOD"
    )


_START_AGAIN = (
    "Create a changefeed with INITIAL_SCAN = TRUE, or copy the table, and start with a new checkpoint folder"
)


def first_frontier(stream: ChangeStream, found: Description) -> Frontier:
    """Return all of the changefeed's work: partitions without parents are open, their descendants wait."""
    known = {partition.number for partition in found.partitions}
    opened: dict[int, Position] = {}
    waiting: dict[int, Waiting] = {}
    for partition in found.partitions:
        # A parent that was deleted has no records left, so it counts as finished.
        parents = known.intersection(partition.parents)
        position = _first_position(stream, found, partition)
        if parents:
            waiting[partition.number] = Waiting(frozenset(parents), None, position.offset, position.sought)
        else:
            opened[partition.number] = position
    return Frontier(opened, waiting, stream.start, stream.end, created_at=found.created_at)


def _first_position(stream: ChangeStream, found: Description, partition: PartitionDescription) -> Position:
    # An exact offset if nothing can be sought: then each later gap is an error. The last message decides whether the
    # search will find one.
    if partition.end is None:
        return Position(0, stream.start, True)
    nothing_since_start = 0 < partition.last_write < stream.start
    if nothing_since_start:
        return Position(partition.end, stream.start)
    # This is needed only if the topic does not say which transaction created it; see `steps`.
    is_looked_for = found.initial_scan and not found.created_at[1]
    scan = UNKNOWN if is_looked_for and not partition.first and not stream.start else None
    return Position(
        partition.first, stream.start, bool(stream.start) and partition.end > partition.first, scan
    )
