"""The lineage log of a source: how its partitions begin, end and exchange keys, for a picture or a diagnosis. Pure.

    pipeline | ReadFromSpannerChangeStream(…).with_lineage(WriteToJsonLines("/data/lineage", table="partitions"))

Each event is emitted when its step is claimed, so a runner with exactly-once outputs has each one exactly once, over
restarts too. An event that is missing at the end of the log is not yet committed.

The transform gets dictionaries with JSON values, one for each event:

- `time`: when it takes effect, RFC 3339 with nanoseconds; its event time.
- `event`: ``announced``: the partition begins at `time`. ``closed``: it has ended. ``moved_in``: it got keys of its
  parents. ``ended``: it was read to the end of the read.
- `stream`: the change stream.
- `partition`: a partition token, or a key range.
- `parents`: the partitions that must be read up to `time` first; empty if the partition was live at the start.
- `announced_by`: the partition whose record announced it. Empty for those that were live at the start, and for other
  events.

A partition with several parents is announced by each of them, so it has several events, which differ in `announced_by`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from penstock.timestamps import format_timestamp

ANNOUNCED, CLOSED, MOVED_IN, ENDED = "announced", "closed", "moved_in", "ended"

LINEAGE_EVENTS = "lineage"
"""The tag of the output."""


class LineageEvent(NamedTuple):
    """One event; see the list above. `time` is in nanoseconds since 1970."""

    time: int
    event: str
    partition: str
    parents: tuple[str, ...] = ()
    announced_by: str = ""

    def document(self, stream: str) -> dict[str, Any]:
        """Return the dictionary that is emitted."""
        return {
            "time": format_timestamp(self.time),
            "event": self.event,
            "stream": stream,
            "partition": self.partition,
            "parents": list(self.parents),
            "announced_by": self.announced_by,
        }
