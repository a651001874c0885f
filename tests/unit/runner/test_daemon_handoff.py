"""The early daemon takes the place of the process that Spark starts. Both are small programs here."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.runner.spark.daemon_handoff import ADDRESS, early_daemon, listen, take_over
from penstock.runner.spark.gateway import start_process
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

EARLY = """
import os, socket, sys
from penstock.runner.spark.daemon_handoff import take_over

connection = take_over(socket.socket(fileno=int(sys.argv[1])), jvm=1, parent=lambda: int(sys.argv[2]))
if connection is not None:
    print(os.environ["ONLY_SPARK"], sys.argv[1:], os.getcwd(), "/of/spark" in sys.path, flush=True)
    print(sys.stdin.readline(), end="", file=sys.stderr, flush=True)
"""

SPARKS = """
import os, sys
from penstock.runner.spark.daemon_handoff import hand_over

sys.path.append("/of/spark")
if hand_over():
    os._exit(0)
print("does the work", flush=True)
"""

StartEarly = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start_early(tmp_path: Path) -> Iterator[StartEarly]:
    """Starts a program as the early daemon, on the socket `tmp_path`/daemon."""
    started = []

    def start(program: str = EARLY, parent: int = 1, **variables: str) -> subprocess.Popen[bytes]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(tmp_path / "daemon"))
            listener.listen()
            started.append(
                subprocess.Popen(
                    [sys.executable, "-c", program, str(listener.fileno()), str(parent)],
                    env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "YES", **variables},
                    pass_fds=[listener.fileno()],
                )
            )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=60)


def sparks(tmp_path: Path, **variables: str) -> subprocess.Popen[bytes]:
    """The process that Spark starts."""
    folder = tmp_path / "folder"
    folder.mkdir()
    own = {ADDRESS: str(tmp_path / "daemon"), "ONLY_SPARK": "its variables"}
    return subprocess.Popen(
        [sys.executable, "-c", SPARKS, "pyspark.worker"],
        env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "YES", **own, **variables},
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_the_early_daemon_gets_the_streams_variables_arguments_path_and_folder(
    start_early: StartEarly, tmp_path: Path
) -> None:
    early = start_early()
    out, err = sparks(tmp_path).communicate(b"a line\n", timeout=60)
    assert out.decode() == f"its variables ['pyspark.worker'] {tmp_path / 'folder'} True\n"
    assert err == b"a line\n"
    assert early.wait(60) == 0


@pytest.mark.parametrize("path", ["/usr/bin:/bin", "/missing"])
def test_the_process_of_spark_ends_with_the_early_daemon(
    start_early: StartEarly, tmp_path: Path, path: str
) -> None:
    early, process = start_early(), sparks(tmp_path, PATH=path)
    assert process.stdout is not None
    assert process.stdout.readline()
    early.kill()
    assert process.wait(60) == 0
    process.communicate(timeout=60)


@pytest.mark.skipif(sys.platform != "linux", reason="the name of a process is in /proc")
def test_the_process_of_spark_waits_without_the_memory_of_python(
    start_early: StartEarly, tmp_path: Path
) -> None:
    start_early()
    process = sparks(tmp_path)
    wait_until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "cat\n", "it still is Python")
    process.kill()
    process.communicate(timeout=60)


def test_without_an_early_daemon_the_process_of_spark_does_the_work(tmp_path: Path) -> None:
    assert sparks(tmp_path).communicate(timeout=60)[0] == b"does the work\n"


def test_an_early_daemon_that_dies_while_it_imports_leaves_the_work_to_the_process_of_spark(
    start_early: StartEarly, tmp_path: Path
) -> None:
    start_early("raise SystemExit")
    assert sparks(tmp_path).communicate(timeout=60)[0] == b"does the work\n"


def test_an_early_daemon_with_other_hashes_of_strings_is_not_used(
    start_early: StartEarly, tmp_path: Path
) -> None:
    early = start_early(PYTHONHASHSEED="1")
    assert sparks(tmp_path).communicate(timeout=60)[0] == b"does the work\n"
    assert early.wait(60) == 0


def test_an_early_daemon_ends_with_its_jvm(start_early: StartEarly) -> None:
    assert start_early(parent=2).wait(60) == 0


def test_an_early_daemon_ends_if_the_jvm_ended_while_modules_were_imported(tmp_path: Path) -> None:
    with listen(str(tmp_path / "d")) as listener:
        # The process that had started this one was 7; it has been adopted by 1 since.
        assert take_over(listener, parent=lambda: 1, jvm=7) is None


def test_an_early_daemon_ends_if_the_jvm_ended_before_it_could_ask_who_started_it(tmp_path: Path) -> None:
    address = tmp_path / "d"
    process = start_process(["/bin/true"], {**os.environ}, early_daemon(str(address)))
    process.communicate(timeout=60)
    wait_until(address.exists)
    wait_until(lambda: not processes_of(str(address)), "the early daemon does not end")


def processes_of(argument: str) -> list[str]:
    """Return the ids of the processes that have this argument on their command line. Linux only."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.fsencode(argument) in (folder / "cmdline").read_bytes().split(b"\0"):
                found.append(folder.name)
    return found
