"""Signals of snapshots: names, conditions, pauses and stops, and where signals come from."""

from __future__ import annotations

import json

import pytest

from tests.integration.postgres.conftest import Database
from tests.integration.postgres.snapshot_readers import Snapshots, fill, signal
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def filled(database: Database) -> Database:
    return fill(database)


def test_names_without_a_table_and_tables_without_a_key_are_reported(filled):
    filled.execute("create table keyless (a int)")
    reader = Snapshots(filled)
    signal(filled, data_collections=["public.missing", "public.t", "public.(t|keyless)", "public.t"])
    reader.run_to_now()
    assert reader.statuses() == {
        "public.missing": "UNKNOWN_SCHEMA",
        "public.keyless": "NO_PRIMARY_KEY",
        "public.t": "SUCCEEDED",
    }
    assert len(reader.reads()) == 25


def test_an_empty_table_and_a_second_request_are_reported(filled):
    filled.execute("create table empty (id int primary key)")
    reader = Snapshots(filled)
    signal(filled, data_collections=["public.empty"])
    signal(filled, id_="2", data_collections=["public.t"])
    reader.run_to_now()
    assert reader.statuses() == {"public.empty": "EMPTY", "public.t": "SUCCEEDED"}
    assert [report["id"] for report in reader.reports if report["type"] == "COMPLETED"] == ["1", "2"]


def test_a_condition_holds_after_a_restart(filled):
    reader = Snapshots(filled, chunk_rows=2)
    condition = {"data-collection": "public.t", "filter": "id % 2 = 0"}
    signal(filled, data_collections=["public.t"], additional_conditions=[condition])
    reader.run_until("STARTED")
    reader.epochs.run(0.05, crash=True)
    reader.run_to_now()
    assert [int(row[0]) for row in reader.reads()] == list(range(2, 26, 2))


def test_a_pause_lasts_through_a_restart_until_a_resume(filled):
    reader = Snapshots(filled, chunk_rows=1)
    filled.execute("begin")
    signal(filled, data_collections=["public.t"])
    signal(filled, "pause-snapshot", "2")
    filled.execute("commit")
    reader.run_until("PAUSED")
    reader.epochs.run(0.2)
    reader.epochs.run(0.2, crash=True)  # the next epoch begins with new threads
    reader.epochs.run(0.2)
    assert len(reader.reads()) < 5
    signal(filled, "resume-snapshot", "3")
    reader.run_to_now()
    assert reader.types()[-3:] == ["RESUMED", "TABLE_SCAN_COMPLETED", "COMPLETED"]
    assert len(reader.reads()) == 25


def test_a_stop_ends_one_table_or_all(filled):
    filled.execute("create table u (id int primary key)", "insert into u select generate_series(1, 9)")
    reader = Snapshots(filled, chunk_rows=1, parallel_tables=1)
    filled.execute("begin")
    signal(filled, data_collections=["public.t", "public.u"])
    signal(filled, id_="2", data_collections=["public.u"])
    filled.execute("commit")
    reader.run_until("STARTED")
    signal(filled, "stop-snapshot", "3", data_collections=["public.t"])
    signal(filled, "stop-snapshot", "4")
    reader.run_to_now()
    assert reader.types()[-1] == "ABORTED"
    assert reader.statuses()["public.t"] == "STOPPED"
    assert reader.progress.snapshots == ()


def test_a_condition_that_the_server_refuses_ends_the_table_and_not_the_pipeline(filled):
    reader = Snapshots(filled)
    condition = {"data-collection": "public.t", "filter": "no_such_column > 1"}
    signal(filled, data_collections=["public.t"], additional_conditions=[condition])
    reader.run_to_now()
    assert reader.statuses() == {"public.t": "SQL_EXCEPTION"}
    filled.execute("insert into t values (99, 'after')")
    reader.run_to_now()
    assert reader.records[-1].new == ("99", "after")


def test_signals_come_from_a_file_and_a_folder_once(filled, tmp_path):
    from penstock.io.change_streams.incremental.signal_folder import write_signal

    file = tmp_path / "signals.jsonl"
    # Each epoch begins with new threads, as after a restart.
    options = {"signal_table": None, "signal_file": str(file), "signal_folder": str(tmp_path / "folder")}
    options["idle_stream_seconds"] = 0
    request = {"type": "execute-snapshot", "data": {"data-collections": ["public.t"]}}
    file.write_text("not a signal\n" + json.dumps(request) + "\n")
    reader = Snapshots(filled, **options)
    reader.run_until("COMPLETED")
    write_signal(tmp_path / "folder", "from-folder", request["type"], request["data"], 1)
    wait_until(lambda: reader.epochs.run(0.1) is None or reader.types().count("COMPLETED") == 2)
    reader.epochs.run(0.1, crash=True)
    reader.epochs.run(1.2)
    assert reader.types().count("STARTED") == 2
    assert reader.reports[-1]["id"] == "from-folder"
