"""Partition lineage as one value: what is read, what may be read now, and what must wait for whom.

    frontier = Frontier.starting_at(start)
    frontier = frontier.apply(Advanced(token, position))        # a data record or heartbeat was claimed
    frontier = frontier.apply(Announced(token, record))         # a child partitions record
    frontier = frontier.apply(Finished(token))                  # … and the query ended after it
    frontier.watermark                                          # nothing below is unread

Pure: no Beam, no client, no clock. Timestamps are nanoseconds. The rules:

1. **A child opens when all its parents are known to be finished.** Each parent announces the child before it
   finishes, so a waiting child is where knowledge about its parents is written down: finishing a partition
   strikes it off every waiting entry. A parent that nobody has announced yet (its own parent lags) is simply
   not struck off. No memory of finished tokens is needed beside this.
2. **A dealt part knows only what it has seen.** The same child may wait in two parts, each with another
   parent struck off; `join` keeps the parents that no part has struck off. A child can never open in two
   parts: at the time of the deal it waits in at most one, and for another part to open it all parents would
   have to finish there, but each finishes in one part only.
3. **Nothing waits for ever.** In a whole frontier, a child waits in vain when its missing parents are unknown
   and everything else stands above its start: whoever could still announce them has passed. `settled` opens
   it; nothing below its start is unread, so the order holds. A service that keeps its documentation never
   makes this happen.

`globally_ordered` frontiers add a fourth rule, for the emulator alone: **a child opens only when nothing anywhere is
unread below its start**. The emulator replaces all partitions at one moment and sends every change to one of
them, which need not descend from the one before (measured: 157 to 320 of some 1,200 changes per run). The
service ties a key to its lineage; there the rule would let one slow partition hold up all others.

Growth: one entry per open and per waiting partition, and one run of sequence numbers per transaction at the
timestamp where a partition stands. Nothing grows with time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from penstock.errors import LineageError
from penstock.io.spanner.query import ROOT
from penstock.io.spanner.record import ChildPartitionsRecord, DataChangeRecord
from penstock.timestamps import format_timestamp

Runs: TypeAlias = tuple[tuple[int, int], ...]
"""Ascending, disjoint, not adjacent (first, last) runs of numbers, both inclusive."""


class Position(NamedTuple):
    """Where one partition stands: everything below `timestamp` is read, and at it what `seen` names.

    A query resumes *at* `timestamp` (inclusive) and skips what was seen: per transaction, the sequence
    numbers of its records. So a checkpoint may fall between two records of one timestamp. One is made for each
    record that is read, and a named tuple is made three times faster than a frozen dataclass.
    """

    timestamp: int
    seen: Mapping[str, Runs] = MappingProxyType({})

    def after(self, record: DataChangeRecord) -> Position | None:
        """Return the position after `record`, or None if it has been seen already.

        Raises:
            LineageError: the record lies below the position; partitions are ordered by commit timestamp.
        """
        timestamp, transaction = record.commit_timestamp, record.server_transaction_id
        sequence = _sequence(record)
        if timestamp > self.timestamp:
            return Position(timestamp, {transaction: ((sequence, sequence),)})
        if timestamp < self.timestamp:
            raise LineageError(
                f"a data change record committed at {format_timestamp(timestamp)} arrived after "
                f"{format_timestamp(self.timestamp)} in its partition"
            )
        runs = self.seen.get(transaction, ())
        if _holds(runs, sequence):
            return None
        return Position(timestamp, {**self.seen, transaction: _with(runs, sequence)})

    def reached(self, timestamp: int) -> Position:
        """Return the position after a heartbeat or child partitions record at `timestamp`."""
        return Position(timestamp) if timestamp > self.timestamp else self


@dataclass(frozen=True, slots=True)
class Waiting:
    """A partition that may not be read yet: it starts at `start` (inclusive) when `unfinished` is empty."""

    start: int
    unfinished: frozenset[str]


class Advanced(NamedTuple):
    """A data record or heartbeat of `token` was claimed; its partition now stands at `position`."""

    token: str
    position: Position


@dataclass(frozen=True, slots=True)
class Announced:
    """A child partitions record of `token` was claimed."""

    token: str
    record: ChildPartitionsRecord


@dataclass(frozen=True, slots=True)
class Finished:
    """A query of `token` ended after at least one child partitions record: there are no more."""

    token: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A query of `token` that reached to the frontier's end has ended: nothing of it is left to read."""

    token: str


