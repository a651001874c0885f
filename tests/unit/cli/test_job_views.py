"""What `penstock ui` and `penstock status` read from checkpoints and job files."""

from __future__ import annotations

import json
import subprocess
import tempfile
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli import job_views
from penstock.cli.commands import cli
from penstock.cli.job_views import WatchedJob, WatchedJobs
from penstock.compat import UTC
from penstock.io.change_streams.retention import retention
from penstock.pipelines.waiting_letters import waiting_letters
from penstock.runner.protocol import Coordinator
from penstock.runner.store import Checkpoint
from penstock.runner.store.drivers import Answers as RunnerAnswers
from penstock.runner.store.drivers import DriverNotes, Ended, Process
from penstock.telemetry.state import Condition
from penstock.ui.view import JobView, LetterGroup
from tests.support.played_jobs import dead_letters, job_file, lineage_log, play, state

PASSWORD = "correct-horse"


def by_name(*places: Path | str) -> dict[str, JobView]:
    return {each.name: each for each in WatchedJobs([str(place) for place in places]).all()}


def whole(folder: Path, file: Path | None = None) -> JobView:
    return WatchedJob(str(folder), "" if file is None else str(file)).look(whole=True)


def test_a_folder_is_searched_one_level_down(tmp_path: Path) -> None:
    for name in ("orders", "users"):
        play(tmp_path / name)
    play(tmp_path / "orders-replays" / "000001")
    (tmp_path / "notes.txt").write_text("")
    assert sorted(by_name(tmp_path)) == ["orders", "users"]
    assert sorted(by_name(tmp_path / "orders", tmp_path)) == ["orders", "users"]


def test_a_job_file_takes_the_place_of_its_checkpoint(tmp_path: Path) -> None:
    play(tmp_path / "checkpoints" / "orders")
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    file = job_file(jobs / "shop.yaml", tmp_path / "checkpoints" / "orders")
    (jobs / "compose.yaml").write_text("services: {}\n")
    for places in ((jobs, tmp_path / "checkpoints"), (tmp_path / "checkpoints", jobs), (file,)):
        (shop,) = by_name(*places).values()
        assert (shop.name, shop.job_file) == ("shop", str(file))


def test_a_look_at_a_job_leaves_no_folder_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    play(tmp_path / "checkpoint")
    file = job_file(tmp_path / "shop.yaml", tmp_path / "checkpoint")
    assert whole(tmp_path / "checkpoint", file).configuration
    assert list(temporary.iterdir()) == []


def test_what_cannot_be_read_is_a_row_and_the_others_are_shown(tmp_path: Path) -> None:
    play(tmp_path / "well")
    damaged = play(tmp_path / "damaged")
    newest = max(Path(damaged.folder, "records").iterdir())
    newest.write_bytes(newest.read_bytes()[:-1])
    (tmp_path / "alien").mkdir()
    (tmp_path / "alien" / "FORMAT").write_text("{}")
    file = tmp_path / "job.yaml"
    file.write_text("template: spanner-to-files\n")
    secret = f"s3://user:{PASSWORD}@bucket/x"
    found = by_name(tmp_path, tmp_path / "missing", secret)
    assert found["well"].condition.runs
    unreadable = {name: each.state.text for name, each in found.items() if name != "well"}
    assert sorted(unreadable) == ["alien", "damaged", "job", "missing", "x"]
    assert "was not written by penstock" in unreadable["alien"]
    assert "names no checkpoint_dir" in unreadable["job"]
    assert "there is no checkpoint" in unreadable["missing"]
    assert PASSWORD not in str(found)


