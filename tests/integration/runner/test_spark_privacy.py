"""Only its user can reach a driver's ports and read the files that Spark writes, also after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from penstock_emulators.server_process import free_port
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.long(seconds=10)]

ROOT = Path(__file__).resolve().parents[3]


class Driver:
    """A driver whose job waits, in a new session; its JVM has another process group of that session."""

    def __init__(self, base: Path, *options: str) -> None:
        command = [sys.executable, "-m", "tests.integration.runner.programs.failing", "wait", *options]
        variables = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
        self.output, self.errors = base.with_suffix(".out"), base.with_suffix(".err")
        self.process = subprocess.Popen(
            command,
            env={**variables, "TMPDIR": str(base), "PYTHONPATH": path},
            stdout=self.output.open("w"),
            stderr=self.errors.open("w"),
            cwd=ROOT,
            start_new_session=True,
            umask=0o022,
        )

    def wait(self) -> None:
        def waits() -> bool:
            assert self.process.poll() is None, self.errors.read_text()
            return "waiting" in self.output.read_text()

        wait_until(waits)

    def kill(self) -> None:
        for process in members(self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.process.wait(60)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir(mode=0o755)
    return folder


@pytest.fixture
def driver(base: Path) -> Iterator[Driver]:
    started = Driver(base)
    yield started
    if started.process.poll() is None:
        started.kill()


def members(session: int) -> list[int]:
    """The processes of a session."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(ProcessLookupError):
            if entry.name.isdigit() and os.getsid(int(entry.name)) == session:
                found.append(int(entry.name))
    return found


def listening_addresses(session: int) -> set[str]:
    """The addresses, in the kernel's hexadecimal, on which processes of a session listen for TCP connections."""
    inodes = set()
    for process in members(session):
        with suppress(FileNotFoundError, ProcessLookupError):
            inodes |= {os.readlink(link) for link in Path(f"/proc/{process}/fd").iterdir()}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" and f"socket:[{inode}]" in inodes:
                found.add(local.partition(":")[0])
    return found


LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}
"""127.0.0.1, also as an IPv6 address."""


def test_a_local_driver_listens_on_loopback_only(driver: Driver) -> None:
    driver.wait()
    found = listening_addresses(driver.process.pid)
    assert found
    assert found <= LOOPBACK


@pytest.mark.campaign
def test_the_page_of_spark_is_served_when_asked_for_and_on_loopback_only(base: Path) -> None:
    port = free_port()
    settings = ("spark.ui.enabled=true", f"spark.ui.port={port}")
    driver = Driver(base, *(word for each in settings for word in ("--spark_conf", each)))
    try:
        driver.wait()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/jobs/") as answer:
            assert answer.status == 200
        assert listening_addresses(driver.process.pid) <= LOOPBACK
    finally:
        driver.kill()


def test_only_their_user_can_read_blocks_and_the_next_start_removes_them(base: Path, driver: Driver) -> None:
    driver.wait()
    made = list(base.iterdir())
    assert made, "Spark's folders are where TMPDIR says"
    assert any(path.name.startswith("blockmgr") for folder in made for path in folder.iterdir())
    assert {folder.stat().st_mode & 0o777 for folder in made} == {0o700}
    driver.kill()
    assert [folder for folder in made if folder.exists()], "a killed driver removes nothing"
    again = Driver(base)
    try:
        again.wait()
        assert not [folder for folder in made if folder.exists()]
    finally:
        again.kill()


@pytest.mark.campaign
def test_a_driver_that_ends_removes_its_blocks(base: Path) -> None:
    command = [sys.executable, "-m", "tests.integration.runner.programs.failing", "well"]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    subprocess.run(
        command,
        env={**os.environ, "TMPDIR": str(base), "PYTHONPATH": path},
        cwd=ROOT,
        check=True,
        timeout=180,
    )
    assert list(base.iterdir()) == []
