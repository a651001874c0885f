"""Partition lineage as one value: which partitions may be read now, how far each is, and which wait for others.

    frontier = Frontier.starting_at(start)
    frontier = frontier.apply(Advanced(token, position))        # a data record or heartbeat was claimed
    frontier = frontier.apply(Announced(token, record))         # a child partitions record
    frontier = frontier.apply(Finished(token))                  # … and the query ended after it
    frontier.watermark                                          # no unread change is below

Pure: no Beam, no client, no clock. Timestamps are nanoseconds. The rules:

1. **A child opens when all its parents are known to be finished.** Each parent announces the child before it
   finishes, so the entry of a waiting child lists its unfinished parents: finishing a partition
   removes it from every waiting entry. A parent that was not announced yet, because its own parent lags, is not
   removed. So finished tokens need not be remembered.
2. **A dealt part knows only what it has read.** The same child may wait in two parts, each of which has removed another
   parent; `join` keeps the parents that no part has removed. A child can never open in two parts. At the time of the
   deal it waits in at most one. For another part to open it, all parents would have to finish there, but each finishes
   in one part only.
3. **No child waits without limit.** In a whole frontier, a child is an orphan if its missing parents are unknown and
   every open partition is above its start: no partition can announce the parents any more. `settled` opens it. No
   change below its start is unread, so the order holds. A service that follows its documentation never causes this.

Partitions of a **mutable** frontier (partition_mode MUTABLE_KEY_RANGE) live on while key ranges move between them:

4. **A destination continues after a move when its sources have passed it.** A move-in closes the destination at the
   timestamp of the move. It opens again, at the same position, when each source has a position above that timestamp or
   has ended. A source that is not known yet counts as not passed; rule 3 applies to it. Partitions that wait for each
   other at one timestamp open together, once no other partition has an unread change up to it.
5. **A new partition opens when the partition that announced it has passed its start.** Several partitions may announce
   it: the first one counts. A dealt part cannot know whether another part has it, so it opens none before the `join`.
   Ended partitions are remembered until every position has passed their ends, so that an announcement that comes
   late opens nothing twice.

`globally_ordered` frontiers add a last rule, only for the emulator: **a child opens only when no partition has an
unread change below its start**. The emulator replaces all partitions at one moment and sends every change to one of
them, which need not descend from the one before (measured: 157 to 320 of about 1,200 changes per run). The service
keeps a key within its lineage. There the rule would let one slow partition delay all others.

Growth: one entry per open and per waiting partition, and one run of sequence numbers per transaction at the timestamp
of a partition's position. A mutable frontier has one more entry for each partition that ended above the watermark.
Nothing grows with time.

Partitions are named by their keys; see `query.partition_key`.

Source of the rules: Spanner documentation, "Change stream partitions, records, and queries"; of rules 4 and 5
google/spanner/v1/change_stream.proto, PartitionEventRecord and PartitionStartRecord. Which partition announces a new
one is not documented.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias, TypeVar

from penstock.errors import LineageError
from penstock.io.change_streams.dealing import Family, deal_families
from penstock.io.change_streams.frontier import Slowest
from penstock.io.spanner.position import Position, Runs
from penstock.io.spanner.query import ROOT, is_list_of_placements, token_of
from penstock.io.spanner.record import ChildPartitionsRecord, PartitionStartRecord

_Entry = TypeVar("_Entry")


@dataclass(frozen=True, slots=True)
class Waiting:
    """A partition that may not be read now.

    It is opened at `start` (inclusive) when `unfinished` is empty; in a mutable frontier, when all of them have passed
    `start`. `seen` is not empty if it waits in the middle of its life, after a move-in: it continues after what was
    seen at `start`.
    """

    start: int
    unfinished: frozenset[str]
    seen: Mapping[str, Runs] = field(default_factory=dict)


class Advanced(NamedTuple):
    """A data record or heartbeat of `token` was claimed; its partition is now at `position`."""

    token: str
    position: Position


@dataclass(frozen=True, slots=True)
class Announced:
    """A record of `token` that announces other partitions was claimed. `last`: the partition ends with this record."""

    token: str
    record: ChildPartitionsRecord | PartitionStartRecord
    last: bool = False


@dataclass(frozen=True, slots=True)
class MovedIn:
    """A move-in record of `token` was claimed: it received keys of the partitions `sources` at `position`."""

    token: str
    position: Position
    sources: frozenset[str]


@dataclass(frozen=True, slots=True)
class Finished:
    """The partition has ended.

    A query of `token` ended after at least one child partitions record, or a partition end record was claimed.
    """

    token: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A query of `token` that reached the frontier's end has ended: no work of the partition remains."""

    token: str


