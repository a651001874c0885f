"""Reads one history with the real frontier, tracker, coders and rebalance: dealt, split, crashed, reopened."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from penstock.io.bigtable.frontier import Frontier, Reopened, Step
from penstock.io.bigtable.keys import EVERYTHING, KeyRange
from penstock.io.bigtable.read import ReadBigtableFn
from penstock.io.bigtable.record import ChangeStreamMutation
from penstock.io.bigtable.reopen import ReopenSchedule
from penstock.io.bigtable.steps import to_step
from penstock.io.bigtable.tracker import BigtableTracker, FrontierCoder
from penstock.io.change_streams.tracker import Poll
from penstock.io.change_streams.watermark import beam_watermark
from tests.simulation.bigtable.service import KEYS, MILLI, BrokenOffError, Service

PendingStep = tuple[Sequence[ChangeStreamMutation], Step]


class BrokenPromiseError(AssertionError):
    """A promise of the reader does not hold on a history."""


class Reading:
    """One history, read in epochs to its end; `run` checks every promise at every commit."""

    def __init__(self, seed: int, *, events: int = 50, crash_at: int | None = None) -> None:
        self.rng = random.Random(seed * 7919 + 1)
        self.service: Any = self._new_service(seed, events)
        self.fn = ReadBigtableFn(None)  # type: ignore[arg-type] - only `rebalance` is used
        self.row_range = self._row_range()
        end = self._end()
        partitions = self.service.layout
        self.service.advance(self.rng.choice((0, 5)))  # between the listing and the first read
        start = self._start(Frontier.starting_at(MILLI, partitions, self.row_range, end))
        self.end = end
        self.residuals = [(start, beam_watermark(start.watermark))]
        self.committed: list[ChangeStreamMutation] = []
        self.laggards = [key for key in KEYS if self.rng.random() < 0.2]
        self.crash_at = crash_at
        self.steps = self.crashes = self.reopened = self.epochs = 0
        self._seconds = 0.0
        self._reopen_schedule = ReopenSchedule(0.05, lambda: self._seconds)

    def run(self) -> None:
        """Read to the end. Raises BrokenPromiseError."""
        for _ in range(3000):
            self._epoch()
            if not self.residuals or (self.end is None and self._all_read()):
                return self._check_all()
        raise BrokenPromiseError("the reader makes no progress")

    def _new_service(self, seed: int, events: int) -> Service:
        return Service(seed, events)

    def _end(self) -> int | None:
        return self.rng.choice((None, 30 * MILLI, 100 * MILLI))

    def _start(self, stream: Frontier) -> Any:
        return stream

    def _tracker(self, frontier: Any) -> Any:
        return BigtableTracker(frontier)

    def _stored(self, frontier: Any) -> Any:
        return FrontierCoder().decode(FrontierCoder().encode(frontier))

    def _stream_of(self, tracker: Any) -> Frontier:
        return tracker.current_restriction()

    def _row_range(self) -> KeyRange:
        if self.rng.random() < 0.6:
            return EVERYTHING
        first, last = sorted(self.rng.sample([b"", *KEYS], 2))
        return KeyRange(first, last if self.rng.random() < 0.8 else b"")

    def _epoch(self) -> None:
        self.epochs += 1
        before = min(state for _, state in self.residuals)
        dealt = self.fn.rebalance(None, self.residuals, self.rng.randint(1, 4))  # type: ignore[arg-type]
        if not dealt:
            self.residuals = []
            return
        if min(state for _, state in dealt) < before:
            raise BrokenPromiseError("dealing moved the watermark back")
        trackers = [self._tracker(self._stored(frontier)) for frontier, _ in dealt]
        outputs, crashed = self._read(trackers)
        if crashed or self.rng.random() < 0.15:
            self.crashes += 1
            return
        assert all(tracker.try_claim(Poll()) for tracker in trackers)
        splits = [tracker.try_split(0) for tracker in trackers]
        residuals = [self._stored(split[1]) for split in splits if split]
        self._commit(before, outputs, [(left, beam_watermark(left.watermark)) for left in residuals])

    def _read(self, trackers: list[BigtableTracker]) -> tuple[list[ChangeStreamMutation], bool]:
        """Claim some steps on all parts, interleaved. Return the outputs, and whether the epoch crashed."""
        outputs: list[ChangeStreamMutation] = []
        parts = [self._steps(tracker) for tracker in trackers]
        for _ in range(self.rng.randint(1, 25)):
            self._seconds += 0.005
            part = self.rng.randrange(len(trackers))
            taken = next(parts[part], None)
            if taken is None:
                continue
            if self.steps == self.crash_at:
                self.crash_at = None
                return outputs, True
            self.steps += 1
            records, step = taken
            emits = self._stream_of(trackers[part]).key_filter()
            assert trackers[part].try_claim(step)
            outputs += [record for record in records if emits is None or emits(record.row_key)]
        return outputs, False

    def _steps(self, tracker: BigtableTracker) -> Iterator[PendingStep]:
        """Yield steps, of one short stream after another, each of a partition that the seed picks."""
        while self._stream_of(tracker).positions or self._stream_of(tracker).waiting:
            yield from self._one_stream(tracker)

    def _one_stream(self, tracker: Any) -> Iterator[PendingStep]:
        for part in self._reopen_schedule.due(self._stream_of(tracker).waiting):
            if part in self._stream_of(tracker).waiting:
                self.reopened += 1
                yield [], Reopened(part)
        ready = self._stream_of(tracker).positions
        if ready:
            yield from self._stream(ready[self._pick(sorted(ready))])
        else:
            self._seconds += 0.02

    def _stream(self, position: Any) -> Iterator[PendingStep]:
        end = self.end if position.bounded else None
        stream = self.service.read(position, end)
        try:
            for _ in range(self.rng.randint(1, 12)):
                record = next(stream, None)
                if record is None:
                    return
                step = to_step(position.partition, record, bounded=end is not None)
                assert step is not None
                yield [record] if isinstance(record, ChangeStreamMutation) else [], step
        except BrokenOffError:
            return

    def _pick(self, partitions: list[KeyRange]) -> KeyRange:
        quick = [part for part in partitions if not any(part.holds(key) for key in self.laggards)]
        return self.rng.choice(quick if quick and self.rng.random() < 0.8 else partitions)

    def _expected(self) -> list[str]:
        return [
            str(change.number)
            for change in self.service.log
            if change.at >= MILLI
            and self.row_range.holds(change.row_key)
            and (self.end is None or change.at <= self.end)
        ]

    def _all_read(self) -> bool:
        return self.service.over and len(self.committed) >= len(self._expected())

    def _commit(self, before: Any, outputs: list[ChangeStreamMutation], residuals: list[Any]) -> None:
        if any(beam_watermark(output.commit_timestamp) < before for output in outputs):
            raise BrokenPromiseError("a record came after the watermark had passed it")
        self.committed += outputs
        self.residuals = residuals
        after = min((state for _, state in residuals), default=beam_watermark(None))
        if after < before:
            raise BrokenPromiseError("the watermark went back")
        seen = set(map(_identity, self.committed))
        for change in self.service.log:
            if beam_watermark(change.at) < after and self._is_lost(change, seen):
                raise BrokenPromiseError("the watermark passed an unread record")

    def _is_lost(self, change: Any, seen: set[str]) -> bool:
        return (
            self.row_range.holds(change.row_key)
            and (self.end is None or change.at <= self.end)
            and str(change.number) not in seen
        )

    def _check_all(self) -> None:
        numbers = list(map(_identity, self.committed))
        if sorted(numbers) != sorted(self._expected()):
            lost, twice = set(self._expected()) - set(numbers), len(numbers) - len(set(numbers))
            raise BrokenPromiseError(f"{len(lost)} records were lost, {twice} read twice")
        last: dict[bytes, int] = {}
        for output in self.committed:
            number = int(_identity(output))
            if last.get(output.row_key, -1) > number:
                raise BrokenPromiseError("changes of a row came out of commit order")
            last[output.row_key] = number


def _identity(output: ChangeStreamMutation) -> str:
    return str(output.tiebreaker)
