"""Tables that PostgreSQL refuses are parked: each change is there once after the resume, whatever dies and when."""

from __future__ import annotations

import contextlib
import re
import threading
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.attempt import DriverToken
from penstock.errors import PenstockError
from penstock.io.sql.errors import SqlTargetError
from penstock.io.sql.ledger import Ledger
from penstock.io.sql.target import SqlTarget
from penstock.io.staging.delivery import FencedError, LedgerConflictError, TargetUnavailableError
from penstock.tables import TableSelection
from penstock_emulators.postgres import PostgresServer
from tests.integration.postgres.conftest import Database
from tests.integration.sql.parking_jobs import (
    SHARDS,
    TABLES,
    TEXT,
    Driver,
    Job,
    Record,
    batches_of,
    event_of,
)

pytestmark = pytest.mark.long(seconds=5)


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_lost_doubled_or_reordered_by_crashes_paused_drivers_and_both_ways_to_send(
    seed: int, server: PostgresServer, tmp_path: Path, campaign: Any
) -> None:
    for number in range(campaign.size(1, 40)):
        rng = campaign.random(f"sql parking {seed} {number}")
        database = Database(server)
        job = Job(database, tmp_path / f"{number}", rng, parks=rng.random() < 0.5)
        play(job)
        job.finish()
        assert not job.faults(), (seed, number)
        # Drivers that were paused have open connections.
        others = "where datname = current_database() and pid <> pg_backend_pid()"
        database.execute(f"select pg_terminate_backend(pid) from pg_stat_activity {others}")
        database.drop()


def play(job: Job) -> None:
    rng, old = job.rng, list[tuple[Record, Driver]]()
    for _ in range(40):
        roll, parked = rng.random(), job.record.parked
        if roll < 0.15:
            job.refuse(rng.choice(TABLES))
        elif roll < 0.3:
            job.correct(rng.choice(TABLES))
        elif roll < 0.45 and parked:
            job.resume(rng.choice(parked))
        elif roll < 0.48 and parked:
            job.skip(rng.choice(parked))
        elif roll < 0.65:
            # The driver before may be paused in the middle of the work on its record.
            old.append((job.record, job.driver))
            # A program that parks nothing is refused while a table is parked.
            job.take_over(parks=bool(parked) or rng.random() < 0.5)
        elif roll < 0.75 and old:
            record, driver = rng.choice(old)
            with contextlib.suppress(PenstockError):
                job.publish(record, driver)
        job.epoch()


def job_with(database: Database, folder: Path, *, parks: bool, epochs: int = 1) -> Job:
    """Return a job that has changes of each table to publish."""
    job = Job(database, folder, Random(1), parks=parks)
    job.rng.random = lambda: 0.9  # type: ignore[method-assign]  # no crash
    job.rng.randrange = lambda *bounds: 2  # type: ignore[method-assign, misc]
    for _ in range(epochs):
        job.epoch()
    return job


def test_a_refused_table_takes_no_other_table_with_it_and_gets_each_change_after_its_resume(
    database: Database, tmp_path: Path
) -> None:
    job = job_with(database, tmp_path, parks=True)
    job.refuse("a")
    job.epoch()
    job.epoch()
    (parked,) = job.record.parked
    assert (parked.source, parked.changes) == ("public.a", 4)
    assert "lacks a right" in parked.reason
    assert (len(job.rows("a")), len(job.rows("b"))) == (0, 4)
    job.correct("a")
    # It would take the newest changes, which come after those that wait.
    job.epoch()
    assert job.rows("a") == []
    job.finish()
    assert not job.faults()
    assert job.rows("a") == [each.id for each in job.made["a"]]


@pytest.mark.parametrize("skip_refused", [False, True])
def test_a_refused_row_is_a_dead_letter_and_parks_its_table_only_if_there_is_no_error_output(
    database: Database, tmp_path: Path, skip_refused: bool
) -> None:
    target = SqlTarget(database.dsn, "current", shards=SHARDS)
    driver = Driver(target, tmp_path, True, skip_refused)
    database.execute("create table a (k bigint primary key, v bigint)")
    good, bad, other = event_of("a", 1, 7), event_of("a", 2, "x", TEXT), event_of("b", 3, 7)
    record = record_of([good, bad, other])
    for nonce in ("n1", "n2"):  # a repeat reports the same
        parked = driver.publish(record, nonce)
        assert database.rows("select k, v from b") == [(3, 7)]
        if skip_refused:
            assert not parked
            assert driver.refused == [bad.id]
            assert database.rows("select k, v from a") == [(1, 7)]
        else:
            assert [each.source for each in parked] == ["public.a"]
            assert f"position {bad.id}" in parked[0].reason
            assert driver.refused == []
            assert database.rows("select k from a") == []


def record_of(events: list[Any]) -> Record:
    """Return a record that names the batches of some events."""
    drivers = (DriverToken(1, "t1"),)
    return Record(2, 1, drivers, True, batches_of(events, 1, 2, drivers))


