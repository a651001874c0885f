"""The lineage events of a claimed step: how partitions end and which continue them. Pure.

See `penstock.io.change_streams.lineage` for their form. A partition is named by its key range, such as
``['a', 'm')``, with the whole row keys: they are user data.
"""

from __future__ import annotations

from penstock.io.bigtable.frontier import Closed, Finished, Frontier, Reopened, Step
from penstock.io.bigtable.keys import KeyRange
from penstock.io.change_streams.lineage import ANNOUNCED, CLOSED, ENDED, LineageEvent


def lineage_events(step: Step, frontier: Frontier) -> list[LineageEvent]:
    """Return the events of a step; `frontier` is the frontier before it. Empty for records and heartbeats."""
    if not isinstance(step, Closed | Finished | Reopened):
        return []
    position = frontier.positions.get(step.partition)
    # A segment that is re-opened was not open, so it has no position.
    at = position.watermark if position else frontier.watermark or 0
    name = _name(step.partition)
    if isinstance(step, Finished):
        return [LineageEvent(at, ENDED, name)]
    if isinstance(step, Reopened):
        return [LineageEvent(at, ANNOUNCED, name, (), name)]
    targets = sorted({continuation.target for continuation in step.continuations})
    return [
        LineageEvent(at, CLOSED, name),
        *(LineageEvent(at, ANNOUNCED, _name(target), (name,), name) for target in targets),
    ]


def _name(part: KeyRange) -> str:
    return f"[{ascii(part.start)[1:]}, {ascii(part.end)[1:] if part.end else 'end'})"
