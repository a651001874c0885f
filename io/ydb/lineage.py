"""The lineage events of a step. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.io.change_streams.lineage import ANNOUNCED, CLOSED, ENDED, LineageEvent
from penstock.io.ydb.frontier import Ended, Finished, Frontier, Step


def lineage_events(step: Step, frontier: Frontier) -> Iterator[LineageEvent]:
    """Yield the events of a step; `frontier` is the one before it. Their time is the watermark of the partition."""
    if not isinstance(step, Finished | Ended):
        return
    time, name = frontier.open[step.partition].watermark, str(step.partition)
    if isinstance(step, Ended):
        yield LineageEvent(time, ENDED, name)
        return
    parents = tuple(str(number) for number in sorted((step.partition, *step.adjacent)))
    for child in step.children:
        yield LineageEvent(time, ANNOUNCED, str(child), parents, announced_by=name)
    yield LineageEvent(time, CLOSED, name)
