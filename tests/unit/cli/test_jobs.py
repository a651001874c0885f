"""Commands for a job that runs elsewhere; its driver is played by the test."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from penstock.cli.ask import ask
from penstock.cli.commands import cli
from penstock.launch.run import ExitCode
from penstock.runner.protocol import Coordinator, EpochState, Residual
from penstock.runner.protocol.record import WatermarkKey
from penstock.runner.remote import RemoteJob
from penstock.runner.store import Checkpoint
from penstock.runner.store.drivers import DriverNotes, Ended
from penstock.runner.store.requests import Requests

PENDING = EpochState(residuals=(Residual("Read", "id", b"", 0, 0),))


def penstock(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


class Driver:
    """A driver of a checkpoint, which takes over at once."""

    def __init__(self, folder: Path) -> None:
        self.checkpoint = Checkpoint.open(str(folder))
        self.coordinator = Coordinator(self.checkpoint)
        self.coordinator.take_over()
        self.commit(PENDING)

    def commit(self, state: EpochState) -> None:
        self.coordinator.commit(self.coordinator.begin(), state)

    @property
    def generation(self) -> int:
        return self.coordinator.record.generation

    def end(self) -> None:
        Requests(self.checkpoint).delete(self.generation)

    def note_end(self, state: str, reason: str = "") -> None:
        DriverNotes(self.checkpoint).note_end(self.generation, Ended(state, reason))


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path / "checkpoint")


def asked(
    driver: Driver, what: str, *steps: Callable[[], Any], wait: float = 10.0
) -> tuple[ExitCode, list[str]]:
    """Ask a driver, which plays one of `steps` in each second; return the exit code and what was said."""
    said: list[str] = []
    now, played = [0.0], iter(steps)

    def pause(seconds: float) -> None:
        now[0] += seconds
        next(played, lambda: None)()

    job = RemoteJob.open(driver.checkpoint.folder)
    return ask(job, what, wait, said.append, lambda: now[0], pause), said


def test_a_stop_is_answered_when_the_driver_has_deleted_the_request(driver: Driver) -> None:
    code, said = asked(driver, "stop", lambda: driver.commit(PENDING), driver.end)
    assert code == ExitCode.DONE
    assert said[-1].startswith("stopped, with record 3; the same command")


def test_a_drain_is_answered_by_a_record_that_is_done(driver: Driver) -> None:
    done = EpochState(done=True, draining=True)
    code, said = asked(driver, "drain", lambda: driver.commit(done))
    assert (code, said[-1]) == (ExitCode.DONE, "drained, with record 3")
    assert asked(driver, "stop") == (ExitCode.DONE, ["the pipeline has already ended, with record 3"])


def test_a_driver_that_ends_without_a_drain_is_no_success(driver: Driver) -> None:
    code, said = asked(driver, "drain", driver.end)
    assert code == ExitCode.FAILED
    assert "before the pipeline was drained" in said[-1]


def test_a_driver_that_has_stopped_is_not_waited_for(driver: Driver) -> None:
    driver.note_end("STOPPED")
    code, said = asked(driver, "stop")
    assert (code, len(said)) == (ExitCode.DONE, 1)
    assert said[0].startswith("stopped, with record 2")
    assert asked(driver, "drain")[0] == ExitCode.FAILED
    assert penstock("status", driver.checkpoint.folder).output.count("state: stopped with a checkpoint") == 1


def test_a_job_that_failed_is_shown_with_its_reason_until_it_is_started_again(driver: Driver) -> None:
    driver.note_end("FAILED", "table visits has no primary key (epoch 25 failed)")
    failed = "failed: table visits has no primary key (epoch 25 failed)"
    page = Path(driver.checkpoint.folder, "..", "page.html")
    shown = penstock("status", driver.checkpoint.folder, "--html", str(page)).output
    assert f"state: {failed}\n" in shown
    assert failed in page.read_text()
    assert json.loads(penstock("status", driver.checkpoint.folder, "--json").output)["state"] == failed
    again = Driver(Path(driver.checkpoint.folder))
    assert "state: running" in penstock("status", again.checkpoint.folder).output


def test_the_driver_of_a_restarted_pipeline_is_asked_too(driver: Driver) -> None:
    again: list[Driver] = []

    def restart() -> None:
        again.append(Driver(Path(driver.checkpoint.folder)))

    def look() -> None:
        assert Requests(again[0].checkpoint).of(again[0].generation) == {"stop"}
        again[0].end()

    assert asked(driver, "stop", restart, look)[0] == ExitCode.DONE


def test_without_an_answer_the_request_stays_and_the_command_fails(driver: Driver) -> None:
    code, said = asked(driver, "stop", wait=3)
    assert code == ExitCode.FAILED
    assert "no answer in 3.0 s" in said[-1]
    assert Requests(driver.checkpoint).of(driver.generation) == {"stop"}
    assert asked(driver, "drain", wait=0)[0] == ExitCode.DONE


def test_a_checkpoint_without_a_record_and_no_checkpoint_are_refused(tmp_path: Path) -> None:
    Checkpoint.open(str(tmp_path / "new"))
    assert penstock("stop", str(tmp_path / "new")).exit_code == ExitCode.FAILED
    missing = penstock("drain", str(tmp_path / "missing"))
    assert missing.exit_code == ExitCode.CONFIGURATION
    assert "there is no checkpoint in" in missing.output
    assert not (tmp_path / "missing").exists()


def test_status_and_checkpoints_read_a_folder_and_write_nothing(driver: Driver) -> None:
    folder = Path(driver.checkpoint.folder)
    before = sorted(folder.rglob("*"))
    shown = penstock("status", str(folder)).output
    assert f"job: {driver.checkpoint.job}" in shown
    assert "state: running" in shown
    assert "1 epochs" in shown
    records = json.loads(penstock("checkpoints", "show", str(folder), "--json").output)["records"]
    assert [each["kind"] for each in records] == ["initial", "epoch"]
    lines = penstock("checkpoints", "show", str(folder)).output.splitlines()
    assert lines[1].split()[:3] == ["record", "kind", "committed"]
    assert lines[3].split()[:2] == ["2", "epoch"]
    assert sorted(folder.rglob("*")) == before


def test_a_job_file_names_the_checkpoint_also_if_it_is_incomplete(driver: Driver, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(f"template: spanner-to-files\nrunner:\n  checkpoint_dir: {driver.checkpoint.folder}\n")
    shown = json.loads(penstock("status", str(file), "--json").output)
    assert (shown["state"], shown["open_partitions"]) == ("running", None)
    file.write_text("template: spanner-to-files\n")
    assert "names no checkpoint_dir" in penstock("status", str(file)).output
    assert "cannot be read" in penstock("status", str(tmp_path / "other.yaml")).output


def test_the_rate_and_the_charts_come_from_the_records_that_the_checkpoint_has(
    driver: Driver, tmp_path: Path
) -> None:
    driver.commit(PENDING)
    page = tmp_path / "status.html"
    assert penstock("status", driver.checkpoint.folder, "--html", str(page)).exit_code == ExitCode.DONE
    # The state of these records has no watermark; their commits give a chart of the rate.
    assert page.read_text().count("<polyline") == 1


def test_a_page_that_cannot_be_written_is_one_message(driver: Driver, tmp_path: Path) -> None:
    shown = penstock("status", driver.checkpoint.folder, "--html", str(tmp_path / "none" / "page.html"))
    assert shown.exit_code == ExitCode.CONFIGURATION
    assert "page.html cannot be written: No such file" in shown.output


def test_the_page_has_the_lineage_and_needs_no_network(driver: Driver, tmp_path: Path) -> None:
    lineage = tmp_path / "lineage" / "partitions" / "2026-01-31T12"
    lineage.mkdir(parents=True)
    events = [
        {"time": "2026-01-31T12:00:00.000000000Z", "event": "announced", "partition": "<a>"},
        {
            "time": "2026-01-31T12:01:00.000000000Z",
            "event": "announced",
            "partition": "b",
            "parents": ["<a>"],
            "announced_by": "<a>",
        },
        {"time": "2026-01-31T12:01:00.000000000Z", "event": "closed", "partition": "<a>"},
    ]
    (lineage / "1.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    page = tmp_path / "page.html"
    done = penstock(
        *("status", driver.checkpoint.folder, "--html", str(page), "--lineage", str(tmp_path / "lineage"))
    )
    assert done.exit_code == 0, done.output
    text = page.read_text()
    assert "&lt;a&gt;: from 2026-01-31 12:00:00Z, live at the start, to 2026-01-31 12:01:00Z" in text
    assert 'class="edge"' in text
    assert "http://" not in text
    assert "<script" not in text


def test_wait_says_until_when_the_targets_are_complete_and_exits(driver: Driver) -> None:
    driver.commit(EpochState(watermarks={WatermarkKey.carried("To shop"): 1_000_000}))
    folder = driver.checkpoint.folder
    done = penstock("wait", folder, "--until", "1970-01-01T00:00:01Z", "--timeout", "0s")
    assert (done.exit_code, done.output) == (0, "complete until 1970-01-01T00:00:01.000Z\n")
    late = penstock("wait", folder, "--until", "1970-01-01T00:00:01.000000001Z", "--timeout", "0s")
    assert late.exit_code == ExitCode.FAILED
    assert late.stderr.splitlines() == [
        "waiting for 1970-01-01T00:00:01.000Z: To shop is complete until 1970-01-01T00:00:01.000Z",
        "not complete after 0.0 s: To shop is complete until 1970-01-01T00:00:01.000Z",
    ]


def test_wait_says_that_no_epoch_is_committed(driver: Driver) -> None:
    late = penstock("wait", driver.checkpoint.folder, "--until", "now", "--timeout", "0s")
    assert late.exit_code == ExitCode.FAILED
    assert late.stderr.splitlines()[-1] == "not complete after 0.0 s: no epoch is committed yet"


@pytest.mark.parametrize("text", ["yesterday", "2026-01-31", "2026-01-31T12:00:00"])
def test_wait_refuses_a_time_without_a_time_zone(driver: Driver, text: str) -> None:
    refused = penstock("wait", driver.checkpoint.folder, "--until", text)
    assert refused.exit_code == ExitCode.CONFIGURATION
    assert "RFC 3339 timestamp in UTC" in refused.stderr


@pytest.mark.parametrize("draining", [False, True])
def test_wait_does_not_take_a_job_that_has_ended_for_complete(driver: Driver, draining: bool) -> None:
    """The end of the input is Beam's highest watermark, but the source may have later changes."""
    marks = {WatermarkKey.carried("To shop"): 9_223_372_036_854_775_000}
    driver.commit(EpochState(watermarks=marks, done=True, draining=draining))
    ended = penstock("wait", driver.checkpoint.folder, "--until", "now")
    assert ended.exit_code == ExitCode.FAILED
    assert ended.stderr.splitlines()[-1].startswith("the job has ended")
