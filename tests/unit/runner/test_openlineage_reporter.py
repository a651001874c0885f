"""A run is reported at its start, now and then, and at its end; the driver never waits for it on the way."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from penstock.runner.openlineage import run_reporter
from penstock.runner.openlineage.run_reporter import RunReporter
from tests.support.waiting import wait_until


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Server:
    """Keeps the events that it gets. It answers when `answers` is set, and refuses the kinds in `refused`."""

    def __init__(self, *refused: str) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.asked, self.answers = threading.Event(), threading.Event()
        self.answers.set()
        self._refused = refused

    def __call__(self, kind: str, at: float, error: str) -> None:
        self.asked.set()
        self.answers.wait()
        if kind in self._refused:
            raise ConnectionError("refused: api-key-hunter2")
        self.events.append((kind, at, error))

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, *_ in self.events]


def reporter(server: Server, clock: Clock, **options: Any) -> RunReporter:
    return RunReporter(server, seconds=60, now=clock, clock=clock, **options)


def test_progress_is_reported_at_most_once_in_the_interval() -> None:
    server, clock = Server(), Clock()
    reports = reporter(server, clock)
    reports.started()
    for _ in range(200):
        clock.now += 1
        # The event before is sent: otherwise this one is left out.
        wait_until(reports.is_idle)
        reports.committed()
    reports.ended("DRAINED")
    assert server.events == [
        ("START", 100, ""),
        ("RUNNING", 160, ""),
        ("RUNNING", 220, ""),
        ("RUNNING", 280, ""),
        ("COMPLETE", 300, ""),
    ]


@pytest.mark.parametrize(
    ("state", "kind", "reason"),
    [
        ("DONE", "COMPLETE", ""),
        ("DRAINED", "COMPLETE", ""),
        ("STOPPED", "ABORT", ""),
        ("CANCELLED", "ABORT", ""),
        ("FAILED", "FAIL", "no space"),
    ],
)
def test_each_end_has_its_event(state: str, kind: str, reason: str) -> None:
    server = Server()
    reports = reporter(server, Clock())
    reports.started()
    # A cancelled pipeline has an error too, of the Spark job that was cancelled.
    reports.ended(state, "no space" if state in ("FAILED", "CANCELLED") else "")
    assert server.events[-1] == (kind, 100, reason)


def test_commits_do_not_wait_for_a_server_that_is_silent_and_their_events_do_not_pile_up() -> None:
    server, clock = Server(), Clock()
    server.answers.clear()
    reports = reporter(server, clock)
    reports.started()
    assert server.asked.wait(120)
    for _ in range(100):
        clock.now += 60
        reports.committed()
    server.answers.set()
    reports.ended("DONE")
    assert server.kinds == ["START", "COMPLETE"]


def test_the_end_of_a_pipeline_waits_for_a_silent_server_only_for_some_seconds(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(run_reporter, "_LAST_SECONDS", 0.0)
    server = Server()
    server.answers.clear()
    reports = reporter(server, Clock())
    reports.started()
    reports.ended("DONE")
    assert "not sent in time" in caplog.text
    server.answers.set()


def test_events_that_cannot_be_sent_are_dropped_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    server, clock = Server("START", "RUNNING"), Clock()
    closed = threading.Event()
    reports = reporter(server, clock, close=closed.set)
    reports.started()
    for _ in range(3):
        clock.now += 60
        wait_until(reports.is_idle)
        reports.committed()
    reports.ended("DONE")
    assert server.kinds == ["COMPLETE"]
    assert closed.is_set()
    (warning,) = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert "ConnectionError" in warning.getMessage()
    assert "hunter2" not in warning.getMessage()
