"""An initial snapshot has the guarantees of YDB's initial scan, also over restarts of the reader.

Source: YDB documentation, "Change Data Capture", "Initial table scan": the original value of a row comes before each
change of the row, and a row that has changed is not scanned again.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from penstock.io.change_streams.incremental.signal_folder import write_signal
from penstock.io.postgres.events import EventConverter
from penstock.io.postgres.incremental.chunk_reader import ChunkReader
from penstock.io.postgres.incremental.held_read_view import HeldReadView
from penstock.io.postgres.record import ChangeKind
from penstock.tables import EVERY_TABLE
from penstock.transforms.formats.ydb import YdbFormat
from tests.integration.postgres.conftest import Database
from tests.integration.postgres.snapshot_readers import SIGNALS, Snapshots, contents
from tests.support.epochs import Epochs
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow
ROWS, KEYLESS = 30, 60
HOLDERS = (
    "select pid from pg_stat_activity where application_name like 'penstock snapshot %' and datname = '{}'"
)


@pytest.fixture
def original(database: Database) -> Database:
    database.execute(
        SIGNALS,
        # One row in a block: rows of a block are read at once.
        "create table t (id int primary key, v text, pad char(700) not null default '') with (fillfactor = 10)",
        f"insert into t select i, 'original' from generate_series(1, {ROWS}) i",
        "create table keyless (a int) with (fillfactor = 10)",
        f"insert into keyless select generate_series(1, {KEYLESS})",
    )
    database.publish("for table t, keyless, signals")
    database.execute("alter table keyless replica identity full", "alter table t replica identity full")
    return database


def scanning(database: Database, **options: Any) -> Snapshots:
    """Return a reader that each epoch restarts."""
    return Snapshots(database, snapshot="initial", chunk_rows=1, idle_stream_seconds=0, **options)


def values_by_key(reader: Snapshots) -> dict[int, list[str]]:
    """Return the values of each row as YDB's format has them, in their order; erased rows have None."""
    convert, format_ = EventConverter(), YdbFormat("feed", mode="NEW_IMAGE")
    found: dict[int, list[str]] = {}
    for record in reader.records:
        if record.table.name == "t":
            for line in (line for event in convert(record) for line in format_(event)):
                document = json.loads(line.value)
                found.setdefault(document["key"][0], []).append(document.get("newImage", {}).get("v"))
    return found


def scan_with_writers(reader: Snapshots) -> int:
    """Run epochs that crash or restart, while rows change that are read already and rows that are not."""
    number = 0
    while reader.progress.snapshots:
        # The first epoch takes the snapshot, before anything changes.
        reader.epochs.run(0.1, steps=1, crash=number % 3 == 1)
        reader.database.execute(
            f"update t set v = 'change {number}' where id % 9 = {number % 9}",
            f"delete from t where id = {2 + 5 * number}",
            f"insert into t values ({1000 + number}, 'new')",
            f"update keyless set a = a where a % 9 = {number % 9}",
        )
        number += 1
        assert number < 100, "the snapshot does not end"
    return number


@pytest.mark.long(seconds=5)
def test_the_original_value_of_each_row_comes_once_and_before_its_changes(original, caplog):
    reader = scanning(original)
    original.execute("update t set v = 'before the snapshot' where id = 1")
    with caplog.at_level(logging.WARNING):
        assert scan_with_writers(reader) > 2, "nothing changed while rows were read"
    assert "first snapshot of the database" not in caplog.text
    reader.run_to_now()
    values = values_by_key(reader)
    expected = {n: "original" if n > 1 else "before the snapshot" for n in range(1, ROWS + 1)}
    assert {key: found[0] for key, found in values.items() if key <= ROWS} == expected
    assert all(found.count("original") <= 1 for found in values.values())
    assert values[1].count("before the snapshot") == 1, "a change that the row contains was emitted"
    assert sum(len(found) > 1 for found in values.values()) > 5
    assert reader.replayed("t") == contents(original, "t")
    # Rows without a key cannot replace each other, so each must come exactly once.
    reads = [record.new for record in reader.records if record.kind is ChangeKind.READ]
    assert sum(len(row) == 1 for row in reads) == KEYLESS
    events = [event for record in reader.records for event in EventConverter()(record)]
    assert len({event.id for event in events}) == len(events), "two events have one id"


def test_a_snapshot_that_the_server_lost_is_finished_by_merging(original, caplog):
    reader = Snapshots(original, snapshot="initial", chunk_rows=1)
    reader.epochs.run(0.1, steps=1)
    ((holder,),) = original.rows(HOLDERS.format(original.name))
    original.execute(f"select pg_terminate_backend({holder})", "truncate keyless")
    wait_until(lambda: not original.rows(HOLDERS.format(original.name)))
    original.execute("update t set v = 'changed' where id % 2 = 0", "delete from t where id % 5 = 0")
    with caplog.at_level(logging.WARNING):
        reader.epochs.run(0.1, crash=True)  # the next epoch begins with a new reader
        reader.run_to_now()
    assert "the server does not hold it any more" in caplog.text
    assert reader.replayed("t") == contents(original, "t")


