"""A snapshot and the change stream after it, read in parts that lag, are split and crash, over seeded histories."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from penstock.io.change_streams.range_frontier import RangeAdvanced, RangeRead
from penstock.io.change_streams.watermark import beam_watermark
from penstock.io.spanner.frontier import Frontier
from penstock.io.spanner.initial_scan.frontier import KeyRange, ScanFrontier, Table
from penstock.io.spanner.initial_scan.rows import READ
from penstock.io.spanner.initial_scan.tracker import ScanCoder, ScanTracker
from penstock.io.spanner.read import ReadSpannerFn
from penstock.io.spanner.record import DataChangeRecord, Mod, Mods
from penstock.io.spanner.tracker import FrontierCoder

pytestmark = pytest.mark.long(seconds=10)

HISTORIES = 300
TABLES = (Table("T", ("K",), (1,), 1), Table("U", ("K",), (1,), 1))
CODER = ScanCoder(FrontierCoder())


class Rows:
    """The rows of two tables at one time, and the ranges in which they are read."""

    def __init__(self, rng: random.Random, timestamp: int) -> None:
        self.timestamp = timestamp
        self.keys = {0: sorted(rng.sample(range(8), rng.randint(0, 8))), 1: sorted(rng.sample(range(60), 20))}
        self.ranges: dict[int, KeyRange] = {}
        for table in self.keys:
            cuts = sorted(rng.sample(range(60), rng.randint(0, 4)))
            ends = ["", *(f'["{cut}"]' for cut in cuts), ""]
            for start, end in pairwise(ends):
                self.ranges[len(self.ranges)] = KeyRange(table, start, end)

    def of(self, each: KeyRange) -> list[int]:
        """Return the keys that a read of a range gives, in order."""
        low = int(json.loads(each.start)[0]) if each.start else -1
        high = int(json.loads(each.end)[0]) if each.end else 1 << 30
        return [key for key in self.keys[each.table] if low + each.start_open <= key < high]

    def record(self, table: int, keys: list[int]) -> DataChangeRecord:
        mods = Mods.of(Mod(f'{{"K":"{key}"}}', "{}", "{}") for key in keys)
        return DataChangeRecord(
            self.timestamp, "", "", True, TABLES[table].name, (), mods, READ, "NEW_ROW", 1, 1, "", False
        )


@pytest.fixture
def snapshot_reading(reading: Any, broken: Any) -> Any:
    """Return a class that reads one history of `reading`, after a snapshot at a time within it."""

    class InitialScanReading(reading):  # type: ignore[misc]
        def __init__(
            self, seed: int, *, whole_ranges: bool = False, gap: int = 1, crash_at: int | None = None
        ) -> None:
            super().__init__(seed, crash_at=crash_at)
            self.whole_ranges = whole_ranges
            self.fn = ReadSpannerFn(None)
            times = sorted({record.commit_timestamp for record in self.stream.records})
            timestamp = self.rng.choice(times)
            self.rows = Rows(self.rng, timestamp)
            self.stream.snapshot = timestamp
            frontier = ScanFrontier(
                timestamp,
                TABLES,
                self.rows.ranges,
                Frontier.starting_at(timestamp + gap, self.stream.horizon),
                timestamp + 10**15,
            )
            self.residuals = [(frontier.settled(), beam_watermark(frontier.watermark))]

        def tracker(self, frontier: Any) -> Any:
            stored = CODER.decode(CODER.encode(frontier)).settled()
            if isinstance(stored, ScanFrontier):
                return ScanTracker(stored, whole_ranges=self.whole_ranges)
            return super().tracker(stored)

        def _stored(self, frontier: Any) -> Any:
            return CODER.decode(CODER.encode(frontier))

        def _steps(self, tracker: Any) -> Iterator[tuple[list[DataChangeRecord], Any]]:
            if isinstance(tracker, ScanTracker):
                return self._snapshot_steps(tracker)
            return super()._steps(tracker)  # type: ignore[no-any-return]

        def _snapshot_steps(self, tracker: Any) -> Iterator[tuple[list[DataChangeRecord], Any]]:
            while (frontier := tracker.current_restriction()).can_progress:
                number = self.rng.choice(sorted(frontier.ranges))
                keys = self.rows.of(frontier.ranges[number])
                if self.whole_ranges:
                    self.rng.shuffle(keys)
                while keys:
                    some, keys = keys[:2], keys[2:]
                    yield (
                        [self.rows.record(frontier.ranges[number].table, some)],
                        RangeAdvanced(number, f'["{some[-1]}"]'),
                    )
                    if not self.whole_ranges and self.rng.random() < 0.3:
                        break  # another range, in the middle of this one
                else:
                    yield [], RangeRead(number)

        def _check_all(self) -> None:
            rows = [record for record in self.committed if record.mod_type == READ]
            found = sorted((r.table_name, int(json.loads(m.keys)["K"])) for r in rows for m in r.mods)
            expected = sorted(
                (TABLES[table].name, key) for table, keys in self.rows.keys.items() for key in keys
            )
            if found != expected:
                raise broken("rows were lost or read twice")
            changed: set[str] = set()
            for record in self.committed:
                for mod in record.mods:
                    if record.mod_type == READ and record.table_name == "T" and mod.keys in changed:
                        raise broken(f"the row {mod.keys} came after a change of it")
                    changed |= {mod.keys} if record.mod_type != READ else set()
            self.committed = [record for record in self.committed if record.mod_type != READ]
            super()._check_all()

    return InitialScanReading


@pytest.mark.parametrize("whole_ranges", [False, True])
def test_hundreds_of_snapshots_lose_nothing_and_come_before_later_changes(
    snapshot_reading: Any, whole_ranges: bool
) -> None:
    crashes = 0
    for seed in range(HISTORIES):
        run = snapshot_reading(seed, whole_ranges=whole_ranges)
        try:
            run.run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        crashes += run.crashes
    assert crashes > HISTORIES, "the histories do not crash enough to show anything"


def test_a_crash_at_every_step_of_snapshot_and_stream_changes_nothing(snapshot_reading: Any) -> None:
    seed = 3
    undisturbed = snapshot_reading(seed)
    undisturbed.run()
    for step in range(undisturbed.steps):
        snapshot_reading(seed, crash_at=step).run()


def broken_histories(snapshot_reading: Any, histories: int = 60, **options: Any) -> int:
    failures = 0
    for seed in range(histories):
        try:
            snapshot_reading(seed, **options).run()
        except Exception:
            failures += 1
    return failures


def test_a_stream_that_opens_before_the_last_range_breaks_many_histories(
    snapshot_reading: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled = ScanFrontier.settled

    def with_ranges_left(self: ScanFrontier) -> Any:
        return settled(self if len(self.ranges) > 1 else replace(self, ranges={}))

    assert broken_histories(snapshot_reading) == 0
    monkeypatch.setattr(ScanFrontier, "settled", with_ranges_left)
    assert broken_histories(snapshot_reading) > 20


def test_a_stream_that_starts_at_the_time_of_the_snapshot_repeats_its_changes(snapshot_reading: Any) -> None:
    assert broken_histories(snapshot_reading, gap=0) == 60


def test_claiming_unordered_rows_by_key_loses_rows(
    snapshot_reading: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert broken_histories(snapshot_reading, whole_ranges=True) == 0
    monkeypatch.setattr(ScanTracker, "try_split", ScanTracker.__mro__[1].try_split)
    assert broken_histories(snapshot_reading, whole_ranges=True) > 30
