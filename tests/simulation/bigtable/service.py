"""A simulated change stream service, generated from a seed, without gRPC. It follows the documentation.

Rows are written and the layout of partitions changes while it is read. A stream of a partition that is no
longer in the layout is closed, at once or when its backlog has been sent, with tokens for its own keys and the
partitions of the layout of *now*; so parents of a merge meet different layouts. The seed also chooses streams
that are interrupted or end with OK without a close, tokens that name the new partition instead of their own
keys, watermarks that lag.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.io.bigtable.frontier import Position
from penstock.io.bigtable.keys import KeyRange
from penstock.io.bigtable.record import (
    ChangeRecord,
    ChangeStreamMutation,
    CloseStream,
    Continuation,
    DeleteFamily,
    Entry,
    Heartbeat,
    MutationType,
)

MILLI = 1_000_000
"""The simulated clock ticks in milliseconds, as Beam watermarks do, so that no order is lost by rounding."""
OUT_OF_RANGE = 11
KEYS = [bytes([letter]) for letter in b"abcdefghijklmnop"]
Spot = tuple[bytes, bytes, int]
"""Keys from, to, and how many changes of the log have been seen there: what a token is made of."""


class BrokenOffError(Exception):
    """The stream was interrupted for an unknown reason."""


class RefusedError(AssertionError):
    """The reader sent a request that the service must refuse."""


@dataclass
class Change:
    number: int
    row_key: bytes
    at: int


@dataclass
class Service:
    """One history. `advance` generates further events; `read` is one ReadChangeStream call."""

    seed: int
    events: int = 50
    churn: float = 0.4
    rng: random.Random = field(init=False)
    log: list[Change] = field(init=False, default_factory=list)
    now: int = field(init=False, default=MILLI)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.cuts = sorted(self.rng.sample(KEYS[1:], 3))
        self.wide = self.rng.random() < 0.3
        self.lag = self.rng.choice((0, 0, 3, 20)) * MILLI
        self._closing_early = self.rng.random() < 0.7

    @property
    def over(self) -> bool:
        return self.events == 0

    @property
    def layout(self) -> list[KeyRange]:
        return [KeyRange(*ends) for ends in zip([b"", *self.cuts], [*self.cuts, b""], strict=True)]

    def advance(self, events: int) -> None:
        """Generate this number of events."""
        for _ in range(min(events, self.events)):
            self.events -= 1
            self.now += self.rng.choice((0, 1, 1, 2, 5)) * MILLI
            if self.rng.random() < self.churn:
                self._reshape()
            else:
                self.log.append(Change(len(self.log), self.rng.choice(KEYS), self.now))
            if self.over:
                self.now += 1000 * MILLI  # nothing happens any more

    def _reshape(self) -> None:
        """Split or merge partitions or move borders, one or several at once."""
        for _ in range(self.rng.choice((1, 1, 2, 4))):
            kind = self.rng.choice(("split", "merge", "merge", "move"))
            if kind in ("merge", "move") and self.cuts:
                self.cuts.remove(self.rng.choice(self.cuts))
            if kind in ("split", "move"):
                self.cuts = sorted({*self.cuts, self.rng.choice(KEYS[1:])})

    def read(self, position: Position, end: int | None) -> Iterator[ChangeRecord]:
        """Yield the messages of the stream. It may be interrupted at any message; events happen in between."""
        spots = self._opened(position)
        while True:
            self.advance(self.rng.choice((0, 0, 0, 1, 3)))
            if self.rng.random() < 0.05:
                raise BrokenOffError
            if self.rng.random() < 0.05:
                return  # status OK without a close: a normal end
            change = self._next(spots, end)
            gone = position.partition not in self.layout
            if gone and (change is None or self._closing_early) and not self._reached(change, end):
                yield self._close(position.partition, spots)
                return
            if change is not None:
                spots = _seen(spots, change)
                yield self._mutation(change, self._token(spots), self._low(spots, end))
            elif self._reached(None, end):
                yield CloseStream(0, "", ())
                return
            else:
                yield Heartbeat(position.partition, self._token(spots), self._low(spots, end))

    def _reached(self, change: Change | None, end: int | None) -> bool:
        return change is None and end is not None and self.now > end

    def _opened(self, position: Position) -> list[Spot]:
        """Check the request and return where it starts."""
        partition = position.partition
        if not position.tokens:
            if position.start is None or position.start > self.now:
                raise RefusedError("a start in the future, or none")
            first = next((c.number for c in self.log if c.at >= (position.start or 0)), len(self.log))
            return [(partition.start, partition.end, first)]
        spots: list[Spot] = []
        at: bytes | None = partition.start
        for part, token in sorted(position.tokens):
            if part.start != at:
                raise RefusedError("the tokens do not cover the partition")
            at = part.end
            known = [(start.encode(), end.encode(), seen) for start, end, seen in json.loads(token)]
            spots += _within(known, part)
        if at != partition.end:
            raise RefusedError("the tokens do not cover the partition")
        return spots

    def _next(self, spots: list[Spot], end: int | None) -> Change | None:
        """Return the next change after the positions of the stream."""
        unseen = [self._first_unseen(spot, end) for spot in spots]
        return min((c for c in unseen if c is not None), key=lambda c: c.number, default=None)

    def _first_unseen(self, spot: Spot, end: int | None) -> Change | None:
        start, stop, seen = spot
        held = KeyRange(start, stop)
        for change in self.log[seen:]:
            if held.holds(change.row_key) and (end is None or change.at <= end):
                return change
        return None

    def _low(self, spots: list[Spot], end: int | None) -> int:
        change = self._next(spots, end)
        return max(0, (self.now if change is None else min(change.at, self.now)) - self.lag)

    def _close(self, partition: KeyRange, spots: list[Spot]) -> CloseStream:
        """Return a close with the current partitions. After a simple split they may be omitted."""
        continuations = []
        for target in self.layout:
            mine = target.intersection(partition)
            if mine is not None:
                token = self._token(_within(spots, mine))
                continuations.append(Continuation(target if self.wide else mine, token, target))
        self.rng.shuffle(continuations)
        return CloseStream(OUT_OF_RANGE, "the layout has changed", tuple(continuations))

    @staticmethod
    def _token(spots: list[Spot]) -> str:
        return json.dumps([(start.decode(), end.decode(), seen) for start, end, seen in spots])

    def _mutation(self, change: Change, token: str, low: int) -> ChangeStreamMutation:
        entries = self.entries(change)
        return ChangeStreamMutation(
            change.row_key, MutationType.USER, "c", change.at, change.number, token, low, entries
        )

    def entries(self, change: Change) -> tuple[Entry, ...]:
        """Return what a change does to its row."""
        return (DeleteFamily(str(change.number)),)


def _within(spots: list[Spot], part: KeyRange) -> list[Spot]:
    cut = ((KeyRange(start, end).intersection(part), seen) for start, end, seen in spots)
    return [(common.start, common.end, seen) for common, seen in cut if common is not None]


def _seen(spots: list[Spot], change: Change) -> list[Spot]:
    return [
        (start, end, change.number + 1 if KeyRange(start, end).holds(change.row_key) else seen)
        for start, end, seen in spots
    ]