@pytest.mark.long(seconds=5)
@pytest.mark.parametrize(
    "change",
    [
        "alter table t alter v type varchar(40)",
        pytest.param("alter table t rename v to w", marks=pytest.mark.campaign),
        pytest.param("truncate t", marks=pytest.mark.campaign),
    ],
)
def test_a_table_that_is_altered_during_the_initial_snapshot_loses_no_row(original, change, caplog):
    reader = scanning(original)
    reader.epochs.run(0.1, steps=1)
    original.execute(change, "insert into t values (2000, 'after')")
    with caplog.at_level(logging.WARNING):
        reader.run_to_now()
    assert "first snapshot of the database" in caplog.text
    found = [(int(row["id"]), row.get("w", row.get("v"))) for row in reader.replayed("t").values()]
    assert sorted(found) == sorted(row[:2] for row in original.rows("select * from t"))


def test_the_server_releases_the_snapshot_when_its_rows_are_in_a_checkpoint(original):
    reader = Snapshots(original, snapshot="initial")
    reader.run_until("COMPLETED")
    original.execute("insert into t values (2000, 'after')")
    reader.run_to_now()
    wait_until(
        lambda: reader.epochs.run(0.05) is None or not original.rows(HOLDERS.format(original.name)),
        "the server still holds the snapshot",
    )


def test_a_table_without_rows_is_not_read_unless_its_rows_went_after_the_snapshot(original: Database) -> None:
    source = original.source(snapshot="initial")
    connection: Any = source._settings.connection
    original.execute("create table rewritten (a int)", "insert into rewritten values (1)")
    original.execute("alter publication changes add table rewritten")
    held = HeldReadView(source.stream, connection, None)
    held.begin(lambda: False)
    reader = ChunkReader(source.stream, connection, EVERY_TABLE, held, stopped=lambda: False)
    try:
        original.execute("truncate rewritten")
        blocks = reader.blocks(["public.rewritten", "public.signals", "public.t", "public.gone"])
    finally:
        held.release()
        reader.close()
    ((_, rewritten, _), (_, signals, _), (_, t, _), (_, gone, _)) = blocks
    assert (rewritten, signals, gone) == (1, 0, 1)
    assert t >= ROWS


def scanning_with_signals(database: Database, folder: Path) -> Snapshots:
    """Return a reader that has planned its ranges and read none, and takes signals from a folder."""
    reader = scanning(database, signal_table=None, signal_folder=str(folder))
    wait_until(
        lambda: not reader.epochs.residuals[0][0].can_progress or reader.epochs.run(0.1, steps=1) is None
    )
    return reader


def run_until(reader: Snapshots, report: str) -> None:
    wait_until(lambda: report in reader.types() or reader.epochs.run(0.1, steps=1) is None)


@pytest.mark.long(seconds=10)
def test_a_paused_initial_snapshot_does_not_hold_changes_back(original: Database, tmp_path: Path) -> None:
    reader = scanning_with_signals(original, tmp_path)
    write_signal(tmp_path, "pause", "pause-snapshot", {}, 1)
    run_until(reader, "PAUSED")
    original.execute("insert into t values (2000, 'after')", "delete from t where id = 1")
    reader.epochs.run_until(original.clock())
    assert reader.progress.scan("public.t") is not None, "the rows of the table are read already"
    changed = [record.new for record in reader.records if record.kind is ChangeKind.INSERT]
    assert [row[0] for row in changed] == ["2000"]
    wait_until(lambda: reader.epochs.run(0.05) is None or not original.rows(HOLDERS.format(original.name)))
    write_signal(tmp_path, "resume", "resume-snapshot", {}, 2)
    reader.run_until("COMPLETED")
    assert reader.replayed("t") == contents(original, "t")
    # No row without a key comes twice.
    assert len(reader.reads("keyless")) == KEYLESS


def test_a_stop_ends_one_table_of_an_initial_snapshot(original: Database, tmp_path: Path) -> None:
    reader = scanning_with_signals(original, tmp_path)
    write_signal(tmp_path, "stop", "stop-snapshot", {"data-collections": ["public.t"]}, 1)
    run_until(reader, "COMPLETED")
    assert reader.statuses() == {
        "public.t": "STOPPED",
        "public.keyless": "SUCCEEDED",
        "public.signals": "EMPTY",
    }
    assert len(reader.reads("t")) < ROWS
    original.execute("insert into t values (2000, 'after')")
    reader.run_to_now()
    assert reader.records[-1].new[0] == "2000"


def test_the_server_does_not_hold_the_snapshot_of_a_preview_that_ended(original: Database) -> None:
    source = original.source(snapshot="initial", chunk_rows=1, idle_stream_seconds=0)
    Epochs(source.for_preview()).run(0.1, steps=1)
    holders = HOLDERS.format(original.name)
    assert original.rows(holders)
    wait_until(lambda: not original.rows(holders), "the snapshot is still held")
