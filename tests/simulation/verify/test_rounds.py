"""Seeded histories of a source and of a target that lags: every planted fault is found, and none is invented.

The source is a PostgreSQL server: a transaction is in the log some steps before other sessions see it, and its rows are
locked until then. The target applies the log behind it, and sometimes writes a row of a snapshot (READ). Between all
reads of the comparison the world makes some steps.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from penstock.event import ChangeEvent, Kind, Op, Version
from penstock.verify.rounds import (
    ColumnDifference,
    Finding,
    Look,
    Snapshot,
    SourceRow,
    StoredRow,
    findings,
)
from penstock.verify.rounds import Kind as Found
from tests.unit.formats.events import event_of, schema_of

SCHEMA = schema_of({"id": Kind.INT64}, value=Kind.INT64)
KEYS = [f"[{number}]" for number in range(12)]
FAULTY, BUSY = KEYS[:5], KEYS[5:]
NO_ROW = ColumnDifference("value", None, None)


@dataclass
class Commit:
    order: int
    transaction: int
    changes: dict[str, int | None] | None  # None: TRUNCATE
    time: int
    visible: bool = False


@dataclass
class Row:
    version: Version
    value: int | None  # None: a tombstone


@dataclass
class World:
    rng: random.Random
    time: int = 0
    log: list[Commit] = field(default_factory=list)
    applied: int = 0
    rows: dict[str, Row] = field(default_factory=dict)
    truncated: int | None = None
    is_quiet: bool = False

    def begin(self) -> None:
        """Give every key a row, and let the target have it all."""
        self._commit(dict.fromkeys(KEYS, 0))
        self.settle()

    def settle(self) -> None:
        while not all(each.visible for each in self.log):
            self._make_visible()
        while self.applied < len(self.log):
            self._apply()

    def steps(self) -> None:
        for _ in range(self.rng.randrange(6)):
            self.step()

    def step(self) -> None:
        self.time += 1
        choice = self.rng.random()
        if choice < 0.4:
            self._write()
        elif choice < 0.6:
            self._make_visible()
        elif choice < 0.95:
            self._apply()
        else:
            self._read_row()

    def _write(self) -> None:
        if self.is_quiet:
            return
        locked = {key for each in self.log if not each.visible for key in each.changes or KEYS}
        free = [key for key in BUSY if key not in locked]
        if not free:
            return
        if not locked and not self.faults and self.rng.random() < 0.1:
            self._commit(None)
            return
        # Few values, so that rows come back to values that they had.
        chosen = self.rng.sample(free, self.rng.randint(1, min(3, len(free))))
        self._commit({key: self.rng.choice((None, 0, 1)) for key in chosen})

    def _commit(self, changes: dict[str, int | None] | None) -> None:
        number = len(self.log) + 1
        # Numbers of transactions are not in the order of their commits.
        self.log.append(Commit(number * 10, self.rng.randrange(10**6) * 1000 + number, changes, self.time))

    def _make_visible(self) -> None:
        waiting = [each for each in self.log if not each.visible]
        if waiting:
            self.rng.choice(waiting).visible = True

    def _apply(self) -> None:
        if self.applied == len(self.log):
            return
        commit = self.log[self.applied]
        self.applied += 1
        if commit.changes is None:
            self.truncated = commit.order
            self.rows = {key: row for key, row in self.rows.items() if key in self.faults}
            return
        for key, value in commit.changes.items():
            self.rows[key] = Row(Version(commit.order, str(commit.transaction)), value)

    def _read_row(self) -> None:
        """Write a row of a snapshot. Its place in the log is after all changes that it contains."""
        if self.applied < len(self.log) or not all(each.visible for each in self.log):
            return
        key = self.rng.choice(BUSY)
        if (value := self.visible_rows().get(key)) is not None:
            self.rows[key] = Row(Version(len(self.log) * 10 + 5, "", "", self.time), value)

    def visible_rows(self) -> dict[str, int]:
        rows: dict[str, int | None] = {}
        for commit in self.log:
            if commit.visible:
                rows = {} if commit.changes is None else rows | commit.changes
        return {key: value for key, value in rows.items() if value is not None}

    faults: dict[str, Found] = field(default_factory=dict)

    def plant(self) -> None:
        """Break rows of the target that the source does not change any more."""
        missing, lost, different, extra, version_less = FAULTY
        self._commit(dict.fromkeys(FAULTY, 0) | {extra: None})
        self.settle()
        # A tombstone that the pipeline wrote, and a row that vanished with everything.
        self.rows[missing].value = None
        del self.rows[lost]
        self.rows[different].value = 7
        self.rows[extra].value = 3
        self.rows[version_less] = Row(Version(0), 9)
        self.faults = dict(
            zip(
                FAULTY,
                (Found.MISSING, Found.MISSING, Found.DIFFERENT, Found.EXTRA, Found.DIFFERENT),
                strict=True,
            )
        )


@dataclass
class Source:
    world: World

    def rows(self, keys: Sequence[str]) -> Mapping[str, SourceRow]:
        found: dict[str, SourceRow] = {}
        for start in range(0, len(keys), 5):  # each part has a snapshot
            self.world.steps()
            # No TRUNCATE is between snapshot and position: a reader's lock waits for it.
            if any(each.changes is None and not each.visible for each in self.world.log):
                self.world.settle()
            visible = {each.transaction for each in self.world.log if each.visible}
            snapshot = Snapshot(
                lambda version, visible=visible: (
                    int(version.transaction) in visible if version.transaction else None
                ),
                self.world.time + 1,
                len(self.world.log) * 10 + 1,
            )
            rows = self.world.visible_rows()
            for key in keys[start : start + 5]:
                event = (
                    None
                    if key not in rows
                    else event_of(SCHEMA, Op.READ, after={"id": 1, "value": rows[key]})
                )
                found[key] = SourceRow(event, snapshot)
        return found

    def rows_at(self, versions: Mapping[str, Version]) -> Mapping[str, SourceRow]:
        return {}


@dataclass
class Target:
    world: World

    def look(self, rows: Mapping[str, ChangeEvent | None]) -> Look:
        self.world.steps()
        found = {}
        for key, event in rows.items():
            if row := self.world.rows.get(key):
                equal = event is None or (event.after or {})["value"] == row.value
                version = row.version if row.version.order else None
                found[key] = StoredRow(version, row.value is None, () if equal else [NO_ROW])
        return Look(found, self.world.truncated)


def compared(world: World, rounds: int) -> list[Finding]:
    def wait(until_ns: int) -> None:
        while any(each.time < until_ns for each in world.log[world.applied :]):
            world.step()

    clock = iter(range(10**9))
    return list(
        findings(
            KEYS,
            Source(world),
            Target(world),
            wait,
            rounds=rounds,
            tombstone_seconds=1e12,
            clock=lambda: float(next(clock)),
        )
    )


@pytest.mark.parametrize("first", range(0, 2000, 250))
def test_every_planted_fault_is_found_and_none_is_invented(first: int) -> None:
    for seed in range(first, first + 250):
        world = World(random.Random(seed))
        world.begin()
        for _ in range(20):
            world.step()
        if seed % 2:
            world.plant()
        found = compared(world, rounds=6)
        real = {each.key: each.kind for each in found if each.kind is not Found.CHANGING}
        assert real == world.faults, seed
        assert {each.key for each in found} <= {*BUSY, *world.faults}, seed


def test_a_row_that_changes_each_time_is_changing_and_is_decided_when_it_rests() -> None:
    changing = 0
    for seed in range(100):
        world = World(random.Random(seed))
        world.begin()
        changing += len(compared(world, rounds=1))
        world.settle()
        world.is_quiet = True
        assert compared(world, rounds=6) == [], seed
    assert changing, "no row has changed while it was compared, so the test shows nothing"