Step: TypeAlias = Advanced | Announced | MovedIn | Finished | Ended


@dataclass(frozen=True, slots=True)
class Frontier:
    """The remaining work of a change stream, up to and including `end` (None: without end).

    `open` maps the tokens that may be read now to their positions, `waiting` those that may not.
    `dealt` says that this is one part of several and knows nothing of the others; `globally_ordered` says that keys
    move between lineages (the emulator). `mutable` says that key ranges move between partitions that live on; then
    `finished` maps those ended partitions that are still needed to their ends.
    """

    open: Mapping[str, Position]
    waiting: Mapping[str, Waiting]
    end: int | None = None
    dealt: bool = False
    globally_ordered: bool = False
    mutable: bool = False
    finished: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def starting_at(
        cls,
        start: int,
        end: int | None = None,
        *,
        roots: Iterable[str] = (ROOT,),
        globally_ordered: bool = False,
        mutable: bool = False,
    ) -> Frontier:
        """Return the frontier of a stream read from `start`, inclusive: the root partitions, one for each function."""
        opened = {root: Position(start) for root in roots}
        return cls(opened, {}, end, globally_ordered=globally_ordered, mutable=mutable)

    @property
    def done(self) -> bool:
        """Whether no work remains, now or later."""
        # A dealt part that remembers ended partitions is not done: `join` needs them.
        return not self.open and not self.waiting and not (self.dealt and self.finished)

    @property
    def can_progress(self) -> bool:
        """Whether a partition of this part may be read; waiting ones may need other parts first."""
        return bool(self.open)

    @property
    def readable(self) -> Collection[str]:
        """The partitions that may be read now."""
        return self.open.keys()

    @property
    def summary(self) -> str:
        """The remaining work, in words."""
        return f"{len(self.open)} partitions open and {len(self.waiting)} waiting"

    @property
    def watermark(self) -> int | None:
        """No unread change has a commit timestamp below this; None when no work remains.

        Held by the slowest open partition and by the start of each waiting one; advanced by records and, in idle
        partitions, by heartbeats.
        """
        return min(
            (
                *(position.timestamp for position in self.open.values()),
                *(child.start for child in self.waiting.values()),
            ),
            default=None,
        )

    @property
    def slowest(self) -> Slowest | None:
        """The partition that holds the watermark, an open one if there are several."""
        found = [
            Slowest(abbreviate(key), at.timestamp) for key, at in _lowest(self.open, lambda at: at.timestamp)
        ]
        found += [
            Slowest(abbreviate(key), child.start, tuple(map(abbreviate, sorted(self._missing(child)))))
            for key, child in _lowest(self.waiting, lambda child: child.start)
        ]
        return min(found, key=lambda each: each.timestamp, default=None)

    def apply(self, step: Step) -> Frontier:
        """Return the frontier after one claimed step.

        Raises:
            LineageError: the step's partition is not open, or it announces a child that does not name it.
        """
        if step.token not in self.open:
            raise LineageError(
                f"{type(step).__name__} for a partition that is not open: {abbreviate(step.token)}"
            )
        match step:
            case Advanced(token, position):
                return self.advanced({token: position})
            case Announced(token, record, last):
                announced = self._announced(token, record)
                return announced._closed(token) if last else announced
            case MovedIn(token, position, sources):
                return self._moved_in(token, position, sources)
            case Finished(token) | Ended(token):
                return self._closed(token)

    def exhausted(self) -> Frontier:
        """Return the same frontier without remaining work."""
        return replace(self, open={}, waiting={}, finished={})

    def advanced(self, positions: Mapping[str, Position]) -> Frontier:
        """Return the frontier with several open partitions at new positions: one copy for many steps."""
        return replace(self, open={**self.open, **positions}).settled() if positions else self

    def settled(self) -> Frontier:
        """Open each partition that waits for nothing any more and, in a whole frontier, orphans (rules 3 to 5)."""
        if not self.waiting:  # almost always, and this runs after every claim of lineage
            return self._without_old_ends() if self.finished and not self.dealt else self
        ready = self._ready()
        if not ready:
            return self
        opened = {token: Position(child.start, child.seen) for token, child in ready.items()}
        waiting = {token: child for token, child in self.waiting.items() if token not in ready}
        return replace(self, open={**self.open, **opened}, waiting=waiting)

    def _ready(self) -> dict[str, Waiting]:
        """Return the waiting partitions that may be opened now."""
        ready = {token: child for token, child in self.waiting.items() if not self._missing(child)}
        if self.mutable and self.dealt:
            ready = {token: child for token, child in ready.items() if child.seen}
        # Another part may know the missing parents, so a dealt part must not treat a child as an orphan.
        if not ready and not self.dealt:
            ready = self._orphans()
        if ready and self.globally_ordered:
            # Other parts may have unread changes below the start, so a dealt part opens no child.
            lowest = self.watermark
            # A waiting child holds the watermark at its start, so `start == lowest` says that no partition has an
            # unread change below it.
            ready = {
                token: child for token, child in ready.items() if not self.dealt and child.start == lowest
            }
        return ready

    def deal(self, n: int) -> list[Frontier]:
        """Return at most `n` frontiers, none empty, that can be read in parallel; `join` is the exact inverse.

        A waiting child goes to the same part as its open parents, so that it can open there. Partitions with a common
        child stay together. A partition keeps its part from one deal to the next where possible; see `deal_families`.

        Raises:
            ValueError: this is a dealt part itself; `join` first.
        """
        if self.dealt:
            raise ValueError("a dealt part cannot be dealt again: join all parts first")
        families = [Family(each, each[0].encode(), self._lowest(each)) for each in self._families()]
        parts = deal_families(families, n)
        return [self._part(tokens, dealt=len(parts) > 1) for tokens in parts]

    @staticmethod
    def join(parts: Sequence[Frontier]) -> Frontier:
        """Return one whole frontier from all parts of a deal, however far each has been read.

        Parts without remaining work may be left out. A finished partition with a waiting child is recorded in that
        child, in the same part, so such a part still has work.

        Raises:
            LineageError: two parts hold the same partition.
            ValueError: no parts, or parts with different ends.
        """
        if len({(part.end, part.globally_ordered, part.mutable) for part in parts}) != 1:
            raise ValueError("join needs the parts of one frontier: at least one, all with the same end")
        first = parts[0]
        opened: dict[str, Position] = {}
        waiting: dict[str, Waiting] = {}
        finished: dict[str, int] = {}
        for part in parts:
            _refuse_shared(opened.keys() & part.open.keys())
            opened.update(part.open)
            finished.update(part.finished)
            for token, child in part.waiting.items():
                merge = _continued if first.mutable else _merged
                waiting[token] = merge(waiting.get(token), child)
        if first.mutable:  # a partition that one part has read may have been announced in another one
            known = opened.keys() | finished.keys()
            waiting = {token: child for token, child in waiting.items() if token not in known}
        # A child that waits in one part and is open in another would be read twice.
        _refuse_shared(opened.keys() & waiting.keys())
        whole = Frontier(opened, waiting, first.end, False, first.globally_ordered, first.mutable, finished)
        return whole.settled()

    def _announced(self, token: str, record: ChildPartitionsRecord | PartitionStartRecord) -> Frontier:
        waiting = dict(self.waiting)
        for child, parents in _children(token, record):
            # A child that starts after the end has no change to read.
            if self.end is not None and record.start_timestamp > self.end:
                continue
            if not self.mutable:
                waiting[child] = _merged(waiting.get(child), Waiting(record.start_timestamp, parents))
            elif not self._knows(child):
                waiting[child] = Waiting(record.start_timestamp, parents)
        # The record counts like a heartbeat: the service has sent all changes below its time.
        position = self.open[token].reached(record.start_timestamp)
        return replace(self, open={**self.open, token: position}, waiting=waiting).settled()

    def _moved_in(self, token: str, position: Position, sources: frozenset[str]) -> Frontier:
        """Let a destination wait where the keys came in; it opens again when the sources have passed the move."""
        opened = {other: at for other, at in self.open.items() if other != token}
        held = Waiting(position.timestamp, sources - {token}, position.seen)
        return replace(self, open=opened, waiting={**self.waiting, token: held}).settled()

    def _closed(self, token: str) -> Frontier:
        opened = {other: position for other, position in self.open.items() if other != token}
        waiting = {
            child: replace(entry, unfinished=entry.unfinished - {token})
            if token in entry.unfinished
            else entry
            for child, entry in self.waiting.items()
        }
        closed = replace(self, open=opened, waiting=waiting)
        if self.mutable:
            closed = replace(closed, finished={**self.finished, token: self.open[token].timestamp})
        return closed.settled()

    def _knows(self, token: str) -> bool:
        return token in self.open or token in self.waiting or token in self.finished

    def _missing(self, child: Waiting) -> Collection[str]:
        """Return the partitions for which a waiting partition still waits."""
        if not self.mutable:
            return child.unfinished
        return [token for token in child.unfinished if not self._has_passed(token, child.start)]

    def _has_passed(self, token: str, timestamp: int) -> bool:
        """Whether all records of a partition up to `timestamp` (inclusive) have been read."""
        if token in self.open:
            return self.open[token].timestamp > timestamp
        if token in self.waiting:
            return self.waiting[token].start > timestamp
        return token in self.finished

    def _without_old_ends(self) -> Frontier:
        """Forget the partitions that ended below every position."""
        watermark = self.watermark
        kept = {t: end for t, end in self.finished.items() if watermark is not None and end >= watermark}
        return replace(self, finished=kept) if len(kept) < len(self.finished) else self

    def _orphans(self) -> dict[str, Waiting]:
        # Only children at the lowest start can be orphans: a later one may still be announced by an earlier one.
        first = min(child.start for child in self.waiting.values())
        # A partition at the start, or below it, may still announce a parent.
        if any(position.timestamp <= first for position in self.open.values()):
            return {}
        lowest = {token: child for token, child in self.waiting.items() if child.start == first}
        living = self.open.keys() | self.waiting.keys()
        orphans = {token: child for token, child in lowest.items() if not living & set(self._missing(child))}
        # In a mutable frontier without orphans, the lowest wait for each other: they exchanged keys in one transaction.
        return orphans or (lowest if self.mutable else {})

    def _families(self) -> list[tuple[str, ...]]:
        """Group the tokens that are connected by "waits for". An unknown parent connects nothing."""
        family = {token: {token} for token in (*self.open, *self.waiting)}
        for child, entry in self.waiting.items():
            for parent in entry.unfinished & family.keys():
                united = family[child] | family[parent]
                for token in united:
                    family[token] = united
        return [
            tuple(sorted(tokens)) for tokens in {id(tokens): tokens for tokens in family.values()}.values()
        ]

    def _lowest(self, family: Iterable[str]) -> int:
        return min(self.open[t].timestamp if t in self.open else self.waiting[t].start for t in family)

    def _part(self, tokens: Iterable[str], *, dealt: bool) -> Frontier:
        mine = set(tokens)
        return Frontier(
            {token: position for token, position in self.open.items() if token in mine},
            {token: child for token, child in self.waiting.items() if token in mine},
            self.end,
            dealt,
            self.globally_ordered,
            self.mutable,
            self.finished,
        )


