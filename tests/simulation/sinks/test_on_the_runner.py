"""Post-commit steps on the real driver and tasks, in this process: rows that are sent, and steps on the driver."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.testing.test_stream import TestStream

from penstock.errors import UsageError
from penstock.event import ChangeEvent
from penstock.io.staging import (
    Delivery,
    EventBatch,
    LedgerConflictError,
    LedgerEntry,
    Refusal,
    RefusalError,
    RowRefusedError,
    SendAfterCommit,
    Sent,
    StagedBatch,
    TooManyDeadLettersError,
    is_delivered,
)
from penstock.io.staging.options import SendOptions
from penstock.publish import PublishOnDriver
from penstock.runner.protocol import EpochFailedError
from penstock.runner.protocol.record import CommitRecord
from tests.simulation.sinks.epochs import event_of
from tests.simulation.stream import run_stream

EVENTS = [event_of(number, number % 5) for number in range(30)]
POISONED = 7


@dataclass(frozen=True)
class SqliteTarget:
    """A database file as a target, with its ledger in the same transaction."""

    path: str
    refuses: int | None = None

    @property
    def name(self) -> str:
        return "SQLite"

    def check(self) -> None:
        with contextlib.closing(sqlite3.connect(self.path)) as database:
            database.execute("create table if not exists rows (key integer, number integer)")
            database.execute("create table if not exists ledger (writer text primary key, entry text)")

    def open(self, *, skip_refused: bool) -> SqliteSender:
        return SqliteSender(self, skip_refused)

    def rows(self) -> list[tuple[int, int]]:
        with contextlib.closing(sqlite3.connect(self.path)) as database:
            return list(database.execute("select key, number from rows order by rowid"))


@dataclass
class SqliteSender:
    target: SqliteTarget
    skip_refused: bool

    def __post_init__(self) -> None:
        self.database = sqlite3.connect(self.target.path)

    def send(self, delivery: Delivery, events: EventBatch) -> Sent:
        with self.database as transaction:
            found = transaction.execute(
                "select entry from ledger where writer = ?", [delivery.writer]
            ).fetchone()
            entry, stored = json.loads(found[0]) if found else (None, [])
            if is_delivered(entry and LedgerEntry(*entry), delivery):
                return Sent(tuple(Refusal(*each) for each in stored))
            refused = [
                Refusal(index, "poison")
                for index, each in enumerate(events)
                if each.after["n"] == self.target.refuses
            ]
            if refused and not self.skip_refused:
                raise RefusalError(refused[0])
            rows = [
                (each.key["k"], each.after["n"]) for each in events if each.after["n"] != self.target.refuses
            ]
            transaction.executemany("insert into rows values (?, ?)", rows)
            stored = [(each.index, each.reason) for each in refused]
            transaction.execute(
                "insert or replace into ledger values (?, ?)",
                [delivery.writer, json.dumps([delivery.position, stored])],
            )
        return Sent(tuple(refused))

    def close(self) -> None:
        self.database.close()


@pytest.fixture
def target(tmp_path: Path) -> SqliteTarget:
    target = SqliteTarget(str(tmp_path / "target.db"))
    target.check()
    return target


class Killed(BaseException):
    pass


def run_with_a_kill_after_each_commit(folder: Path, build: Any) -> None:
    """Run a pipeline to its end; each driver dies after its first commit of an epoch."""

    def die(record: CommitRecord, home: Path) -> None:
        raise Killed

    while True:
        with contextlib.suppress(Killed):
            return run_stream(build, folder=folder, on_commit=die)


def by_key(rows: Sequence[tuple[int, int]]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for key, number in rows:
        found.setdefault(key, []).append(number)
    return found


EXPECTED = by_key([(event.key["k"], event.after["n"]) for event in EVENTS])


def test_each_event_is_sent_once_and_in_order_if_every_driver_dies_after_its_first_commit(target, tmp_path):
    run_with_a_kill_after_each_commit(
        tmp_path,
        lambda p: (
            p | beam.Create(EVENTS, reshuffle=False) | SendAfterCommit(target, options=SendOptions(shards=3))
        ),
    )
    assert by_key(target.rows()) == EXPECTED


def test_a_checkpoint_and_its_copy_do_not_both_write_to_one_target(target, tmp_path):
    """Both continue with the same record, so both drivers have the same generation and the same epochs."""

    def build(p: beam.Pipeline) -> None:
        stream = TestStream()
        for begin in range(0, len(EVENTS), 5):
            stream = stream.add_elements(EVENTS[begin : begin + 5])
        _ = (
            p
            | stream.advance_watermark_to_infinity()
            | SendAfterCommit(target, options=SendOptions(shards=1))
        )

    run_stream(build, folder=tmp_path / "original", stop=lambda record: record.number >= 3)
    shutil.copytree(tmp_path / "original", tmp_path / "copy")
    run_stream(build, folder=tmp_path / "copy")
    with pytest.raises(EpochFailedError, match="copied or restored") as failed:
        run_stream(build, folder=tmp_path / "original")
    assert isinstance(failed.value.__cause__, LedgerConflictError)
    assert by_key(target.rows()) == EXPECTED


def test_a_batch_that_is_too_large_for_its_publication_is_staged_in_the_checkpoint(
    target, tmp_path, monkeypatch
):
    monkeypatch.setattr("penstock.io.staging.roll_batches.INLINE_BYTES", 0)
    staged: list[Path] = []
    run_stream(
        lambda p: (
            p | beam.Create(EVENTS, reshuffle=False) | SendAfterCommit(target, options=SendOptions(shards=3))
        ),
        folder=tmp_path,
        on_commit=lambda record, folder: staged.extend(folder.glob("checkpoint/staging/.*/*/*/g*")),
    )
    assert staged
    assert by_key(target.rows()) == EXPECTED


def test_a_refused_row_goes_to_the_error_output_and_the_rest_of_its_batch_is_delivered(target, tmp_path):
    target = SqliteTarget(target.path, refuses=POISONED)
    found: list[ChangeEvent] = []

    def build(p: beam.Pipeline) -> None:
        events = p | beam.Create(EVENTS, reshuffle=False)
        _, refused = events | SendAfterCommit(target, options=SendOptions(shards=3)).with_exception_handling()
        _ = refused | "Publish" >> PublishOnDriver(_Append(str(tmp_path / "refused")))

    run_with_a_kill_after_each_commit(tmp_path, build)
    assert by_key(target.rows()) == {
        k: [n for n in numbers if n != POISONED] for k, numbers in EXPECTED.items()
    }
    assert set((tmp_path / "refused").read_text().splitlines()) == {f"{POISONED} SQLite poison"}
    assert not found


def test_without_an_error_output_a_refused_row_stops_the_pipeline_with_its_position(target, tmp_path):
    target = SqliteTarget(target.path, refuses=POISONED)
    with pytest.raises(
        Exception, match=rf"SQLite refuses the UPDATE of a row of t at position {POISONED}-"
    ) as failed:
        run_stream(
            lambda p: (
                p | beam.Create(EVENTS, reshuffle=False) | SendAfterCommit(target, options=SendOptions())
            ),
            folder=tmp_path,
        )
    assert isinstance(failed.value.__cause__, RowRefusedError)
    assert all(number != POISONED for _, number in target.rows())


def test_max_dead_letters_stops_the_pipeline(target, tmp_path):
    target = SqliteTarget(target.path, refuses=POISONED)

    def build(p: beam.Pipeline) -> None:
        events = p | beam.Create(EVENTS, reshuffle=False)
        _ = events | SendAfterCommit(target, options=SendOptions()).with_exception_handling(
            max_dead_letters=1
        )

    with pytest.raises(Exception, match="max_dead_letters=1") as failed:
        run_stream(build, folder=tmp_path)
    assert isinstance(failed.value.__cause__, TooManyDeadLettersError)


@dataclass(frozen=True)
class _Append:
    """Appends a line for each call to a file: what it was called with."""

    path: str

    def __call__(self, publications: Sequence[Any]) -> None:
        with open(self.path, "a") as file:
            for each in publications:
                file.write(f"{each.event.after['n']} {each.target} {each.reason}\n")


@dataclass(frozen=True)
class _Log:
    """Writes the numbers of each call as one line."""

    path: str

    def __call__(self, publications: Sequence[int]) -> None:
        with open(self.path, "a") as file:
            file.write(json.dumps(sorted(publications)) + "\n")


def test_a_step_on_the_driver_gets_all_publications_of_a_record_at_once_and_again_until_the_next_commit(
    tmp_path,
):
    calls = tmp_path / "calls"
    seen_at_commit: list[bool] = []

    def note(record: CommitRecord, folder: Path) -> None:
        seen_at_commit.append(calls.exists())
        if record.state.publications:
            raise Killed

    def build(p: beam.Pipeline) -> None:
        _ = p | beam.Create(range(8), reshuffle=False) | PublishOnDriver(_Log(str(calls)))

    with contextlib.suppress(Killed):
        run_stream(build, folder=tmp_path, on_commit=note)
    # The commit that names the publications comes first.
    assert seen_at_commit[-1] is False
    run_stream(build, folder=tmp_path)
    assert calls.read_text().splitlines() == ["[0, 1, 2, 3, 4, 5, 6, 7]"]


def test_a_failed_step_on_the_driver_fails_the_epoch(tmp_path):
    def build(p: beam.Pipeline) -> None:
        _ = p | beam.Create([1], reshuffle=False) | PublishOnDriver(_fail)

    with pytest.raises(Exception, match="the table is locked"):
        run_stream(build, folder=tmp_path)


def _fail(publications: Sequence[int]) -> None:
    raise RuntimeError("the table is locked")


def test_without_a_place_for_staged_files_the_error_says_what_to_do(target):
    from penstock.io.staging.roll_batches import staging_store

    with pytest.raises(UsageError, match="staging="):
        staging_store(None)


def test_a_batch_survives_its_coder():
    from penstock.io.staging.delivery_coders import StagedBatchCoder

    batch = StagedBatch(Delivery("s", "j", 1, 2, 3, 4), 1, 2, 3, "out", "name", b"\x00")
    assert StagedBatchCoder().decode(StagedBatchCoder().encode(batch)) == batch