Step: TypeAlias = Advanced | Announced | Finished | Ended


@dataclass(frozen=True, slots=True)
class Frontier:
    """All that is left to read of a change stream, up to and including `end` (None: no end).

    `open` maps the tokens that may be read now to their positions, `waiting` those that may not.
    `dealt` says that this is one part of several and knows nothing of the others, `globally_ordered` that keys wander
    between lineages (the emulator).
    """

    open: Mapping[str, Position]
    waiting: Mapping[str, Waiting]
    end: int | None = None
    dealt: bool = False
    globally_ordered: bool = False

    @classmethod
    def starting_at(cls, start: int, end: int | None = None, *, globally_ordered: bool = False) -> Frontier:
        """Return the frontier of a stream read from `start`, inclusive: the root partition alone."""
        return cls({ROOT: Position(start)}, {}, end, globally_ordered=globally_ordered)

    @property
    def done(self) -> bool:
        """Nothing is left to read, now or later."""
        return not self.open and not self.waiting

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
        """What is left, in words."""
        return f"{len(self.open)} partitions open and {len(self.waiting)} waiting"

    @property
    def watermark(self) -> int | None:
        """No unread change has a commit timestamp below this; None when nothing is left to read.

        Held by the slowest open partition and by the start of each waiting one; released as they advance,
        idle ones too, by their heartbeats.
        """
        return min(
            (
                *(position.timestamp for position in self.open.values()),
                *(child.start for child in self.waiting.values()),
            ),
            default=None,
        )

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
            case Announced(token, record):
                return self._announced(token, record)
            case Finished(token) | Ended(token):
                return self._closed(token)

    def exhausted(self) -> Frontier:
        """Return the same reading with nothing left."""
        return replace(self, open={}, waiting={})

    def advanced(self, positions: Mapping[str, Position]) -> Frontier:
        """Return the frontier with several open partitions at new positions: many steps for one copy."""
        return replace(self, open={**self.open, **positions}).settled() if positions else self

    def settled(self) -> Frontier:
        """Open each child that has no parent left or, in a whole frontier, nothing unread below its start."""
        if not self.waiting:
            return self
        ready = {token: child.start for token, child in self.waiting.items() if not child.unfinished}
        if not ready and not self.dealt:
            ready = self._orphans()
        if ready and self.globally_ordered:
            lowest = self.watermark
            ready = {token: start for token, start in ready.items() if not self.dealt and start == lowest}
        if not ready:
            return self
        opened = {token: Position(start) for token, start in ready.items()}
        waiting = {token: child for token, child in self.waiting.items() if token not in ready}
        return replace(self, open={**self.open, **opened}, waiting=waiting)

    def deal(self, n: int) -> list[Frontier]:
        """Return at most `n` frontiers, none empty, that can be read side by side; `join` undoes it exactly.

        A waiting child goes where its open parents go, so that it can open there; what hangs together by
        common children is not torn apart. The lowest positions are spread over different parts.

        Raises:
            ValueError: this is a dealt part itself; `join` first.
        """
        if self.dealt:
            raise ValueError("a dealt part cannot be dealt again: join all parts first")
        families = sorted(self._families(), key=lambda family: (self._lowest(family), family))
        parts: list[list[str]] = [[] for _ in range(min(n, len(families)))]
        for family in families:
            min(parts, key=len).extend(family)
        return [self._part(tokens, dealt=len(parts) > 1) for tokens in parts]

    @staticmethod
    def join(parts: Sequence[Frontier]) -> Frontier:
        """Return one whole frontier from all parts of a deal, however far each has been read meanwhile.

        Parts that are done may be left out: what a finished partition was waited for is written in a
        waiting child of the same part, so such a part is not done.

        Raises:
            LineageError: two parts hold the same partition.
            ValueError: no parts, or parts with different ends.
        """
        if len({(part.end, part.globally_ordered) for part in parts}) != 1:
            raise ValueError("join needs the parts of one frontier: at least one, all with the same end")
        opened: dict[str, Position] = {}
        waiting: dict[str, Waiting] = {}
        for part in parts:
            _refuse_shared(opened.keys() & part.open.keys())
            opened.update(part.open)
            for token, child in part.waiting.items():
                waiting[token] = _merged(waiting.get(token), child)
        _refuse_shared(opened.keys() & waiting.keys())
        return Frontier(opened, waiting, parts[0].end, globally_ordered=parts[0].globally_ordered).settled()

    def _announced(self, token: str, record: ChildPartitionsRecord) -> Frontier:
        waiting = dict(self.waiting)
        for child in record.child_partitions:
            parents = child.parent_partition_tokens or frozenset((token,))
            if token not in parents:
                raise LineageError(
                    f"{abbreviate(token)} announces {abbreviate(child.token)}, which names other parents"
                )
            if self.end is None or record.start_timestamp <= self.end:
                announced = Waiting(record.start_timestamp, parents)
                waiting[child.token] = _merged(waiting.get(child.token), announced)
        position = self.open[token].reached(record.start_timestamp)
        return replace(self, open={**self.open, token: position}, waiting=waiting).settled()

    def _closed(self, token: str) -> Frontier:
        opened = {other: position for other, position in self.open.items() if other != token}
        waiting = {
            child: replace(entry, unfinished=entry.unfinished - {token})
            if token in entry.unfinished
            else entry
            for child, entry in self.waiting.items()
        }
        return replace(self, open=opened, waiting=waiting).settled()

    def _orphans(self) -> dict[str, int]:
        first = min(child.start for child in self.waiting.values())
        if any(position.timestamp <= first for position in self.open.values()):
            return {}
        living = self.open.keys() | self.waiting.keys()
        return {
            token: child.start
            for token, child in self.waiting.items()
            if child.start == first and not child.unfinished & living
        }

    def _families(self) -> list[tuple[str, ...]]:
        """Group the tokens that are connected by "waits for"; a parent that is unknown connects nothing."""
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
        )