def _lowest(entries: Mapping[str, _Entry], time_of: Callable[[_Entry], int]) -> list[tuple[str, _Entry]]:
    """Return the entry with the lowest time, or nothing."""
    return [min(entries.items(), key=lambda item: time_of(item[1]))] if entries else []


def abbreviate(key: str) -> str:
    """Return a short form of a partition's key for messages: tokens are opaque, about 170 characters."""
    if is_list_of_placements(key):
        return "the list of placements"
    token = token_of(key)
    return f"partition {token[:8]}…{token[-8:]}" if token else "the root partition"


def _children(
    token: str, record: ChildPartitionsRecord | PartitionStartRecord
) -> Iterable[tuple[str, frozenset[str]]]:
    """Yield the partitions that a record of `token` announces, each with those that it waits for.

    Raises:
        LineageError: a child does not name the announcing partition.
    """
    if isinstance(record, PartitionStartRecord):
        for started in record.partition_tokens:
            yield started, frozenset((token,))
        return
    for child in record.child_partitions:
        # Children of the root name no parents; they wait for the root's query to end.
        parents = child.parent_partition_tokens or frozenset((token,))
        if token not in parents:
            raise LineageError(
                f"{abbreviate(token)} announces {abbreviate(child.token)}, which names other parents"
            )
        yield child.token, parents


def _continued(known: Waiting | None, again: Waiting) -> Waiting:
    """Return the entry of the part that has read the partition, or either entry if no part has."""
    return again if known is None or again.seen else known


def _merged(known: Waiting | None, again: Waiting) -> Waiting:
    """Combine two entries of one child: a parent that either entry has removed is finished."""
    if known is None:
        return again
    return Waiting(min(known.start, again.start), known.unfinished & again.unfinished)


def _refuse_shared(tokens: Iterable[str]) -> None:
    for token in tokens:
        raise LineageError(f"two parts of a frontier hold {abbreviate(token)}")
