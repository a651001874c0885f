"""Tables that go back to an earlier time, and get the changes from then on once more."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from pyiceberg.catalog import load_catalog

from penstock.attempt import Attempt, DriverToken, offering_staging
from penstock.errors import UsageError
from penstock.event import ChangeEvent
from penstock.event.feed_rows import feed_rows
from penstock.io.columnar.table_rows import DELETED
from penstock.io.delta import rewind as delta_rewind
from penstock.io.delta.target import DeltaTarget
from penstock.io.iceberg import rewind as iceberg_rewind
from penstock.io.staging.delivery import LedgerConflictError
from penstock.io.staging.publish_epochs import PublishBatches
from penstock.rewind import CommitOfTable, RewindPlan
from tests.unit.tables.histories import Writer, split
from tests.unit.tables.test_complete import Lake, delta_lake, iceberg_lake
from tests.unit.tables.test_delta import batches

SECOND = 1_000_000


class RewoundLake:
    """A lake whose sink publishes epochs of a history and marks, goes back, and publishes again."""

    def __init__(self, folder: Path, kind: str, mode: str) -> None:
        make: Callable[..., Lake] = iceberg_lake if kind == "iceberg" else delta_lake
        self.mode = "log" if mode == "feed" else mode
        self.lake, self.kind = make(folder, self.mode), kind
        if mode == "feed":
            self.lake.target = replace(self.lake.target, layout="table")
        if kind == "vectors":
            uri = f"{folder}/lake/{{table}}"
            self.lake.target = DeltaTarget(uri, mode, "evolve", mark_seconds=60, deletion_vectors=True)
        self.folder, self.record, self.generation = folder, 1, 1
        self.marks: list[int] = []
        self.clock_us = 0
        self.committed: dict[int, int] = {}

    @property
    def sink(self) -> PublishBatches:
        return self.lake.sink()

    @contextmanager
    def _committing(self) -> Iterator[None]:
        """Note the time of the history at which the versions are committed that the block makes."""
        with offering_staging(f"{self.folder}/staging"):
            yield
        for version in self._versions():
            self.committed.setdefault(version, self.clock_us)

    def _versions(self) -> Iterable[int]:
        if self.kind == "iceberg":
            return [each.snapshot_id for each in self._table_of_iceberg().snapshots()]
        return range(DeltaTable(self.table()).version() + 1)

    def publish(self, events: Sequence[ChangeEvent]) -> None:
        """Publish an epoch, half a second after its last change."""
        self.record += 1
        self.clock_us = max(self.clock_us, events[-1].timestamp // 1000 + SECOND // 2)
        with self._committing():
            self.sink(batches(events, self.record, self.generation))

    def mark(self, until_us: int) -> None:
        self.marks.append(until_us)
        with self._committing():
            self.sink.mark_complete("job", self.record, until_us)

    def plan(self, to_us: int) -> RewindPlan:
        def commit(number: int, _: int, *said: Any) -> CommitOfTable:
            return CommitOfTable(number, self.committed.get(number, self.clock_us), *said)

        # Delta's library takes the time of a commit from the machine.
        with (
            offering_staging(f"{self.folder}/staging"),
            patch.object(delta_rewind, "CommitOfTable", commit),
            patch.object(iceberg_rewind, "CommitOfTable", commit),
        ):
            return self.sink.plan_rewind("job", to_us)

    def rewind(self, plan: RewindPlan) -> None:
        """Go back as a driver that takes over."""
        self.record += 1
        self.generation = self.record
        drivers = (DriverToken(self.generation, f"{self.generation:015x}"),)
        with self._committing():
            self.sink.rewind(Attempt("job", self.generation, self.record + 1, "00", drivers), plan)

    def take_over(self) -> None:
        self.record += 2
        self.generation = self.record

    def table(self) -> Any:
        return next(iter((self.folder / "lake").iterdir()))

    def rows(self) -> list[dict[str, Any]]:
        if self.kind == "iceberg":
            return list(self._table_of_iceberg().scan().to_arrow().to_pylist())
        found = QueryBuilder().register("t", DeltaTable(self.table())).execute("select * from t").read_all()
        return list(pa.table(found).to_pylist())

    def _table_of_iceberg(self) -> Any:
        catalog = load_catalog("test", **self.lake.target.properties)
        (name,) = catalog.list_tables("shop")
        return catalog.load_table(name)

    def current(self) -> list[tuple[Any, ...]]:
        return sorted(
            (row["id"], row["name"], row["amount"], row.get("note"))
            for row in self.rows()
            if self._is_valid(row)
        )

    def _is_valid(self, row: dict[str, Any]) -> bool:
        return not row[DELETED] and row.get("_penstock_valid_to") is None

    def changes(self) -> Counter[str]:
        return Counter(row.get("_commit_version") or row["metadata"]["version"] for row in self.rows())


KINDS = [
    (kind, mode)
    for kind in ("delta", "vectors", "iceberg")
    for mode in ("log", "feed", "current", "history")
    if kind != "vectors" or mode in ("current", "history")
]


@pytest.mark.slow
@pytest.mark.long_cases("iceberg", seconds=5)
@pytest.mark.parametrize(("kind", "mode"), KINDS)
def test_a_history_that_goes_back_twice_ends_as_if_it_had_not(kind: str, mode: str, tmp_path: Path) -> None:
    rng, writer = random.Random(f"{kind} {mode}"), Writer(3)
    lake, events = RewoundLake(tmp_path, kind, mode), writer.changes(40, truncates=False)

    def play(start: int, stop: int) -> None:
        """Publish events with marks: of an epoch some events may be after the time until which all are there."""
        done = start
        for epoch in split(events[start:stop], rng):
            lake.publish(epoch)
            done += len(epoch)
            # The first event has the time of one second.
            lake.mark((done + 1 - rng.randrange(len(epoch))) * SECOND)

    def go_back(to_us: int) -> int:
        plan = lake.plan(to_us)
        assert plan.to_us <= to_us
        lake.rewind(plan)
        # A repetition, as after a kill.
        lake.rewind(plan)
        if mode in ("current", "history"):
            assert all(row["_penstock_timestamp"].timestamp() * SECOND < to_us for row in lake.rows())
        return next(n for n, event in enumerate(events) if event.timestamp // 1000 >= plan.to_us)

    play(0, 30)
    # A driver that was paused before the rewind publishes nothing any more.
    old = batches(events[30:32], 100, 1)
    first = go_back(lake.marks[-3])
    with offering_staging(f"{tmp_path}/staging"), pytest.raises(LedgerConflictError):
        lake.sink(old)
    assert min(lake.lake.times(events[0].source.table).values()).timestamp() * SECOND <= lake.marks[-3]
    lake.take_over()
    play(first, 35)
    second = go_back(lake.marks[-2])
    lake.take_over()
    play(second, 40)
    if mode == "log":
        assert lake.changes() == Counter(lake_versions(events))
    elif mode == "feed":
        assert lake.changes() == Counter(lake_versions([each for each in events for _ in feed_rows(each)]))
    else:
        assert lake.current() == writer.current()


def lake_versions(events: Sequence[ChangeEvent]) -> list[str]:
    from penstock.event.replica import encode_version

    return [encode_version(event.version) for event in events]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_without_marks_the_reason_is_told(kind: str, tmp_path: Path) -> None:
    lake = RewoundLake(tmp_path, kind, "current")
    make = delta_lake if kind == "delta" else iceberg_lake
    lake.lake = make(tmp_path, "current", marked=False)
    lake.publish(Writer(1).changes(3))
    with pytest.raises(UsageError, match="Set mark_complete"):
        lake.plan(10 * SECOND)


def marked_history(lake: RewoundLake, count: int = 4) -> list[ChangeEvent]:
    events = Writer(5).changes(5 * count, truncates=False)
    for number in range(count):
        lake.publish(events[5 * number : 5 * number + 5])
        lake.mark((5 * number + 5) * SECOND)
    return events


def test_files_that_are_deleted_are_noticed_before_anything_is_changed(tmp_path: Path) -> None:
    lake = RewoundLake(tmp_path, "delta", "current")
    marked_history(lake)
    before = DeltaTable(lake.table()).version()
    DeltaTable(lake.table()).vacuum(0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(UsageError, match="files of its version .* are deleted"):
        lake.plan(12 * SECOND)
    assert DeltaTable(lake.table()).version() >= before


def test_a_version_behind_checkpoints_of_the_log_is_found(tmp_path: Path) -> None:
    lake = RewoundLake(tmp_path, "vectors", "current")
    marked_history(lake)
    DeltaTable(lake.table()).create_checkpoint()
    plan = lake.plan(12 * SECOND)
    lake.rewind(plan)
    (table,) = plan.tables
    found = (
        QueryBuilder()
        .register("t", DeltaTable(lake.table(), version=table.version))
        .execute("select * from t")
    )
    assert sorted(map(repr, lake.rows())) == sorted(map(repr, pa.table(found.read_all()).to_pylist()))


@pytest.mark.parametrize("mode", ["log", "current"])
def test_rows_of_another_program_are_not_undone(mode: str, tmp_path: Path) -> None:
    lake = RewoundLake(tmp_path, "delta", mode)
    marked_history(lake)
    write_deltalake(
        lake.table(), pa.table(DeltaTable(lake.table()).to_pyarrow_table()).slice(0, 1), mode="append"
    )
    with pytest.raises(UsageError, match="not this job's"):
        lake.plan(12 * SECOND)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["delta", "vectors", "iceberg"])
def test_versions_that_a_rewind_has_undone_are_not_chosen_by_the_next_one(kind: str, tmp_path: Path) -> None:
    lake = RewoundLake(tmp_path, kind, "current")
    events = marked_history(lake)
    # The versions of a bad release have later marks than those that the good one makes afterwards.
    lake.rewind(lake.plan(11 * SECOND))
    at_first = sorted(map(repr, lake.rows()))
    lake.take_over()
    lake.mark(11 * SECOND)
    lake.publish(events[10:15])
    lake.mark(25 * SECOND)
    plan = lake.plan(19 * SECOND)
    lake.rewind(plan)
    # A Delta table that went back has a new version, from after the time.
    assert plan.to_us == (11 if kind == "iceberg" else 10) * SECOND
    assert sorted(map(repr, lake.rows())) == at_first
