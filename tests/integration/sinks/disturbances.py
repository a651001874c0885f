"""What a kill campaign does to a running pipeline: a seeded list of disturbances, and the process that performs them.

with Disturbed(command, folder, targets) as run:
    for each in schedule(rng, targets, kills=30, zombies=5):
        run.perform(each)
    run.end()
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import TracebackType

from typing_extensions import Self

from penstock.runner import RemoteJob
from penstock_emulators.oracle.kill import (
    POLL_SECONDS,
    After,
    FileAppears,
    Later,
    Moment,
    Run,
    session_members,
)
from tests.support.sinks import TargetUnderTest
from tests.support.sinks.source import PER_SECOND
from tests.support.waiting import RUN_PATIENCE_SECONDS, drain

ALL, DRIVER, EXECUTOR, JVM, WORKER = "all processes", "driver", "executor", "JVM of the driver", "worker"
ZOMBIE, OUTAGE = "zombie", "outage"
OUTAGE_SECONDS = 20.0
COMMITS_OF_THE_SUCCESSOR = 4
END_AHEAD = 20 * PER_SECOND
"""Statements that may be read while the end is being told to the writers."""
PATIENCE_SECONDS = 600.0
"""For what takes some seconds on a quiet machine."""


@dataclass(frozen=True, slots=True)
class Disturbance:
    """`kind` is one of the constants; `moment` a name of `Disturbed.moments`; `seconds` are waited after it.

    ZOMBIE and OUTAGE concern one target, whose index is `target`.
    """

    kind: str
    moment: str
    seconds: float = 0.0
    target: int = 0


def schedule(
    rng: random.Random, *, kills: int, kinds: Sequence[str], zombies: Sequence[int], outages: Sequence[int]
) -> list[Disturbance]:
    """Return `kills` kills of the given kinds in turn, and the zombies and outages of the targets, in any order."""
    made = [
        Disturbance(
            kinds[number % len(kinds)], rng.choice(("after the read", "after the commit", "at random"))
        )
        for number in range(kills)
    ]
    made += [Disturbance(ZOMBIE, "publishing", target=each) for each in zombies]
    made += [Disturbance(OUTAGE, "at random", target=each) for each in outages]
    rng.shuffle(made)
    return [
        Disturbance(each.kind, each.moment, rng.choice((0.0, rng.random() / 2)), each.target) for each in made
    ]


@dataclass
class Disturbed:
    """The pipeline that `command` starts, in one run after the other on the same checkpoint."""

    command: list[str]
    checkpoint: Path
    hooks: Path
    folder: Path
    targets: Sequence[TargetUnderTest]
    rng: random.Random
    done: Counter[str] = field(default_factory=Counter)
    processes: int = 0
    starts: int = 0
    _runs: list[Run] = field(default_factory=list)
    """All that have been started and have not ended: a paused one, and then the current one."""

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for run in self._runs:
            run.kill()

    @property
    def log(self) -> Path:
        """The output of the current run."""
        return self.folder / f"log-{self.starts}"

    def perform(self, each: Disturbance) -> None:
        """Wait for the moment of a disturbance, then do it. The file `disturbances` of the folder has what was done."""
        run = self._running()
        with (self.folder / "disturbances").open("a") as notes:
            notes.write(f"{time.strftime('%H:%M:%S')} run {self.starts}: {each}\n")
        self._forget_hooks()
        moment = Later(self._moment(each), each.seconds)
        self._wait(run, moment, f"{each.moment} for {each.kind}")
        acts: dict[str, Callable[[], None]] = {
            ALL: self._kill_all,
            DRIVER: self._kill_driver,
            EXECUTOR: lambda: self._kill_one("CoarseGrainedExecutorBackend"),
            JVM: self._kill_jvm,
            WORKER: lambda: self._kill_one("-m penstock.runner.daemon"),
            ZOMBIE: self._pause_and_succeed,
            OUTAGE: lambda: self._outage(self.targets[each.target]),
        }
        acts[each.kind]()
        self.done[each.kind] += 1

    def end(self, numbers: int) -> int:
        """Let every writer end after at least so many statements, wait for the end, and return the number."""
        run = self._running()
        end = max(numbers, self._highest() + END_AHEAD)
        (self.hooks / "end.new").write_text(str(end))
        (self.hooks / "end.new").rename(self.hooks / "end")
        status = run.wait(PATIENCE_SECONDS + end / 20)
        assert status == 0, self._story(f"the pipeline ended with status {status}")
        return end

    def drain_at(self, until: datetime) -> None:
        """Wait until every target has all changes before a time, then drain the pipeline."""
        job = RemoteJob.open(str(self.checkpoint))
        complete = job.wait_until_complete(until, seconds=RUN_PATIENCE_SECONDS)
        assert complete, self._story(f"the targets are not complete until {until}: {job.complete_until()}")
        drain(self._running(), self.checkpoint, self.log)

    def _moment(self, each: Disturbance) -> Moment:
        committed = FileAppears(self.checkpoint, "records/*.record", nth=3)
        if each.moment == "after the read":
            return FileAppears(self.hooks, "read-*")
        if each.moment == "at random":
            return After(1 + self.rng.random() * 4)
        if each.moment == "publishing":
            return self.targets[each.target].publishing() or Later(committed, self.rng.random() / 5)
        return committed

    def _start(self, *options: str) -> None:
        self.starts += 1
        run = Run([*self.command, *options], log=self.log)
        self._runs.append(run)
        # A run counts only when it has committed: a driver that is killed before that has disturbed nothing.
        self._wait(run, self._armed(FileAppears(self.checkpoint, "records/*.record", nth=3)), "its start")

    def _end(self, run: Run) -> int:
        """Kill what still lives of a run; return the number of processes."""
        killed = run.kill()
        # The system may give its id to another process now, so it must not be killed again.
        self._runs.remove(run)
        return killed

    def _running(self) -> Run:
        return self._runs[-1]

    @staticmethod
    def _armed(moment: Moment) -> Moment:
        moment.arm()
        return moment

    def _wait(self, run: Run, moment: Moment, what: str) -> None:
        moment.arm()
        end = time.monotonic() + PATIENCE_SECONDS
        while not moment.is_now():
            assert run.alive(), self._story(f"the driver ended before {what}")
            assert time.monotonic() < end, self._story(f"{what} did not come")
            time.sleep(POLL_SECONDS * 2)

    def _kill_all(self) -> None:
        self.processes += self._end(self._running())
        self._start()

    def _kill_driver(self) -> None:
        """Kill only the driver; its JVM and workers may live on beside those of the next driver, for a moment."""
        old = self._running()
        old.send(signal.SIGKILL)
        old.process.wait(60)
        self._start()
        self.processes += 1 + self._end(old)

    def _kill_jvm(self) -> None:
        """Kill the JVM of the driver. The driver must notice it and end, with an error."""
        old = self._running()
        self._kill_one("org.apache.spark.deploy.SparkSubmit")
        status = old.wait(PATIENCE_SECONDS)
        assert status not in (0, None), self._story("the driver ended without an error")
        self.processes += self._end(old)
        self._start()

    def _kill_one(self, part: str) -> None:
        """Kill one process of the run by a part of its command line.

        The JVM of the driver has the name of the daemon in its options, but not as a module to run.
        """
        run = self._running()
        moment = ProcessRuns(run.process.pid, part)
        # An earlier kill may have ended all of them: then Spark is about to start new ones.
        self._wait(run, moment, f"a process {part}")
        os.kill(self.rng.choice(moment.found), signal.SIGKILL)
        self.processes += 1

    def _pause_and_succeed(self) -> None:
        """Pause the driver with all its processes, let another one take over, and resume the first one."""
        zombie, log = self._running(), self.log
        zombie.pause()
        # The successor need not wait for an answer of the paused driver.
        self._start("--take_over")
        commits = FileAppears(self.checkpoint, "records/*.record", nth=COMMITS_OF_THE_SUCCESSOR)
        self._wait(self._running(), commits, "the commits of the second driver")
        zombie.resume()
        status = zombie.wait(PATIENCE_SECONDS)
        told = "another driver has taken over" in log.read_text(errors="replace")
        assert (status, told) == (1, True), f"the zombie ended with status {status}; read {log}"
        self._end(zombie)

    def _outage(self, target: TargetUnderTest) -> None:
        target.take_down()
        try:
            self._wait(self._running(), After(OUTAGE_SECONDS), f"the end of the outage: {target.outage}")
        finally:
            target.bring_back()

    def _highest(self) -> int:
        return max((int(path.name.rpartition("-")[2]) for path in self.hooks.glob("read-*")), default=0)

    def _forget_hooks(self) -> None:
        """Remove old files of the hooks, which would make each look at the folder slower."""
        highest = self._highest()
        for path in self.hooks.iterdir():
            if path.name != "begun" and not path.name.endswith(f"-{highest}"):
                path.unlink(missing_ok=True)

    def _story(self, what: str) -> str:
        return f"{what}; the end of {self.log}:\n{self.log.read_text(errors='replace')[-4000:]}"


@dataclass
class ProcessRuns:
    """At least one process of a session has `part` in its command line. `found` are their ids."""

    session: int
    part: str
    found: list[int] = field(default_factory=list)

    def arm(self) -> None:
        """Nothing to prepare."""

    def is_now(self) -> bool:
        self.found = sorted(pid for pid in session_members(self.session) if self.part in command_line(pid))
        return bool(self.found)


def command_line(pid: int) -> str:
    """Return the command line of a process; "" if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
