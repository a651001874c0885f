"""A closed part of a change stream's time, cut in parts that are read apart from each other. Pure.

    live = live_partitions(ROOT, start, records)           # the answer to a NULL token at `start`
    for part in slice_parts(live, start, end, 8):          # anywhere, in any order, any number of times
        frontier = part.frontier()                         # read it with the steps of `part.owned`

A reader that keeps no state between two slices, and whose parts cannot tell each other what they found, reads each
change of a slice in exactly one part:

1. The partitions that live at the start of the slice have every key once. Each of them belongs to one part.
2. A partition that begins within the slice belongs to the part that has its parent. A merged one has several parents:
   it belongs to the part of the smallest of them, by name. Each parent announces it with the names of all, so the parts
   agree without a word. By induction over the starts, every partition belongs to one part.
3. A slice begins at `start` (inclusive) and ends at `end` (exclusive), which is the start of the next one. A partition
   that begins at `end` belongs to the next slice only.

A part is a `Frontier` with an end, so the rules for parents, positions and repeated announcements are the frontier's.
A merged child whose other parents belong to other parts is an orphan there (rule 3 of `frontier`), and opens when no
partition of the part is below its start.

Partitions of a **mutable** stream are announced by partitions that the service does not promise to name, so rule 2
has nothing to go by: such a slice is one part.

Order: within a part as in a frontier. Between parts there is none: a key that moved in a merge may come out of order,
and its changes sort by their versions.

Source of the rules: Spanner documentation, "Change stream partitions, records, and queries".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from penstock.io.spanner.frontier import Announced, Frontier, Step
from penstock.io.spanner.position import Position
from penstock.io.spanner.record import ChangeRecord, ChildPartitionsRecord
from penstock.io.spanner.steps import to_steps


@dataclass(frozen=True, slots=True)
class SlicePart:
    """The changes from `start` (inclusive) to `end` (exclusive) of some partitions and of those that continue them.

    Nanoseconds. `partitions` are the keys of partitions that live at `start`.
    """

    partitions: tuple[str, ...]
    start: int
    end: int
    mutable: bool = False

    def frontier(self) -> Frontier:
        """Return the work of the part. Its end is inclusive, as in every frontier."""
        opened = {key: Position(self.start) for key in self.partitions}
        return Frontier(opened, {}, self.end - 1, mutable=self.mutable)

    def owned(self, step: Step) -> Step:
        """Return the step without the announced partitions that belong to another part."""
        if self.mutable or not isinstance(step, Announced):
            return step
        record = step.record
        if not isinstance(record, ChildPartitionsRecord):
            return step
        kept = tuple(
            child
            for child in record.child_partitions
            if min(child.parent_partition_tokens, default=step.token) == step.token
        )
        return replace(step, record=replace(record, child_partitions=kept))


def live_partitions(root: str, start: int, records: Iterable[ChangeRecord]) -> list[str]:
    """Return the keys of the partitions in the answer to a NULL token at `start`, sorted.

    `root`: the key of the root partition whose query it was.
    """
    steps, _ = to_steps(root, Position(start), records)
    found: set[str] = set()
    for _, step in steps:
        if isinstance(step, Announced):
            if isinstance(step.record, ChildPartitionsRecord):
                found |= {child.token for child in step.record.child_partitions}
            else:
                found |= set(step.record.partition_tokens)
    return sorted(found)


def slice_parts(
    live: Sequence[str], start: int, end: int, most: int, *, mutable: bool = False
) -> list[SlicePart]:
    """Return at most `most` parts that have the slice from `start` (inclusive) to `end` (exclusive).

    `live`: the partitions that live at `start`. Equal arguments give equal parts.
    """
    if start >= end or not live:
        return []
    count = 1 if mutable else min(most, len(live))
    return [SlicePart(tuple(live[number::count]), start, end, mutable) for number in range(count)]
