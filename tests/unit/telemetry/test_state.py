"""The state of a job in words, from its last record and the notes of its driver."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from penstock.runner.protocol import EpochState
from penstock.runner.store.drivers import Ended
from penstock.telemetry.state import Condition, job_state


def record(at: float = 100.0, *, done: bool = False, draining: bool = False) -> SimpleNamespace:
    return SimpleNamespace(committed_us=int(at * 1e6), state=EpochState(done=done, draining=draining))


def test_a_job_that_commits_runs_and_shows_what_it_was_asked_for() -> None:
    found = job_state(record(), ["stop"], 101.0)
    assert (found.condition, found.text) == (Condition.RUNNING, "running, stop requested")
    assert job_state(record(draining=True), [], 101.0).condition is Condition.DRAINING


def test_the_state_says_when_no_driver_seems_to_run() -> None:
    found = job_state(record(), [], 400.0)
    assert (found.condition, found.text) == (
        Condition.SILENT,
        "no commit for 5 min: killed, or in a long epoch",
    )


def test_a_driver_whose_process_is_gone_was_killed() -> None:
    found = job_state(record(), [], 101.0, gone="process 7 on host")
    assert found.condition is Condition.KILLED
    assert found.text.startswith("killed: process 7 on host no longer exists")


def test_a_driver_that_left_a_note_is_not_taken_for_killed() -> None:
    found = job_state(record(), [], 101.0, Ended("FAILED", "no primary key"), gone="process 7 on host")
    assert (found.condition, found.text) == (Condition.FAILED, "failed: no primary key")


@pytest.mark.parametrize(
    ("state", "condition"),
    [("STOPPED", Condition.STOPPED), ("CANCELLED", Condition.CANCELLED), ("UPDATED", Condition.STOPPED)],
)
def test_a_driver_that_ended_can_be_continued(state: str, condition: Condition) -> None:
    found = job_state(record(), [], 400.0, Ended(state))
    assert found.condition is condition
    assert "the same command that started it continues it" in found.text


def test_a_record_that_is_done_says_so_without_a_note() -> None:
    assert job_state(record(done=True), [], 400.0).text == "done"
    assert job_state(record(done=True, draining=True), [], 400.0).text == "drained"
    assert job_state(None, [], 400.0).condition is Condition.NOT_BEGUN
