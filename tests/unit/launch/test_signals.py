"""Signals become one request to stop. Tests that change the handlers of a process run in a separate process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

from penstock.launch.signals import BURST_SECONDS, StopSignals


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def aborts() -> list[str]:
    return []


@pytest.fixture
def signals(clock: Clock, aborts: list[str]) -> Iterator[StopSignals]:
    with StopSignals(lambda: aborts.append("abort"), clock).installed() as installed:
        yield installed


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_each_stop_signal_requests_a_stop(
    signals: StopSignals, aborts: list[str], number: signal.Signals
) -> None:
    assert not signals.requested
    send(number)
    assert signals.requested
    assert aborts == []


def test_signals_at_one_moment_are_one_request(signals: StopSignals, aborts: list[str], clock: Clock) -> None:
    for _ in range(3):
        send(signal.SIGTERM)
        clock.seconds += BURST_SECONDS / 4
    assert aborts == []


def test_a_signal_after_the_burst_aborts(signals: StopSignals, aborts: list[str], clock: Clock) -> None:
    send(signal.SIGINT)
    clock.seconds = BURST_SECONDS
    send(signal.SIGINT)
    assert aborts == ["abort"]


def test_while_nothing_runs_only_the_first_signal_of_a_burst_interrupts(signals: StopSignals) -> None:
    signals.nothing_runs = True
    with pytest.raises(KeyboardInterrupt):
        send(signal.SIGTERM)
    send(signal.SIGTERM)  # comes while the first one is handled


def test_previous_handlers_are_restored() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with StopSignals(lambda: None).installed():
        assert signal.getsignal(signal.SIGHUP) != before[2]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def run(program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(program)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_a_process_that_ignores_hangups_keeps_ignoring_them() -> None:
    done = run(
        """
        import os, signal
        from penstock.launch.signals import StopSignals, exit_at_once
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
        exit_at_once()
        with StopSignals(lambda: None).installed() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            print(signals.requested)
        """
    )
    assert done.stdout == "False\n"


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_before_the_start_ends_the_process_without_a_traceback(number: str) -> None:
    done = run(
        f"""
        import os, signal
        from penstock.launch.signals import exit_at_once
        exit_at_once()
        os.kill(os.getpid(), signal.{number})
        print("too far")
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_late_second_signal_ends_the_process_and_says_how_to_continue() -> None:
    done = run(
        """
        import os, signal
        from penstock.launch.reporter import Reporter, Style
        from penstock.launch.run import Continuation, _Session
        from penstock.launch.signals import StopSignals
        from penstock.launch.streams import message_stream
        session = _Session(Reporter(Style.LINE, message_stream()), Continuation("to continue: x", "x"), debug=False)
        now = [0.0]
        with StopSignals(session.abort, lambda: now[0]).installed():
            os.kill(os.getpid(), signal.SIGINT)
            print("still running", flush=True)
            now[0] = 5.0
            os.kill(os.getpid(), signal.SIGINT)
            print("too far", flush=True)
        """
    )
    assert (done.returncode, done.stdout) == (130, "still running\n")
    assert "to continue: x" in done.stderr
