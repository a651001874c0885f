"""A job whose sink is PostgreSQL, in a model of epochs: crashes, paused drivers, refusals and both ways to send.

A record names the batches that are published next and the tables that are parked. A try that crashes changes no
record. A driver that was paused publishes its old record at any later time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.attempt import Attempt, DriverToken, running_attempt
from penstock.errors import PenstockError
from penstock.event import ChangeEvent, Column, ColumnType, Kind, Op, Source, TableSchema, Version
from penstock.event.coder import encode_event
from penstock.event.sharding import shard_of
from penstock.io.sql.ledger import Ledger
from penstock.io.sql.sender import SqlSender
from penstock.io.sql.statements import TableName, create_log
from penstock.io.sql.table_sender import TableSender
from penstock.io.sql.target import SqlTarget
from penstock.io.sql.write import connector_of
from penstock.io.staging.batch import EventBlocks, StagedBatch
from penstock.io.staging.blocks import RecordBlock
from penstock.io.staging.coders import RecordBlockCoder
from penstock.io.staging.delivery import Delivery
from penstock.io.staging.local import LocalStore
from penstock.io.staging.parked_files import files_of
from penstock.io.staging.send import SendBatchesFn
from penstock.io.staging.send_tables import SendTablesFn
from penstock.io.staging.store import store_of
from penstock.parked import ParkedTable
from tests.integration.postgres.conftest import Database
from tests.simulation.sinks.parked_job import ParkedJob
from tests.simulation.sinks.test_data_files import guard
from tests.simulation.staging.epochs import Crash, CrashPoint

JOB, SINK, SHARDS, TABLES = "job", "sink", 2, ("a", "b", "c")
NUMBER, TEXT = ColumnType(Kind.INT64), ColumnType(Kind.STRING)


def event_of(table: str, number: int, value: Any = 0, kind: ColumnType = NUMBER) -> ChangeEvent:
    """Return an update of one of five rows; its version is the number."""
    schema = TableSchema((Column("k", NUMBER, False, 1), Column("v", kind)))
    key = {"k": number % 5}
    source = Source("test", "srv", "shop", "public", table)
    return ChangeEvent(
        source, Op.UPDATE, number * 10**9, key, None, {**key, "v": value}, Version(number), schema
    )


def batches_of(
    events: Sequence[ChangeEvent], generation: int, epoch: int, drivers: Any = ()
) -> tuple[StagedBatch, ...]:
    """Return the batches of an epoch, one for each shard that has events."""
    found = []
    for shard in range(SHARDS):
        those = [each for each in events if shard_of(each, SHARDS) == shard]
        if those:
            block = RecordBlock.of([(0, encode_event(each)) for each in those])
            content = b"".join(EventBlocks(RecordBlockCoder().encode).content([block]))
            delivery = Delivery(SINK, JOB, shard, SHARDS, generation, epoch, drivers)
            found.append(StagedBatch(delivery, len(those), len(content), 0, content=content))
    return tuple(found)


@dataclass(frozen=True)
class Record:
    """The part of a commit record that matters here. `parks`: whether its driver sends tables and parks them."""

    number: int
    generation: int
    drivers: tuple[DriverToken, ...]
    parks: bool
    batches: tuple[StagedBatch, ...] = ()
    parked: tuple[ParkedTable, ...] = ()


class Driver:
    """The program of one driver: its step, with its connections."""

    def __init__(self, target: SqlTarget, folder: Path, parks: bool, skip_refused: bool) -> None:
        self.parks, store = parks, store_of(folder)
        options: dict[str, Any] = {"skip_refused": skip_refused, "unavailable_seconds": 5}
        connector = connector_of(target)
        self.step: Any = (
            SendTablesFn(connector, SINK, store, max_parked_bytes=1 << 30, **options)
            if parks
            else SendBatchesFn(connector, SINK, store, **options)
        )
        self.refused: list[str] = []

    def publish(self, record: Record, nonce: str) -> tuple[ParkedTable, ...]:
        """Publish what a record names, in a new try of this driver; note the ids of refused events."""
        generation = record.drivers[-1].generation
        attempt = Attempt(JOB, generation, record.number + 1, nonce, record.drivers)
        self.refused = []
        with running_attempt(attempt):
            parked = record.parked
            if self.parks:
                parked = tuple(self.step.publish_or_park(record.batches, parked))
            for batch in record.batches:
                for each in self.step.process(batch):
                    if hasattr(each, "value"):
                        self.refused.append(each.value.event.id)
        return parked

    def files(self) -> Any:
        """Return the parked files of the step."""
        return self.step._files()


class Job(ParkedJob):
    """A checkpoint, its drivers and its target; the tables of the target are logs."""

    def __init__(self, database: Database, folder: Path, rng: Random, *, parks: bool = True) -> None:
        self.database, self.folder, self.rng = database, folder, rng
        self.crash, self.tries = CrashPoint(), 0
        self.target = SqlTarget(database.dsn, "log", shards=SHARDS)
        self.made: dict[str, list[ChangeEvent]] = {name: [] for name in TABLES}
        self.skipped: set[str] = set()
        self.driver = Driver(self.target, folder, parks, skip_refused=False)
        self.record = Record(1, 1, (DriverToken(1, "t1"),), parks)
        for name in TABLES:
            database.execute(create_log(TableName("public", name)))
            # The order in which the rows come.
            database.execute(f"alter table {name} add column place bigserial")
        database.execute(
            "create function refuse() returns trigger language plpgsql as "
            "$$ begin raise exception 'no' using errcode = '42501'; end $$"
        )

    def refuse(self, table: str) -> None:
        """Let the target refuse a table as if a right were missing."""
        self.correct(table)
        self.database.execute(
            f"create trigger refuse before insert on {table} for each statement execute function refuse()"
        )

    def correct(self, *tables: str) -> None:
        for each in tables:
            self.database.execute(f"drop trigger if exists refuse on {each}")

    def publish(self, record: Record, driver: Driver) -> tuple[ParkedTable, ...]:
        self.tries += 1
        return driver.publish(record, f"n{self.tries}")

    def epoch(self) -> None:
        """Publish, read new changes, and commit; a crash before it discards the try."""
        if self.rng.random() < 0.5:
            self.crash.start(self.rng.randrange(25), self.rng.random() < 0.5)
            with self.killed_somewhere(), contextlib.suppress(Crash, PenstockError):
                self.publish_again()
            self.crash.restart()
        try:
            parked = self.publish_again()
        except PenstockError:
            if self.driver.parks:
                raise
            # Without parked tables the epoch fails, and a person corrects the target.
            self.correct_all()
            parked = self.publish_again()
        number = self.record.number + 1
        batches = batches_of(self.changes(), self.record.generation, number, self.record.drivers)
        self.record = replace(self.record, number=number, batches=batches, parked=parked)

    def changes(self) -> list[ChangeEvent]:
        """Return the changes of an epoch."""
        new = []
        for name in TABLES:
            made = self.made[name]
            for _ in range(self.rng.randrange(4)):
                made.append(event_of(name, len(made) + 1))
                new.append(made[-1])
        return new

    @contextlib.contextmanager
    def killed_somewhere(self) -> Iterator[None]:
        """Let requests to the target and to the store be points where the process may die."""

        def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
            return lambda *given, **named: self.crash.request(lambda: function(*given, **named))

        with pytest.MonkeyPatch.context() as patch:
            guard(patch, guarded, SqlSender, "_send")
            guard(patch, guarded, TableSender, "_write_table", "shards_sent")
            guard(patch, guarded, Ledger, "create_entry", "take_over", "write")
            guard(patch, guarded, LocalStore, "create", "sync")
            yield

    def take_over(self, *, parks: bool) -> None:
        number = self.record.number + 1
        drivers = (*self.record.drivers, DriverToken(number, f"t{number}"))[-16:]
        self.driver = Driver(self.target, self.folder, parks, skip_refused=False)
        self.record = replace(self.record, number=number, generation=number, drivers=drivers, parks=parks)

    def skip(self, table: ParkedTable) -> None:
        attempt = Attempt(JOB, self.record.generation, self.record.number + 1, "n", self.record.drivers)
        for file in files_of(table):
            for part in self.driver.files().read(table, file, attempt):
                self.skipped |= {f"{each.source.table} {each.id}" for each in part.events}
        self.replace_parked(table)

    def correct_all(self) -> None:
        self.correct(*TABLES)

    def publish_again(self) -> tuple[ParkedTable, ...]:
        return self.publish(self.record, self.driver)

    def rows(self, table: str) -> list[str]:
        """Return the ids of the events in a log, in the order in which they came."""
        return [row[0] for row in self.database.rows(f"select event_id from {table} order by place")]

    def faults(self) -> list[str]:
        """Return what is lost, twice or out of order."""
        found = []
        for name in TABLES:
            rows, made = self.rows(name), {each.id: each for each in self.made[name]}
            if len(set(rows)) != len(rows):
                found.append(f"{name} has rows twice: {rows}")
            if lost := [each for each in made if each not in rows and f"{name} {each}" not in self.skipped]:
                found.append(f"{name} lacks {lost}")
            for key in range(5):
                numbers = [made[each].version for each in rows if (made[each].key or {})["k"] == key]
                if numbers != sorted(numbers):
                    found.append(f"{name} has the row {key} in the order {numbers}")
        return found
