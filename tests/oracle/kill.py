"""Running a pipeline and killing it from outside: the driver, its JVM and every Python worker.

A child gets a session of its own. Whatever it starts stays in that session, also the Python daemon of Spark,
which makes a process group of its own; so `Run.kill` finds its victims by session and sends SIGKILL, and
nothing in them gets to run another instruction.

Moments are watched for from outside too: no code of the pipeline takes part.

    kills = campaign(command, moments=[FileAppears(checkpoint / "records"), After(0.7)], log=log)
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

POLL_SECONDS = 0.005


class Moment(Protocol):
    """When to kill. `arm` is called when the child starts, `is_now` every few milliseconds until it is true."""

    def arm(self) -> None: ...

    def is_now(self) -> bool: ...


@dataclass
class After:
    """So many seconds after the start of the child."""

    seconds: float
    _start: float = field(default=0.0, init=False)

    def arm(self) -> None:
        self._start = time.monotonic()

    def is_now(self) -> bool:
        return time.monotonic() - self._start >= self.seconds


@dataclass
class FileAppears:
    """When the `nth` file that was not there at the start appears at `pattern` below `folder`.

    The pattern is a glob; hidden folders are found only where it names them. A file that is renamed or
    deleted counts too, if a look catches it.
    """

    folder: Path
    pattern: str = "*"
    nth: int = 1
    _before: set[Path] = field(default_factory=set, init=False)
    _new: set[Path] = field(default_factory=set, init=False)

    def arm(self) -> None:
        self._before, self._new = self._look(), set()

    def is_now(self) -> bool:
        self._new |= self._look() - self._before
        return len(self._new) >= self.nth

    def _look(self) -> set[Path]:
        return set(self.folder.glob(self.pattern))


@dataclass
class Later:
    """So many seconds after another moment."""

    moment: Moment
    seconds: float
    _since: float | None = field(default=None, init=False)

    def arm(self) -> None:
        self._since = None
        self.moment.arm()

    def is_now(self) -> bool:
        if self._since is None and self.moment.is_now():
            self._since = time.monotonic()
        return self._since is not None and time.monotonic() - self._since >= self.seconds


@dataclass(frozen=True, slots=True)
class Kill:
    """One run that was killed: the moment, how long it had run, and how many processes died."""

    moment: str
    seconds: float
    processes: int


class Run:
    """A child in a session of its own; leaving the context kills what is left of it.

    What it prints is appended to `log`, or goes where its parent's output goes.
    """

    def __init__(
        self, command: Sequence[str], *, log: Path | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        with open(log, "ab") if log else nullcontext(None) as out:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT if log else None,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )

    def alive(self) -> bool:
        """Whether the child itself still runs (not: what it started)."""
        return self.process.poll() is None

    def send(self, number: int) -> None:
        """Send a signal to the child alone, as Ctrl-C in a wrapper or a `kill` does."""
        self.process.send_signal(number)

    def pause(self) -> int:
        """SIGSTOP the whole session; returns how many processes."""
        return _signal_all(session_members(self.process.pid), signal.SIGSTOP)

    def resume(self) -> int:
        """SIGCONT the whole session; returns how many processes."""
        return _signal_all(session_members(self.process.pid), signal.SIGCONT)

    def kill(self) -> int:
        """SIGKILL every process of the session, until none is left; returns how many died."""
        died: set[int] = set()
        while members := session_members(self.process.pid):
            _signal_all(members, signal.SIGKILL)
            died |= members
            self.process.poll()
            time.sleep(POLL_SECONDS)
        self.process.wait()
        return len(died)

    def wait(self, seconds: float) -> int:
        """Return the exit status.

        Raises:
            TimeoutExpired: it still runs after so many seconds.
        """
        return self.process.wait(seconds)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def session_members(session: int) -> set[int]:
    """Return the ids of all processes of a session that are no zombies. Linux only."""
    return {int(entry) for entry in os.listdir("/proc") if entry.isdigit() and _is_alive_in(entry, session)}


def _is_alive_in(process: str, session: int) -> bool:
    try:
        fields = Path("/proc", process, "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return int(fields[3]) == session and fields[0] not in "ZX"


def _signal_all(processes: Iterable[int], number: int) -> int:
    sent = 0
    for process in processes:
        try:
            os.kill(process, number)
            sent += 1
        except ProcessLookupError:
            continue
    return sent


def kill_at(run: Run, moment: Moment, name: str, seconds: float) -> Kill | None:
    """Kill `run` at an armed moment; None when the child ends by itself first.

    Raises:
        TimeoutError: the moment has not come within so many seconds.
    """
    start = time.monotonic()
    while not moment.is_now():
        if not run.alive():
            return None
        if time.monotonic() - start > seconds:
            raise TimeoutError(f"{name} has not come within {seconds:g} s")
        time.sleep(POLL_SECONDS)
    return Kill(name, time.monotonic() - start, run.kill())


def campaign(
    command: Sequence[str],
    moments: Iterable[tuple[str, Moment]],
    *,
    log: Path,
    seconds: float = 120.0,
    environment: Mapping[str, str] | None = None,
    before_the_end: Callable[[], None] = lambda: None,
) -> list[Kill]:
    """Run `command` again and again, killed at one moment after the other, and at last to its own end.

    `command` is one that ends by itself with status 0 when everything is published; where it needs to be told so,
    `before_the_end` does, after the last kill. A child that ends before
    its moment has come must have status 0 and ends the campaign.

    Raises:
        RuntimeError: a child ended with another status; its output is in `log`.
        TimeoutError, TimeoutExpired: a moment or the end has not come within so many seconds.
    """
    kills: list[Kill] = []
    for name, moment in moments:
        moment.arm()
        with Run(command, log=log, environment=environment) as run:
            kill = kill_at(run, moment, name, seconds)
            if kill is None:
                _check_status(run.wait(seconds), log)
                return kills
            kills.append(kill)
    before_the_end()
    with Run(command, log=log, environment=environment) as run:
        _check_status(run.wait(seconds), log)
    return kills


def _check_status(status: int, log: Path) -> None:
    if status != 0:
        raise RuntimeError(f"the pipeline ended with status {status}; read {log}")


def python(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module with this Python."""
    return [sys.executable, "-m", module, *arguments]