@pytest.mark.parametrize("change", ["type", "foreign", "missing"])
def test_a_table_that_does_not_fit_is_parked_with_the_reason(
    database: Database, tmp_path: Path, change: str
) -> None:
    statement, reason = {
        "type": ("create table a (k bigint primary key, v integer[])", "42804|22P02"),
        "foreign": ("create table a (k bigint, v bigint)", "no primary key"),
        "missing": ("create table a (v bigint)", "key column|primary key"),
    }[change]
    database.execute(statement)
    driver = Driver(SqlTarget(database.dsn, "current", shards=SHARDS), tmp_path, True, False)
    (parked,) = driver.publish(record_of([event_of("a", 1, 7), event_of("b", 2, 7)]), "n1")
    assert parked.source == "public.a"
    assert re.search(reason, parked.reason), parked.reason
    assert database.rows("select k, v from b") == [(2, 7)]


def test_a_database_that_refuses_the_connection_or_is_away_parks_no_table(
    database: Database, tmp_path: Path
) -> None:
    record = record_of([event_of("a", 1), event_of("b", 2)])
    away = SqlTarget("host=localhost port=1 dbname=x", "log", shards=SHARDS)
    driver = Driver(away, tmp_path, True, False)
    driver.step._unavailable_seconds = 0
    with pytest.raises(TargetUnavailableError):
        driver.publish(record, "n1")
    denied = SqlTarget(f"{database.dsn} dbname=no_such_database", "log", shards=SHARDS)
    with pytest.raises(SqlTargetError, match="dbname"):
        Driver(denied, tmp_path, True, False).publish(record, "n1")


def test_a_ledger_of_another_copy_of_the_checkpoint_stops_the_pipeline(
    database: Database, tmp_path: Path
) -> None:
    job = job_with(database, tmp_path, parks=True, epochs=2)
    database.execute("update penstock_ledger set generation = 900, epoch = 900 where writer like '%table%'")
    with pytest.raises(LedgerConflictError):
        job.publish(job.record, job.driver)


@pytest.mark.parametrize("parks", [True, False], ids=["then tables", "then shards"])
def test_a_program_that_sends_in_the_other_way_leaves_out_what_the_target_has(
    database: Database, tmp_path: Path, parks: bool
) -> None:
    job = job_with(database, tmp_path, parks=not parks)
    job.publish(job.record, job.driver)  # and the driver dies before it commits
    job.take_over(parks=parks)
    job.finish()
    assert not job.faults()


@pytest.mark.parametrize("parks", [True, False], ids=["then tables", "then shards"])
def test_a_driver_that_was_paused_before_its_transaction_writes_nothing_after_one_that_sends_in_the_other_way(
    database: Database, tmp_path: Path, parks: bool
) -> None:
    job = job_with(database, tmp_path, parks=not parks)
    if parks is False:
        job.publish(job.record, job.driver)
        job.epoch()
    old = job.record, job.driver
    job.take_over(parks=parks)
    if parks:
        # Parked, its changes are in no entry of the ledger.
        job.refuse("a")
    job.epoch()
    job.correct("a")
    before = {table: job.rows(table) for table in TABLES}
    with pytest.raises(FencedError):
        job.publish(*old)
    assert {table: job.rows(table) for table in TABLES} == before
    job.finish()
    assert not job.faults()


@pytest.mark.parametrize("parks", [True, False], ids=["then tables", "then shards"])
def test_a_driver_waits_for_a_transaction_of_the_one_before_it(
    database: Database, tmp_path: Path, parks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction has begun before the take-over, so it ends, and its rows are not written again."""
    job = job_with(database, tmp_path, parks=not parks)
    old = job.record, job.driver
    reached, goes_on = threading.Event(), threading.Event()
    write = Ledger.write

    def held(self: Any, *arguments: Any) -> None:
        write(self, *arguments)
        if threading.current_thread() is not threading.main_thread() and not goes_on.is_set():
            reached.set()
            assert goes_on.wait(30)

    monkeypatch.setattr(Ledger, "write", held)
    failed: list[Exception] = []

    def run_old() -> None:
        try:
            job.publish(*old)
        except PenstockError as error:
            failed.append(error)

    paused = threading.Thread(target=run_old)
    paused.start()
    assert reached.wait(30)
    job.take_over(parks=parks)
    threading.Timer(1.0, goes_on.set).start()
    job.epoch()
    paused.join(30)
    monkeypatch.undo()
    job.finish()
    assert not job.faults()


def test_parked_changes_of_a_table_that_is_left_out_are_not_written(
    database: Database, tmp_path: Path
) -> None:
    job = job_with(database, tmp_path, parks=True)
    job.refuse("a")
    job.epoch()
    job.correct("a")
    job.take_over(parks=True)
    job.driver.step._selection = TableSelection(without_tables=("public.a",))
    job.resume(job.record.parked[0])
    job.epoch()
    assert not job.record.parked
    assert job.rows("a") == []


def test_a_driver_that_was_paused_before_it_sent_any_table_is_fenced_by_one_that_sends_shards(
    database: Database, tmp_path: Path
) -> None:
    """Only the newer one has told the database that it exists."""
    job = job_with(database, tmp_path, parks=True)
    old = job.record, job.driver
    job.take_over(parks=False)
    job.publish(job.record, job.driver)
    with pytest.raises(FencedError):
        job.publish(*old)
    job.finish()
    assert not job.faults()
