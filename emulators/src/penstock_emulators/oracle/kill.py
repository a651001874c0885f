"""Run a pipeline and kill it from another process: the driver, its JVM and every Python worker.

A child gets a new session. Every process that it starts stays in that session, even Spark's Python daemon,
which creates its own process group. So `Run.kill` finds the processes by session and sends SIGKILL; after that
no process of the session executes another instruction.

Moments are watched from the outside too: no code of the pipeline takes part.

    kills = campaign(command, moments=[("first record", FileAppears(checkpoint / "records"))], log=log)
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
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
    """`seconds` after the start of the child."""

    seconds: float
    _start: float = field(default=0.0, init=False)

    def arm(self) -> None:
        self._start = time.monotonic()

    def is_now(self) -> bool:
        return time.monotonic() - self._start >= self.seconds


@dataclass
class FileAppears:
    """The appearance of the `nth` new file that matches `pattern` below `folder`.

    The pattern is a glob; it matches hidden folders only if it names them. A file that is renamed or deleted
    soon after counts too, if a look finds it in time.
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
        while True:
            # A folder may be deleted or renamed between two steps of the search.
            with suppress(FileNotFoundError):
                return set(self.folder.glob(self.pattern))


@dataclass
class Later:
    """`seconds` after another moment."""

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
    """One killed run: the moment, its age in seconds, and the number of killed processes."""

    moment: str
    seconds: float
    processes: int


class Run:
    """A child in a new session. Leaving the context kills all processes of that session.

    Its output is appended to `log`, or goes to the output of the parent. `stdin` is its standard input, as for Popen.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path | None = None,
        environment: Mapping[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
    ) -> None:
        with open(log, "ab") if log else nullcontext(None) as out:
            self.process = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=out,
                stderr=subprocess.STDOUT if log else None,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )

    def alive(self) -> bool:
        """Return whether the child itself still runs, without the processes that it started."""
        return self.process.poll() is None

    def send(self, number: int) -> None:
        """Send a signal only to the child, as `kill` does."""
        self.process.send_signal(number)

    def pause(self) -> int:
        """SIGSTOP the whole session; return the number of processes."""
        return _signal_all(session_members(self.process.pid), signal.SIGSTOP)

    def resume(self) -> int:
        """SIGCONT the whole session; return the number of processes."""
        return _signal_all(session_members(self.process.pid), signal.SIGCONT)

    def kill(self) -> int:
        """SIGKILL every process of the session until there is none; return the number of killed processes."""
        died: set[int] = set()
        while members := session_members(self.process.pid):
            _signal_all(members, signal.SIGKILL)
            died |= members
            self.process.poll()
            time.sleep(POLL_SECONDS)
        self.process.wait(60)
        if self.process.stdin is not None:
            self.process.stdin.close()
        return len(died)

    def wait(self, seconds: float) -> int:
        """Return the exit status.

        Raises:
            TimeoutExpired: it still runs after `seconds`.
        """
        return self.process.wait(seconds)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def session_members(session: int) -> set[int]:
    """Return the ids of all processes of a session, without zombies. Linux only."""
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
    """Kill `run` at an armed moment; return None if the child ends before it.

    Raises:
        TimeoutError: the moment did not come within `seconds`.
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
    """Run `command` once for each moment and kill it at that moment, then run it once more to its end.

    `command` must end with status 0 when everything is published. If the pipeline must first be told to end,
    `before_the_end` does it, after the last kill. A child that ends before its moment must have status 0 and
    ends the campaign.

    Raises:
        RuntimeError: a child ended with another status; its output is in `log`.
        TimeoutError, TimeoutExpired: a moment or the end did not come within `seconds`.
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
