"""The lineage log of a source as spans of partitions, for a drawing. Pure.

The events are written by `penstock.io.change_streams.lineage`; here they are dictionaries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(slots=True)
class PartitionSpan:
    """One partition in time. Times are seconds since 1970; `end` is None while the partition is read.

    `start` is None if the log does not have it. `sources` are the partitions whose keys it got: (time, partition); none
    for a partition that was live when reading began. `waits_for` are the partitions that must be read up to its start
    before it is read, and are not yet.
    """

    name: str
    start: float | None = None
    end: float | None = None
    sources: list[tuple[float, str]] = field(default_factory=list)
    waits_for: set[str] = field(default_factory=set)


def partition_spans(events: Iterable[Mapping[str, Any]]) -> list[PartitionSpan]:
    """Return the partitions of a lineage log in the order of their start; events may come in any order.

    A partition with several parents is announced by each of them; these are one span. It waits for the parents that
    have not announced it.
    """
    spans: dict[str, PartitionSpan] = {}
    announced_by: dict[str, set[str]] = {}
    # Sorted as texts: all times have the same number of digits. Files of several workers have no common order.
    for event in sorted(events, key=lambda event: str(event["time"])):
        time, name = _seconds(event["time"]), str(event["partition"])
        span = spans.setdefault(name, PartitionSpan(name))
        match event["event"]:
            # Parents announce a merged child at different times. It can be read after the last of them, but the drawing
            # shows from when it was known.
            case "announced":
                span.start = time if span.start is None else min(span.start, time)
                _add_sources(span, time, event)
                span.waits_for.update(map(str, event.get("parents", ())))
                announced_by.setdefault(name, set()).add(str(event.get("announced_by")))
            case "moved_in":
                _add_sources(span, time, event)
            case "closed" | "ended":
                span.end = time
    ended = {name for name, span in spans.items() if span.end is not None}
    for name, span in spans.items():
        span.waits_for -= announced_by.get(name, set()) | ended
        if name in ended:
            span.waits_for.clear()
    return sorted(spans.values(), key=lambda span: (span.start is not None, span.start or 0.0, span.name))


def _add_sources(span: PartitionSpan, time: float, event: Mapping[str, Any]) -> None:
    # Without parents in the record, the partition that has announced this one is its source.
    for parent in event.get("parents") or [event.get("announced_by")]:
        if parent and (time, parent) not in span.sources:
            span.sources.append((time, parent))


def _seconds(text: str) -> float:
    # Nanoseconds are too fine for a drawing, and `fromisoformat` takes microseconds.
    return datetime.fromisoformat(f"{text[:26].rstrip('Z')}+00:00").timestamp()
