"""`TableParking` over a model of tables with ledgers: crashes at every request, paused drivers, refusals, requests.

The model of epochs is that of the runner: a record names what is published next and what is parked, and a try that
crashes changes no record. A driver that was paused publishes its old record at any later time.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from penstock.attempt import Attempt, DriverToken, running_attempt
from penstock.errors import PenstockError
from penstock.event import NO_COLUMNS, ChangeEvent, Op, Source, Version
from penstock.io.staging import parked_files
from penstock.io.staging.delivery import (
    Delivery,
    LedgerConflictError,
    LedgerEntry,
    RowRefusedError,
    TargetUnavailableError,
)
from penstock.io.staging.epochs import EpochDelivery
from penstock.io.staging.parked_files import EpochChanges, ParkedFiles, TableEpochs, files_of
from penstock.io.staging.store import store_of
from penstock.io.staging.table_parking import TableParking
from penstock.parked import ParkedTable
from tests.conftest import CAMPAIGN
from tests.simulation.sinks.parked_job import ParkedJob
from tests.simulation.staging.epochs import Crash, CrashPoint

JOB, SINK, TABLES = "job", "sink", ("a", "b", "c", "d")
LIMIT = 1 << 30


def event_of(table: str, number: int) -> ChangeEvent:
    source = Source("test", table=table)
    return ChangeEvent(
        source, Op.CREATE, 0, {"k": number}, None, {}, Version(number, str(number)), NO_COLUMNS
    )


@dataclass(frozen=True)
class ModelBatch:
    """What an epoch has staged: the numbers of the changes of each table."""

    delivery: Delivery
    changes: dict[str, list[int]]


@dataclass
class ModelTables:
    """Tables that append: a change that is lost, written twice or late shows in their content."""

    crash: CrashPoint = field(default_factory=CrashPoint)
    content: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in TABLES})
    ledger: dict[str, LedgerEntry] = field(default_factory=dict)
    truncated: dict[str, int] = field(default_factory=dict)
    refusing: set[str] = field(default_factory=set)
    down: Callable[[], bool] = lambda: False

    def tables_of(self, delivery: EpochDelivery, batches: Sequence[Any]) -> list[TableEpochs]:
        (batch,) = batches
        return [
            TableEpochs(
                name,
                Source("test", table=name),
                (EpochChanges(delivery, [event_of(name, number) for number in numbers]),),
            )
            for name, numbers in batch.changes.items()
        ]

    def publish_tables(self, tables: Sequence[TableEpochs]) -> list[PenstockError | None]:
        return [self._publish(each) for each in tables]

    def _publish(self, table: TableEpochs) -> PenstockError | None:
        if self.down():
            raise TargetUnavailableError("down")
        if table.name in self.refusing:
            return RowRefusedError(f"{table.name} refuses")
        try:
            self.crash.request(lambda: self._commit(table))
        except LedgerConflictError as error:
            return error
        return None

    def _commit(self, table: TableEpochs) -> None:
        entry = self.ledger.get(table.name)
        if table.is_delivered(entry):
            return
        for event in table.after(entry):
            if event.op is Op.TRUNCATE:
                # The number of the event is that of the newest change that is dropped.
                self.truncated[table.name] = event.version.order
            elif event.key:
                self.content[table.name].append(event.key["k"])
        self.ledger[table.name] = table.newest.position

    def raise_refused(self, tables: Sequence[TableEpochs], errors: Sequence[PenstockError | None]) -> None:
        for error in errors:
            if error is not None:
                raise error


class CrashingStore:
    """A local store whose requests may kill the process."""

    def __init__(self, folder: Path, crash: CrashPoint) -> None:
        self._store, self._crash = store_of(folder), crash

    def __getattr__(self, name: str) -> Any:
        act = getattr(self._store, name)
        if not callable(act):
            return act
        return lambda *arguments: self._crash.request(lambda: act(*arguments))


@dataclass(frozen=True)
class Record:
    """The part of a commit record that matters here."""

    number: int
    generation: int
    drivers: tuple[DriverToken, ...]
    batches: tuple[ModelBatch, ...] = ()
    parked: tuple[ParkedTable, ...] = ()


class Pipeline(ParkedJob):
    """A driver in the model of epochs. `made` has the changes of each table, `skipped` those that were dropped."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.rng, self.tables = rng, ModelTables()
        self.store = CrashingStore(folder, self.tables.crash)
        self.files = ParkedFiles(self.store, SINK)  # type: ignore[arg-type]
        self.record = Record(1, 1, (DriverToken(1, "t1"),))
        self.made: dict[str, list[int]] = {name: [] for name in TABLES}
        self.skipped: dict[str, set[int]] = {name: set() for name in TABLES}
        self.tries, self.max_bytes = 0, LIMIT

    def publish(self, record: Record) -> list[ParkedTable]:
        """Publish what a record names, as a new try."""
        self.tries += 1
        attempt = Attempt(JOB, record.generation, record.number + 1, f"n{self.tries}", record.drivers)
        parking = TableParking(
            self.tables,
            self.files,
            self.max_bytes,
            lambda work: work(),
            now_us=lambda: 1_000 * record.number + self.tries,
        )
        with running_attempt(attempt):
            return parking.publish(record.batches, record.parked)  # type: ignore[arg-type]

    def epoch(self) -> None:
        """Publish, read new changes, and commit; crashes before and in it discard the try."""
        if self.rng.random() < 0.5:
            self._crash_in(lambda: self.publish(self.record))
        parked = tuple(self.publish(self.record))
        number = self.record.number + 1
        batch = self._batch(number)
        self.record = replace(self.record, number=number, batches=batch, parked=parked)
        if self.rng.random() < 0.5:
            upto = self.record.generation, number
            self._crash_in(lambda: self.files.clean_up(JOB, upto, self.record.parked))

    def _batch(self, number: int) -> tuple[ModelBatch, ...]:
        changes: dict[str, list[int]] = {}
        for name in TABLES:
            if self.rng.random() < 0.7:
                made = self.made[name]
                new = list(range(len(made), len(made) + self.rng.randint(1, 3)))
                made += new
                changes[name] = new
        if not changes:
            return ()
        generation, drivers = self.record.generation, self.record.drivers
        return (ModelBatch(Delivery(SINK, JOB, 0, 1, generation, number, drivers), changes),)

    def _crash_in(self, work: Callable[[], Any]) -> None:
        self.tables.crash.start(self.rng.randrange(8), self.rng.random() < 0.5)
        self.tables.down = lambda: self.rng.random() < 0.1
        with contextlib.suppress(Crash, TargetUnavailableError):
            work()
        self.tables.crash.restart()
        self.tables.down = lambda: False

    def paused(self, record: Record) -> None:
        """Let a driver that was paused publish its record now."""
        # It has lost its checkpoint, and its files may be deleted.
        with contextlib.suppress(PenstockError):
            self.publish(record)

    def take_over(self) -> None:
        number = self.record.number + 1
        drivers = (*self.record.drivers, DriverToken(number, f"t{number}"))[-16:]
        self.record = replace(self.record, number=number, generation=number, drivers=drivers)

    def refill(self, table: ParkedTable) -> None:
        self._note_skipped(table)
        self.replace_parked(table, replace(table, refilling=True))

    def skip(self, table: ParkedTable) -> None:
        self._note_skipped(table)
        self.replace_parked(table)

    def _note_skipped(self, table: ParkedTable) -> None:
        for file in files_of(table):
            for part in self.files.read(
                table, file, Attempt(JOB, self.record.generation, self.record.number + 1, "n")
            ):
                self.skipped[table.name] |= {each.key["k"] for each in part.events if each.key}

    def correct_all(self) -> None:
        self.tables.refusing.clear()

    def publish_again(self) -> list[ParkedTable]:
        return self.publish(self.record)

    def faults(self) -> list[str]:
        """Return what is lost, twice or out of order. A skipped change may be there if a paused driver wrote it."""
        found = []
        for name in TABLES:
            content, skipped = self.tables.content[name], self.skipped[name]
            if content != sorted(set(content)):
                found.append(f"{name} has {content}")
            if lost := set(self.made[name]) - skipped - set(content):
                found.append(f"{name} lacks {sorted(lost)}")
        return found


