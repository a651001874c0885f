"""The lineage events of a claimed step: how partitions begin, end and exchange keys. Pure.

See `penstock.io.change_streams.lineage` for their form. A merged partition is announced by each of its parents, so it
has one `announced` event for each.
"""

from __future__ import annotations

from penstock.io.change_streams.lineage import ANNOUNCED, CLOSED, ENDED, MOVED_IN, LineageEvent
from penstock.io.spanner.frontier import Announced, Ended, Finished, Frontier, MovedIn, Step
from penstock.io.spanner.query import is_list_of_placements
from penstock.io.spanner.record import ChildPartitionsRecord, PartitionStartRecord


def lineage_events(step: Step, frontier: Frontier) -> list[LineageEvent]:
    """Return the events of a step; `frontier` is the frontier before it. Empty for records and heartbeats."""
    match step:
        case Announced(token, PartitionStartRecord() as record):
            return [
                LineageEvent(record.start_timestamp, ANNOUNCED, each, (), token)
                for each in record.partition_tokens
            ]
        case Announced(token, ChildPartitionsRecord() as record):
            return [
                LineageEvent(
                    record.start_timestamp,
                    ANNOUNCED,
                    child.token,
                    tuple(sorted(child.parent_partition_tokens)),
                    token,
                )
                for child in record.child_partitions
                if not is_list_of_placements(child.token)
                and not _is_repeated(token, child.token, record, frontier)
            ]
        case MovedIn(token, position, sources):
            return [LineageEvent(position.timestamp, MOVED_IN, token, tuple(sorted(sources)))]
        case Finished(token) | Ended(token) if not is_list_of_placements(token):
            event = CLOSED if isinstance(step, Finished) else ENDED
            return [LineageEvent(frontier.open[token].timestamp, event, token)]
    return []


def _is_repeated(token: str, child: str, record: ChildPartitionsRecord, frontier: Frontier) -> bool:
    """Return whether a bundle reads an announcement again: the one before ended between it and the end of the parent.

    The first reading has made the child wait, and has moved the parent to the start of the child. Before it, another
    parent may have made the child wait, but this one is at an earlier time.
    """
    return child in frontier.waiting and frontier.open[token].timestamp >= record.start_timestamp