def test_a_job_that_was_created_again_in_its_folder_begins_a_new_chart(tmp_path: Path) -> None:
    play(tmp_path / "orders")
    watched = WatchedJob(str(tmp_path / "orders"))
    before = watched.look(whole=False).samples
    for file in sorted((tmp_path / "orders").rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    play(tmp_path / "orders", pace=5)
    after = watched.look(whole=False).samples
    assert max(each.changes for each in after) < max(each.changes for each in before)


def test_the_chart_of_a_watched_job_is_longer_than_the_records_of_its_checkpoint(tmp_path: Path) -> None:
    checkpoint = play(tmp_path / "orders")
    watched = WatchedJob(str(tmp_path / "orders"))
    first = watched.look(whole=False).samples
    coordinator = Coordinator(checkpoint)
    coordinator.take_over()
    for number in range(8):
        coordinator.commit(coordinator.begin(), state(1e9, number))
    coordinator.sweep()
    # Of the nine new records the sweep has left eight.
    assert len(checkpoint.record_numbers()) == 8
    assert len(watched.look(whole=False).samples) == len(first) + 8


def test_a_driver_whose_process_has_ended_was_killed(tmp_path: Path) -> None:
    child = subprocess.Popen(["true"])
    process = replace(Process.current(), id=child.pid, began="1")
    child.wait(60)
    play(tmp_path / "orders", process=process)
    killed = whole(tmp_path / "orders")
    assert killed.condition is Condition.KILLED
    assert f"process {child.pid} on" in killed.state.text


def test_the_sinks_say_how_far_they_have_published(tmp_path: Path) -> None:
    play(tmp_path / "orders")
    orders = whole(tmp_path / "orders")
    (sink,) = orders.sinks
    assert (sink.step, sink.waiting) == ("WriteFiles/Files/Write/Publish/Publish", 1)
    assert sink.counts == {"published_files": 180}


def test_dead_letters_are_counted_by_reason_and_by_whether_a_replay_has_them(tmp_path: Path) -> None:
    play(tmp_path / "orders")
    dead_letters(tmp_path / "dead", "Orders", "too long", 3)
    dead_letters(tmp_path / "dead", "Orders", "too long", 2, file="2.jsonl")
    (tmp_path / "orders-replays").mkdir()
    taken = {"files": ["dead_letters/2026-01-31T12/2.jsonl"]}
    (tmp_path / "orders-replays" / "000001.json").write_text(json.dumps(taken))
    file = job_file(tmp_path / "shop.yaml", tmp_path / "orders", dead_letters=str(tmp_path / "dead"))
    shop = whole(tmp_path / "orders", file)
    assert shop.letters == (LetterGroup("Orders", 1, "too long", 5, 2),)
    # As the gauge of the driver: the hour in the name of a file that no replay has taken.
    assert shop.oldest_letter == datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp()
    assert any("dead-letters replay" in each.line for each in shop.commands)


def test_a_replayed_letter_is_not_the_oldest(tmp_path: Path) -> None:
    play(tmp_path / "orders")
    dead_letters(tmp_path / "dead", "Orders", "too long", 3)
    (tmp_path / "orders-replays").mkdir()
    taken = {"files": ["dead_letters/2026-01-31T12/1.jsonl"]}
    (tmp_path / "orders-replays" / "000001.json").write_text(json.dumps(taken))
    file = job_file(tmp_path / "shop.yaml", tmp_path / "orders", dead_letters=str(tmp_path / "dead"))
    assert whole(tmp_path / "orders", file).oldest_letter is None


def test_the_lag_of_a_table_comes_from_the_commits_of_the_checkpoint(tmp_path: Path) -> None:
    play(tmp_path / "orders", lag=90)
    (orders,) = whole(tmp_path / "orders").tables
    assert (orders.name, orders.lag) == ("Orders", pytest.approx(90, abs=0.01))


def test_the_page_has_the_gauges_that_the_driver_has_noted(tmp_path: Path) -> None:
    checkpoint = play(tmp_path / "orders")
    assert whole(tmp_path / "orders").answers == ()
    notes, generation = DriverNotes(checkpoint), checkpoint.last_record().generation
    for kept in (1.0, 2.0):
        gauges = [*retention("OrdersStream", 86400), *waiting_letters(["d/2026-01-31T12/1.jsonl"], ())]
        notes.note_answers(generation, RunnerAnswers(kept, tuple(map(asdict, gauges))))
    found = whole(tmp_path / "orders").answers
    assert [(each.at, each.about, each.shown) for each in found] == [
        (2.0, "OrdersStream", "24.0 h"),
        (2.0, "", "1"),
        (2.0, "", "2026-01-31 12:00:00Z"),
    ]


def test_a_folder_that_cannot_be_used_is_a_note_in_its_section(tmp_path: Path) -> None:
    play(tmp_path / "orders")
    lineage_log(tmp_path / "lineage", [])
    (tmp_path / "lineage" / "broken.jsonl").write_text("{")
    folders = {"dead_letters": str(tmp_path / "dead"), "lineage_log": str(tmp_path / "lineage")}
    shop = whole(tmp_path / "orders", job_file(tmp_path / "shop.yaml", tmp_path / "orders", **folders))
    assert shop.notes["letters"].startswith("Nothing was written to")
    assert "line 1 of broken.jsonl" in shop.notes["partitions"]
    assert shop.condition.runs


def test_only_the_newest_files_are_read_and_the_page_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_views, "MAX_FILES", 1)
    play(tmp_path / "orders")
    dead_letters(tmp_path / "dead", "Orders", "old", 3)
    dead_letters(tmp_path / "dead", "Orders", "new", 1, file="2.jsonl")
    file = job_file(tmp_path / "shop.yaml", tmp_path / "orders", dead_letters=str(tmp_path / "dead"))
    shop = whole(tmp_path / "orders", file)
    assert [each.reason for each in shop.letters] == ["new"]
    assert shop.notes["letters"].startswith("1 older files of")


def test_the_configuration_has_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play(tmp_path / "orders")
    secret = {"mask_key": "${env:MASK}", "mask_columns": {"Orders.State": "hash"}}
    file = job_file(tmp_path / "shop.yaml", tmp_path / "orders", **secret)  # type: ignore[arg-type]
    monkeypatch.setenv("MASK", PASSWORD * 4)
    shop = whole(tmp_path / "orders", file)
    assert shop.configuration["parameters"]["mask_key"] == "${env:MASK}"
    assert PASSWORD not in repr(shop)


def test_a_checkpoint_alone_says_what_it_does_not_know(tmp_path: Path) -> None:
    play(tmp_path / "orders", ended=Ended("FAILED", "no primary key"))
    orders = whole(tmp_path / "orders")
    assert "Give the job file" in orders.notes["positions"]
    assert "Give the job file" in orders.notes["configuration"]
    assert orders.reads == ("change stream OrdersStream",)
    file = tmp_path / "half.yaml"
    file.write_text(f"template: spanner-to-files\nrunner:\n  checkpoint_dir: {tmp_path / 'orders'}\n")
    assert "not complete" in whole(tmp_path / "orders", file).notes["configuration"]


def test_a_look_changes_nothing(tmp_path: Path) -> None:
    Checkpoint.open(str(tmp_path / "new"))
    play(tmp_path / "orders")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert by_name(tmp_path)["new"].condition is Condition.NOT_BEGUN
    whole(tmp_path / "orders")
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_port_in_use_is_one_message(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = CliRunner().invoke(cli, ["ui", str(tmp_path), "--port", port])
    assert done.exit_code == 2
    assert f"no page on 127.0.0.1:{port}" in done.output
