"""`penstock quickstart` as a newcomer runs it: its proof, a damaged output, and Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from penstock_emulators.oracle.lines import visible_files
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow(seconds=45)]

PATIENCE_SECONDS = 400


class Started:
    """A quickstart off the terminal, with the folder that it uses."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        command = [sys.executable, "-m", "penstock.cli.main", "quickstart", "--folder", str(folder)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.printed = ""

    def until(self, text: str) -> None:
        """Read until a line has `text`."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.printed += line
            if text in line:
                return
        raise AssertionError(f"no line has {text!r}:\n{self.printed}")

    def end(self) -> int:
        """Read to the end; return the exit code."""
        out, _ = self.process.communicate(timeout=PATIENCE_SECONDS)
        self.printed += out
        return self.process.returncode


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], Started]]:
    started: list[Started] = []

    def start_() -> Started:
        started.append(Started(tmp_path / "quickstart"))
        return started[-1]

    yield start_
    for each in started:
        with suppress(ProcessLookupError):
            each.process.send_signal(signal.SIGINT)  # so that it ends what it has started
        each.process.wait(60)


def descendants(process: int) -> set[int]:
    """Return the ids of all processes that a process has started, and that they have started, without zombies."""
    parents: dict[int, int] = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with suppress(FileNotFoundError, ProcessLookupError):
            state, parent = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()[:2]
            if state not in "ZX":
                parents[int(entry)] = int(parent)
    found = {process}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {process}


@pytest.mark.long(seconds=28)
def test_nothing_is_lost_doubled_or_out_of_order_and_each_step_says_what_to_type(
    start: Callable[[], Started],
) -> None:
    quickstart = start()
    assert quickstart.end() == 0, quickstart.printed
    assert "lost 0, doubled 0, out of order 0" in quickstart.printed
    assert "WRONG" not in quickstart.printed
    assert not {"Traceback", "warning", "WARN"} & set(quickstart.printed.split())
    assert f"penstock run {quickstart.folder}/job.yaml" in quickstart.printed
    assert f"penstock status {quickstart.folder}/job.yaml" in quickstart.printed
    left = {path.name for path in quickstart.folder.iterdir()}
    assert left == {"job.yaml", "output", "checkpoint", "pipeline.log"}
    assert all(f"\n  {name} " in quickstart.printed for name in left)
    log = (quickstart.folder / "pipeline.log").read_text()
    assert "continuing from the checkpoint" in log
    assert "stopped with a checkpoint" in log


@pytest.mark.campaign
def test_a_line_that_was_replaced_by_its_neighbour_is_found(start: Callable[[], Started]) -> None:
    quickstart = start()
    quickstart.until("kill -9")
    damaged = max(visible_files(quickstart.folder / "output"), key=lambda path: path.stat().st_size)
    first, _second, *others = damaged.read_bytes().splitlines(keepends=True)
    damaged.write_bytes(b"".join([first, first, *others]))
    assert quickstart.end() == 1, quickstart.printed
    assert "lost 1, doubled 1, out of order 0" in quickstart.printed
    assert "changes are not in the files" in quickstart.printed
    assert "WRONG" in quickstart.printed


def test_ctrl_c_ends_everything_that_it_has_started(start: Callable[[], Started]) -> None:
    quickstart = start()
    quickstart.until("Spark is starting")
    children = descendants(quickstart.process.pid)
    assert len(children) >= 3  # the database, the pipeline, the writers
    quickstart.process.send_signal(signal.SIGINT)
    assert quickstart.end() == 130, quickstart.printed
    assert f"Files and log: {quickstart.folder}" in quickstart.printed
    assert "Traceback" not in quickstart.printed
    wait_until(lambda: not any(Path("/proc", str(each)).exists() for each in children))


@pytest.mark.long(seconds=30)
def test_a_killed_quickstart_leaves_nothing_running(start: Callable[[], Started]) -> None:
    quickstart = start()
    quickstart.until("Changes arrive")
    children = descendants(quickstart.process.pid)
    assert len(children) >= 5  # the database, the driver, its JVM, workers, the writers
    quickstart.process.kill()
    wait_until(lambda: not any(map(_runs, children)), lambda: str(list(filter(_runs, children))))


def _runs(process: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path("/proc", str(process), "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def test_a_folder_with_files_is_refused(start: Callable[[], Started], tmp_path: Path) -> None:
    (tmp_path / "quickstart").mkdir()
    (tmp_path / "quickstart" / "mine.txt").touch()
    quickstart = start()
    assert quickstart.end() == 2
    assert "is not empty: give --folder another name" in quickstart.printed