SEEDS = 400 if CAMPAIGN else 12


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_is_lost_doubled_or_reordered_by_crashes_paused_drivers_and_requests(
    seed: int, tmp_path: Path, campaign: Any, monkeypatch: Any
) -> None:
    # Files of a few epochs, so that several are published one after the other.
    monkeypatch.setattr(parked_files, "FILE_BYTES", 600)
    monkeypatch.setattr("penstock.io.staging.table_parking.RESUMED_BYTES", 400)
    rng = campaign.random(f"parking {seed}")
    pipeline = Pipeline(tmp_path, rng)
    old: list[Record] = []
    pipeline.tables.refusing.add(rng.choice(TABLES))
    for _ in range(60):
        roll, tables = rng.random(), pipeline.tables
        if roll < 0.12:
            tables.refusing.add(rng.choice(TABLES))
        elif roll < 0.3 and tables.refusing:
            tables.refusing.discard(rng.choice(sorted(tables.refusing)))
        elif roll < 0.5 and pipeline.record.parked:
            pipeline.resume(rng.choice(pipeline.record.parked))
        elif roll < 0.53 and pipeline.record.parked:
            pipeline.skip(rng.choice(pipeline.record.parked))
        elif roll < 0.56 and pipeline.record.parked:
            pipeline.refill(rng.choice(pipeline.record.parked))
        elif roll < 0.63:
            # The driver before may be paused in the middle of the work on its record.
            old.append(pipeline.record)
            pipeline.take_over()
        elif roll < 0.68 and old:
            pipeline.paused(rng.choice(old))
        pipeline.epoch()
    pipeline.finish()
    assert not pipeline.faults()
    pipeline.files.clean_up(JOB, (pipeline.record.generation, pipeline.record.number), ())
    assert not list(tmp_path.rglob("*.parked"))


