"""A simulated change stream, generated from a seed, and a reader that drives the real frontier, tracker and coders.

The stream is written from the service's documentation, not from the reader: partitions own keys, and split,
merge and move; a split announces its children in one record or in two, a merged child is announced by every
parent; a query returns what was committed between its ends, both inclusive, and a heartbeat only when it has
nothing else; a token that has ended earlier is refused. A *scattered* stream behaves like the emulator: all
partitions are replaced at one moment, and one of them gets every change until the next.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from penstock.io.change_streams.tracker import Poll
from penstock.io.change_streams.watermark import beam_watermark
from penstock.io.spanner.frontier import Frontier
from penstock.io.spanner.query import ROOT
from penstock.io.spanner.read import ReadSpannerFn
from penstock.io.spanner.record import (
    ChangeRecord,
    ChildPartition,
    ChildPartitionsRecord,
    DataChangeRecord,
    HeartbeatRecord,
    Mod,
    Mods,
)
from penstock.io.spanner.steps import PendingStep, announces_end, closes, last_step, to_steps
from penstock.io.spanner.tracker import FrontierCoder, SpannerTracker
from tests.simulation.spanner.mutable import MutableStream

MILLI = 1_000_000
"""The simulated clock ticks in milliseconds, as Beam watermarks do, so that no order is lost by rounding."""


@dataclass
class Partition:
    token: str
    start: int
    keys: list[int]
    parents: frozenset[str] = frozenset()
    end: int | None = None
    children: list[Partition] = field(default_factory=list)
    records: list[DataChangeRecord] = field(default_factory=list)


def record(timestamp: int, transaction: str, sequence: int, keys: list[int]) -> DataChangeRecord:
    mods = Mods.of(Mod(f'{{"K":"{key}"}}', f'{{"T":"{timestamp}"}}', "{}") for key in keys)
    return DataChangeRecord(
        timestamp,
        f"{sequence:08d}",
        transaction,
        True,
        "T",
        (),
        mods,
        "UPDATE",
        "NEW_VALUES",
        1,
        1,
        "",
        False,
    )


class Stream:
    """One history: its partitions, and the queries that a reader may ask."""

    def __init__(self, seed: int, events: int = 60, *, scattered: bool = False) -> None:
        self._rng = rng = random.Random(seed)
        self._scattered = scattered
        self.snapshot = -1
        self._names = iter(range(10_000))
        keys = list(range(8))
        self._live = [self._open(0, part, frozenset()) for part in (keys[:3], keys[3:6], keys[6:])]
        self._all = {partition.token: partition for partition in self._live}
        self._holder = self._live[0]
        now = 0
        for number in range(events):
            now += rng.choice((0, 0, 1, 1, 2, 5)) * MILLI
            if rng.random() < 0.35:
                now += MILLI
                self._reshape(now)
            else:
                self._commit(now, f"t{number}")
        self.horizon = now + MILLI

    start, tick = 0, MILLI

    @property
    def tokens(self) -> list[str]:
        """All tokens, in a fixed order."""
        return [f"p{number}" for number in range(60)]

    @property
    def records(self) -> list[DataChangeRecord]:
        """The records that a reader must emit: those after `snapshot`."""
        found = (record for partition in self._all.values() for record in partition.records)
        return [record for record in found if record.commit_timestamp > self.snapshot]

    def ask(self, token: str, start: int, end: int) -> list[ChangeRecord]:
        """Return the service's answer; it refuses a start after the partition's end."""
        if token == ROOT:
            live = [p for p in self._all.values() if p.start <= start and (p.end is None or start < p.end)]
            return [self._child_record(start, [child], frozenset()) for child in live]
        partition = self._all[token]
        assert start >= partition.start, "asked before the partition's start"
        assert partition.end is None or start <= partition.end, "asked after the partition's end"
        answer: list[ChangeRecord] = [r for r in partition.records if start <= r.commit_timestamp <= end]
        if partition.end is not None and end >= partition.end:
            announced = [
                self._child_record(partition.end, [child], child.parents) for child in partition.children
            ]
            if len(partition.children) == 2 and self._rng.random() < 0.5:  # a split in one record, or in two
                announced = [self._child_record(partition.end, partition.children, frozenset((token,)))]
            return answer + announced
        return answer or [HeartbeatRecord(end)]

    def _child_record(
        self, start: int, children: list[Partition], parents: frozenset[str]
    ) -> ChildPartitionsRecord:
        return ChildPartitionsRecord(
            start, "00000000", tuple(ChildPartition(child.token, parents) for child in children)
        )

    def _open(self, start: int, keys: list[int], parents: frozenset[str]) -> Partition:
        return Partition(f"p{next(self._names)}", start, keys, parents)

    def _commit(self, now: int, transaction: str) -> None:
        """Write one to three records in each partition touched; sequence numbers run over all of them."""
        sequence = 0
        touched = self._rng.sample(self._live, self._rng.randint(1, min(2, len(self._live))))
        for partition in [self._holder] if self._scattered else touched:
            owned = list(range(8)) if self._scattered else partition.keys
            for _ in range(self._rng.choice((1, 1, 2, 3)) if owned else 0):
                keys = self._rng.sample(owned, 1)
                partition.records.append(record(now, transaction, sequence, keys))
                sequence += 1

    def _reshape(self, now: int) -> None:
        if self._scattered:
            for partition in list(self._live):
                if partition.start < now:
                    self._reshape_some(now, [other for other in self._live if other.start < now])
            self._holder = self._rng.choice(self._live)
        else:
            self._reshape_some(now, self._live)

    def _reshape_some(self, now: int, live: list[Partition]) -> None:
        """Split, merge or move one or more of the partitions in `live`, if there are any."""
        if not live:
            return
        rng = self._rng
        kind = rng.choice(("split", "merge", "merge", "move"))
        if kind == "merge" and len(live) > 1:
            parents = rng.sample(live, min(len(live), rng.choice((2, 2, 3))))
            self._replace(parents, [[key for parent in parents for key in parent.keys]], now)
        elif kind == "split":
            parent = rng.choice(live)
            middle = len(parent.keys) // 2
            self._replace([parent], [parent.keys[:middle], parent.keys[middle:]], now)
        else:
            parent = rng.choice(live)
            self._replace([parent], [parent.keys], now)

    def _replace(self, parents: list[Partition], shares: list[list[int]], now: int) -> None:
        names = frozenset(parent.token for parent in parents)
        children = [self._open(now, keys, names) for keys in shares]
        for parent in parents:
            parent.end, parent.children = now, children
            self._live.remove(parent)
        for child in children:
            self._live.append(child)
            self._all[child.token] = child


class OrderBrokenError(AssertionError):
    """A promise of the reader does not hold on a history."""


class Reading:
    """Reads one history in epochs, dealt over parts, split and crashed at steps that the seed chooses."""

    def __init__(
        self,
        seed: int,
        *,
        crash_at: int | None = None,
        scattered: bool = False,
        globally_ordered: bool = False,
        mutable: bool = False,
    ) -> None:
        self.rng = random.Random(seed * 7919 + 1)
        self.stream: Any = MutableStream(seed) if mutable else Stream(seed, scattered=scattered)
        self.fn = ReadSpannerFn(None)  # type: ignore[arg-type] - only `rebalance` is used
        start = Frontier.starting_at(
            self.stream.start, self.stream.horizon, globally_ordered=globally_ordered, mutable=mutable
        )
        self.residuals = [(start, beam_watermark(start.watermark))]
        self.committed: list[DataChangeRecord] = []
        self.laggards = {token for token in self.stream.tokens if self.rng.random() < 0.3}
        self.crash_at = crash_at
        self.steps = 0
        self.crashes = 0

    def run(self) -> None:
        """Read to the end, checking every promise at every commit. Raises OrderBrokenError."""
        for _ in range(5000):
            if not self.residuals:
                return self._check_all()
            self._epoch()
        raise OrderBrokenError("the reader makes no progress")

    def _epoch(self) -> None:
        before = min(state for _, state in self.residuals)
        dealt = self.fn.rebalance(None, self.residuals, self.rng.randint(1, 4))  # type: ignore[arg-type]
        if not dealt:
            self.residuals = []
            return
        if min(state for _, state in dealt) < before:
            raise OrderBrokenError("dealing moved the watermark back")
        trackers = [self.tracker(self._stored(frontier)) for frontier, _ in dealt]
        outputs, crashed = self._read(trackers)
        if crashed or self.rng.random() < 0.15:
            self.crashes += 1
            return
        assert all(tracker.try_claim(Poll()) for tracker in trackers)
        splits = [
            self._split(tracker, steps, outputs)
            for tracker, steps in zip(trackers, self.windows, strict=True)
        ]
        residuals = [self._stored(split[1]) for split in splits if split]
        self._commit(
            before, outputs, [(frontier, beam_watermark(frontier.watermark)) for frontier in residuals]
        )

    def tracker(self, frontier: Frontier) -> Any:
        return SpannerTracker(frontier)

    def _stored(self, frontier: Frontier) -> Frontier:
        return FrontierCoder().decode(FrontierCoder().encode(frontier))

    def _split(self, tracker: Any, steps: Iterator[PendingStep], outputs: list[DataChangeRecord]) -> Any:
        """Split, and claim further steps while the tracker refuses to be split."""
        while (split := tracker.try_split(0)) is None and not tracker.current_restriction().done:
            records, step = next(steps)
            assert tracker.try_claim(step)
            outputs += records
        return split

    def _read(self, trackers: list[SpannerTracker]) -> tuple[list[DataChangeRecord], bool]:
        """Claim some steps on all parts, interleaved. Return the outputs, and whether the epoch crashed."""
        outputs: list[DataChangeRecord] = []
        windows = self.windows = [self._steps(tracker) for tracker in trackers]
        for _ in range(self.rng.randint(1, 40)):
            part = self.rng.randrange(len(trackers))
            taken = next(windows[part], None)
            if taken is None:
                continue
            if self.steps == self.crash_at:
                self.crash_at = None
                return outputs, True
            self.steps += 1
            records, step = taken
            assert trackers[part].try_claim(step)
            outputs += records
        return outputs, False

    def _steps(self, tracker: SpannerTracker) -> Iterator[PendingStep]:
        """Yield the steps of one window after another, each of a partition that the seed picks."""
        while True:
            frontier = tracker.current_restriction()
            if not frontier.open:
                return
            token = self._pick(sorted(frontier.open))
            position = frontier.open[token]
            end = min(position.timestamp + self.rng.randint(0, 12) * self.stream.tick, self.stream.horizon)
            answer = self.stream.ask(token, position.timestamp, end)
            steps, position = to_steps(token, position, answer, max_in_claim=1)
            yield from steps
            if steps and closes(steps[-1][1]):
                continue
            announced = any(announces_end(step) for _, step in steps)
            last = last_step(token, position, end, self.stream.horizon, announced=announced)
            if last is not None:
                yield [], last

    def _pick(self, tokens: list[str]) -> str:
        quick = [token for token in tokens if token not in self.laggards]
        return self.rng.choice(quick if quick and self.rng.random() < 0.9 else tokens)

    def _commit(self, before: object, outputs: list[DataChangeRecord], residuals: list[tuple]) -> None:
        if any(beam_watermark(output.commit_timestamp) < before for output in outputs):
            raise OrderBrokenError("a record came after the watermark had passed it")
        self.committed += outputs
        self.residuals = residuals
        after = min((state for _, state in residuals), default=beam_watermark(None))
        if after < before:
            raise OrderBrokenError("the watermark went back")
        seen = {_identity(output) for output in self.committed}
        for expected in self.stream.records:
            if beam_watermark(expected.commit_timestamp) < after and _identity(expected) not in seen:
                raise OrderBrokenError("the watermark passed an unread record")

    def _check_all(self) -> None:
        expected = sorted(map(_identity, self.stream.records))
        if sorted(map(_identity, self.committed)) != expected:
            raise OrderBrokenError("records were lost or read twice")
        last: dict[str, tuple[int, str]] = {}
        for output in self.committed:
            for mod in output.mods:
                if last.get(mod.keys, (-1, "")) >= (
                    output.commit_timestamp,
                    output.server_transaction_id,
                ) and (last[mod.keys][0] > output.commit_timestamp):
                    raise OrderBrokenError(f"changes of {mod.keys} came out of commit order")
                last[mod.keys] = (output.commit_timestamp, output.server_transaction_id)


def _identity(output: DataChangeRecord) -> tuple[int, str, str]:
    return output.commit_timestamp, output.server_transaction_id, output.record_sequence


@pytest.fixture
def reading() -> type[Reading]:
    return Reading


@pytest.fixture
def broken() -> type[OrderBrokenError]:
    return OrderBrokenError
