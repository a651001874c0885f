"""Executors and workers die during an epoch: no data is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow(seconds=45)]

END = 300
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def begin(master: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.integration.runner.programs.numbers", str(tmp_path), master]
        child = subprocess.Popen(
            [
                *command,
                str(END),
                "--spark_parallelism=2",
                f"--spark_conf=spark.executorEnv.PYTHONPATH={ROOT / 'src'}{os.pathsep}{ROOT}",
            ],
            stdout=subprocess.PIPE,
            cwd=ROOT,
            stderr=(tmp_path / "errors").open("w"),
            text=True,
            start_new_session=True,
        )
        started.append(child)
        return child

    yield begin
    for child in started:
        for pid, _ in _session(child.pid):
            _kill(pid)
        child.wait(60)


def _session(leader: int) -> list[tuple[int, str]]:
    """(pid, command line) of all processes of a session, and of sessions that its processes have begun.

    With Python 3.10 the JVM of a driver has a session of its own.
    """
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                line = (entry / "cmdline").read_bytes().decode().replace("\0", " ")
                found.append((int(entry.name), int(stat[1]), int(stat[3]), line))
            except (FileNotFoundError, ProcessLookupError):
                continue
    own = {pid for pid, _, session, _ in found if session == leader}
    sessions = {leader} | {session for _, parent, session, _ in found if parent in own}
    return [(pid, line) for pid, _, session, line in found if session in sessions]


def _workers(leader: int) -> list[int]:
    """Return the Python workers of a session, which its daemons have forked. There is at least one."""
    daemons = [
        pid
        for pid, line in _session(leader)
        if "penstock.runner.daemon" in line and "org.apache.spark" not in line
    ]
    workers = [pid for pid in daemons if _parent(pid) in daemons]
    assert workers
    return workers


def _parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _wait_for(folder: Path, name: str, child: subprocess.Popen[str]) -> None:
    def appeared() -> bool:
        assert child.poll() is None, f"the program ended early: {(folder / 'errors').read_text()[-3000:]}"
        return (folder / name).exists()

    wait_until(appeared, f"{name} never came")


def _exact(folder: Path) -> None:
    published = folder / "published"
    names = sorted(path.name for path in published.iterdir())
    assert names == sorted(f"{element}-{n}" for element in "ab" for n in range(END))


def _executor(pid: int) -> int | None:
    """The executor that a Python worker belongs to; None if the worker is gone."""
    try:
        while b"CoarseGrainedExecutorBackend" not in Path(f"/proc/{pid}/cmdline").read_bytes():
            parent = _parent(pid)
            if parent is None or parent <= 1:
                return None
            pid = parent
    except (FileNotFoundError, ProcessLookupError):
        return None
    return pid


def _one_that_read_and_waits(folder: Path, child: subprocess.Popen[str]) -> int:
    """The executor that runs a waiting task of the keyed level and did one of the epoch's two readings.

    Where Spark puts the waiting task is Spark's choice, so this may take some epochs.
    """
    for _ in range(20):
        (folder / "waiting").unlink(missing_ok=True)
        (folder / "slow").write_text("a1 10")
        _wait_for(folder, "waiting", child)
        waits = _executor(int((folder / "waiting").read_text()))
        read = {_executor(int((folder / f"reader-{element}").read_text())) for element in "ab"}
        if waits is not None and waits in read:
            time.sleep(4)  # the other task of the keyed level ends in this time
            return waits
    raise AssertionError("no executor ever both read and processed")


@pytest.mark.campaign
def test_an_executor_that_dies_between_read_and_process_voids_the_epoch_and_loses_nothing(
    run: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    child = run("local-cluster[2,1,1024]")
    _wait_for(tmp_path, "published/a-20", child)
    # One of the two tasks of the keyed level waits, its executor dies: what that executor had read is gone,
    # is read again with other data, and the other task has taken the first reading already.
    _kill(_one_that_read_and_waits(tmp_path, child))
    assert child.wait(240) == 0, (tmp_path / "errors").read_text()[-3000:]
    _exact(tmp_path)
    assert "EpochAbortedError" in (tmp_path / "errors").read_text()


@pytest.mark.long(seconds=25)
def test_a_killed_python_worker_costs_nothing(
    run: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    child = run("local[2,4]")
    for n in (20, 60, 100):
        _wait_for(tmp_path, f"published/a-{n}", child)
        _kill(_workers(child.pid)[0])
    assert child.wait(240) == 0, (tmp_path / "errors").read_text()[-3000:]
    _exact(tmp_path)