def parked_pipeline(folder: Path, epochs: int) -> Pipeline:
    """Return a pipeline of which the table a was parked for some epochs."""
    pipeline = Pipeline(folder, random.Random(1))
    pipeline.tables.refusing.add("a")
    pipeline.rng.random = lambda: 0.6  # type: ignore[method-assign]  # a batch in each epoch, no crash
    for _ in range(epochs + 1):
        pipeline.epoch()
    return pipeline


def test_the_number_of_files_grows_with_the_logarithm_of_the_epochs(tmp_path: Path) -> None:
    pipeline = parked_pipeline(tmp_path, 300)
    (parked,) = pipeline.record.parked
    assert len(files_of(parked)) <= 10
    assert parked.changes == len(pipeline.made["a"]) - len(pipeline.record.batches[0].changes["a"])


def test_a_parked_table_gets_nothing_although_it_would_take_the_changes_now(tmp_path: Path) -> None:
    pipeline = parked_pipeline(tmp_path, 3)
    pipeline.tables.refusing.clear()
    pipeline.epoch()
    assert pipeline.tables.content["a"] == []
    assert pipeline.tables.content["b"] == pipeline.made["b"][: len(pipeline.tables.content["b"])] != []


@pytest.mark.parametrize("late", [False, True])
def test_a_refill_removes_what_is_older_than_the_newest_parked_change(late: bool, tmp_path: Path) -> None:
    """With several readers the newest change need not be the last one."""
    pipeline = parked_pipeline(tmp_path, 4)
    if late:
        pipeline.record.batches[0].changes["a"] = [1_000]
        pipeline.epoch()
        pipeline.record.batches[0].changes["a"] = [999]
        pipeline.epoch()
    (parked,) = pipeline.record.parked
    newest = 1_000 if late else pipeline.record.batches[0].changes["a"][0] - 1
    pipeline.refill(parked)
    pipeline.epoch()
    # It refuses still: nothing is lost.
    (again,) = pipeline.record.parked
    assert (again.refilling, again.since_us) == (False, parked.since_us)
    assert again.changes > parked.changes
    pipeline.tables.refusing.clear()
    pipeline.refill(parked)
    after = pipeline.record.batches[0].changes["a"]
    pipeline.epoch()
    assert not pipeline.record.parked
    assert pipeline.tables.truncated == {"a": newest}
    assert pipeline.tables.content["a"] == after


def test_a_conflict_of_ledgers_stops_the_pipeline_instead_of_parking_the_table(tmp_path: Path) -> None:
    """Another copy of the checkpoint has written to the table."""
    pipeline = parked_pipeline(tmp_path, 1)
    pipeline.tables.ledger["b"] = LedgerEntry(10_000, 10_001, "t10000")
    with pytest.raises(LedgerConflictError):
        pipeline.epoch()


def test_epochs_of_a_file_that_a_paused_driver_has_written_are_left_out() -> None:
    deliveries = [EpochDelivery(SINK, JOB, 1, epoch, (DriverToken(1, "t1"),)) for epoch in (3, 4, 5)]
    epochs = [EpochChanges(each, [event_of("a", each.epoch)]) for each in deliveries]
    table = TableEpochs("a", Source("test", table="a"), tuple(epochs))
    assert [event.key for event in table.after(deliveries[1].position)] == [{"k": 5}]


def test_an_epoch_publishes_a_part_of_the_parked_changes(tmp_path: Path, monkeypatch: Any) -> None:
    """Otherwise the other tables would wait for all of them."""
    monkeypatch.setattr(parked_files, "FILE_BYTES", 600)
    monkeypatch.setattr("penstock.io.staging.table_parking.RESUMED_BYTES", 400)
    pipeline = parked_pipeline(tmp_path, 60)
    pipeline.tables.refusing.clear()
    pipeline.resume(pipeline.record.parked[0])
    pipeline.epoch()
    assert 0 < len(pipeline.tables.content["a"]) < 20
    assert pipeline.record.parked[0].resuming
