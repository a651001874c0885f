"""Two drivers on one checkpoint folder: the newer one continues, the older one stops and damages nothing.

SIGSTOP pauses the older driver with its JVM and workers at the worst moments: just before its commit, during
publishing, during a clean-up. The newer driver takes over, commits and cleans up. Then SIGCONT resumes the older one.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from penstock_emulators.oracle.kill import POLL_SECONDS, FileAppears, Moment, Run
from tests.integration.files.test_kills import SECONDS, Folders
from tests.support.oracle.watch import Consumer

pytestmark = [pytest.mark.spark, pytest.mark.long(seconds=40)]

COMMITS_OF_THE_NEWER = 20
"""More than there are between two clean-ups."""


@dataclass
class FileGoes:
    """The moment at which a commit record disappears from `folder`."""

    folder: Path
    _known: set[str] = field(default_factory=set, init=False)

    def arm(self) -> None:
        self._known = self._look()

    def is_now(self) -> bool:
        found = self._look()
        gone, self._known = self._known - found, found
        return bool(gone)

    def _look(self) -> set[str]:
        return {path.name for path in self.folder.glob("*.record")}


def _wait(moment: Moment, run: Run, what: str, every_seconds: float = POLL_SECONDS) -> None:
    end = time.monotonic() + SECONDS
    while not moment.is_now():
        assert run.alive(), f"the driver ended before {what}"
        assert time.monotonic() < end, f"{what} did not come"
        time.sleep(every_seconds)


def _moments(folders: Folders) -> dict[str, Moment]:
    return {
        "just before its commit": FileAppears(folders.output, ".penstock-staging/*/*/g*"),
        "in the middle of publishing": FileAppears(folders.output, "counts/*/*.jsonl"),
        "in the middle of a clean-up": FileGoes(folders.checkpoint / "records"),
    }


def test_the_newer_driver_continues_and_the_older_one_stops_after_any_pause(
    tmp_path: Path, campaign: Any
) -> None:
    folders = Folders(tmp_path)
    moments = list(_moments(folders).items())
    rounds = moments * 10 if campaign.full else [moments[1]]
    # The newer driver need not wait for an answer of the older one, which is paused.
    command = folders.command("--epoch_seconds=0.2", "--take_over")
    stopped = []
    with (
        ExitStack() as runs,
        Consumer(folders.output, folders.taken, take=1 / 3, seed=campaign.seed) as consumer,
    ):
        log = tmp_path / "log 0"
        older = runs.enter_context(Run(command, log=log))
        _wait(FileAppears(folders.output, "counts/*/*.jsonl"), older, "its first file")
        for number, (name, moment) in enumerate(rounds, 1):
            moment.arm()
            _wait(moment, older, name)
            older.pause()
            commits = FileAppears(folders.checkpoint, "records/*.record", nth=COMMITS_OF_THE_NEWER)
            commits.arm()
            newer_log = tmp_path / f"log {number}"
            newer = runs.enter_context(Run(command, log=newer_log))
            _wait(commits, newer, "the newer driver's commits", every_seconds=0.1)
            older.resume()
            status = older.wait(SECONDS)
            stopped.append((name, status, "another driver has taken over" in log.read_text()))
            older, log = newer, newer_log
        folders.end_soon(consumer)
        assert older.wait(campaign.size(360, 1500)) == 0, log.read_text()[-2000:]
    assert stopped == [(name, 1, True) for name, _ in rounds]
    wrong = folders.wrong()
    campaign.record("two-drivers", moments=[name for name, _ in rounds], wrong=wrong + consumer.wrong)
    assert consumer.wrong == []
    assert wrong == []