def abbreviate(token: str) -> str:
    """Return a short form of a partition token for messages: tokens are opaque, some 170 characters."""
    return f"partition {token[:8]}…{token[-8:]}" if token else "the root partition"


def _merged(known: Waiting | None, again: Waiting) -> Waiting:
    """Combine two entries of one child: a parent that either has struck off is finished."""
    if known is None:
        return again
    return Waiting(min(known.start, again.start), known.unfinished & again.unfinished)


def _refuse_shared(tokens: Iterable[str]) -> None:
    for token in tokens:
        raise LineageError(f"two parts of a frontier hold {abbreviate(token)}")


def _sequence(record: DataChangeRecord) -> int:
    try:
        return int(record.record_sequence)
    except ValueError:
        raise LineageError(
            f"record_sequence {record.record_sequence!r} of the record committed at "
            f"{format_timestamp(record.commit_timestamp)} is not a number"
        ) from None


def _holds(runs: Runs, number: int) -> bool:
    return any(first <= number <= last for first, last in runs)


def _with(runs: Runs, number: int) -> Runs:
    """Return `runs` with `number`, which they do not hold; appending to the last run is the usual case."""
    if runs and runs[-1][1] == number - 1:
        return (*runs[:-1], (runs[-1][0], number))
    joined: list[tuple[int, int]] = []
    for first, last in sorted((*runs, (number, number))):
        if joined and joined[-1][1] == first - 1:
            joined[-1] = (joined[-1][0], last)
        else:
            joined.append((first, last))
    return tuple(joined)
