"""A Spanner emulator with the database of a shop, and pipelines in separate processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock_emulators.oracle.kill import session_members
from penstock_emulators.simulated_spanner import SimulatedSpanner
from penstock_emulators.spanner import SpannerEmulator

PROJECT, INSTANCE, DATABASE, STREAM = "my-project", "main", "shop", "OrdersStream"
DDL = [
    "CREATE TABLE Orders (OrderId INT64 NOT NULL, State STRING(MAX)) PRIMARY KEY (OrderId)",
    f"CREATE CHANGE STREAM {STREAM} FOR ALL OPTIONS (value_capture_type = 'OLD_AND_NEW_VALUES')",
]
PATIENCE_SECONDS = 180


Emulator = SpannerEmulator | SimulatedSpanner


@pytest.fixture(scope="module")
def emulator(request: pytest.FixtureRequest) -> Iterator[Emulator]:
    """Google's emulator, or the simulated service if the test asks for it, with the shop's database."""
    service: Emulator
    if getattr(request, "param", "google") == "google":
        service = SpannerEmulator.start(token_life_seconds=5)
    else:
        service = SimulatedSpanner.start(churn_seconds=2, seed=1)
    with service as running:
        running.create_database(PROJECT, INSTANCE, DATABASE, DDL)
        yield running


@dataclass(frozen=True, slots=True)
class Shop:
    """The shop's own program, which is independent of pipelines."""

    database: Any

    def order(self, ids: range) -> None:
        """Commit one transaction that inserts an open order for each id."""
        with self.database.batch() as batch:
            batch.insert("Orders", ("OrderId", "State"), [(each, "open") for each in ids])

    def cancel(self, ids: range) -> None:
        """Commit one transaction that deletes the orders."""
        from google.cloud.spanner import KeySet

        with self.database.batch() as batch:
            batch.delete("Orders", KeySet(keys=[[each] for each in ids]))


@pytest.fixture(scope="module")
def shop(emulator: Emulator) -> Iterator[Shop]:
    """The shop, through an ordinary client."""
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import spanner

    with pytest.MonkeyPatch.context() as environment:
        for name, value in emulator.environment().items():
            environment.setenv(name, value)
        client = spanner.Client(
            project=PROJECT, credentials=AnonymousCredentials(), disable_builtin_metrics=True
        )
        yield Shop(client.instance(INSTANCE).database(DATABASE))


class Program:
    """A program in a new session, with its output in a file; with `piped`, standard error is a pipe instead."""

    def __init__(
        self, command: list[str], environment: dict[str, str], folder: Path, piped: bool = False
    ) -> None:
        self._output = folder / f"program-{time.monotonic_ns()}.log"
        # Children inherit that a signal is ignored: under `nohup make test` a pipeline would not end by SIGHUP.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with self._output.open("wb") as out:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.PIPE if piped else subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self._output.read_text("utf-8", errors="replace")

    def events(self, name: str) -> list[dict[str, Any]]:
        """The JSON events of that name, so far."""
        lines = [json.loads(line) for line in self.output.splitlines() if line.startswith('{"time"')]
        return [event for event in lines if event["event"] == name]

    def until(self, met: Callable[[], bool]) -> None:
        """Wait until `met` is true; fail if the program ends before."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not met():
            assert self.process.poll() is None, f"ended with {self.process.returncode}\n{self.output}"
            assert time.monotonic() < deadline, f"not within {PATIENCE_SECONDS} s\n{self.output}"
            time.sleep(0.1)

    def interrupt(self, *numbers: signal.Signals) -> int:
        """Send signals to the program at one moment, as a terminal or a supervisor does; return its exit code."""
        for number in numbers:
            self.process.send_signal(number)
        return self.process.wait(PATIENCE_SECONDS)

    def kill(self) -> None:
        """End the whole group at once; harmless when it has ended. The JVM, a group of its own, notices it."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(60)

    def end(self) -> None:
        """End the whole session, also what the program has left behind."""
        self.kill()
        while members := session_members(self.process.pid):
            for member in members:
                with suppress(ProcessLookupError):
                    os.kill(member, signal.SIGKILL)
            time.sleep(0.02)


@pytest.fixture
def start(emulator: Emulator, tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Starts programs, and kills those that still run after the test."""
    started: list[Program] = []

    def start_(*command: str, piped: bool = False) -> Program:
        started.append(Program(list(command), emulator.environment(), tmp_path, piped))
        return started[-1]

    yield start_
    for program in started:
        program.end()


def lines_below(folder: Path) -> list[dict[str, Any]]:
    """All published lines below `folder`, in the order of file names and lines."""
    files = sorted(file for file in folder.glob("*/*/*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]


@pytest.fixture
def published() -> Callable[[Path], list[dict[str, Any]]]:
    """Returns the lines that are published below a folder."""
    return lines_below


@pytest.fixture
def penstock() -> list[str]:
    """Return the path of the `penstock` command in this environment."""
    return [sys.executable, "-m", "penstock.cli.main"]
