"""A pipeline that runs while it is measured: its process, the files that it publishes, its memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENCE_SECONDS = 120.0


class Watcher:
    """Notes in a separate thread when each published file is first seen."""

    def __init__(self, output: Path, commit_of: Callable[[dict[str, Any]], int]) -> None:
        """`commit_of` returns the commit timestamp of a line, in nanoseconds."""
        self._output, self._commit_of = output, commit_of
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._published: dict[int, int] = {}
        self._parsed: set[str] = set()
        self.seen: dict[str, int] = {}

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(0.001):
            now = time.time_ns()
            for path in _visible(str(self._output), 3):
                self.seen.setdefault(path, now)

    def published(self) -> dict[int, int]:
        """When each commit timestamp was first seen in a published file; both in nanoseconds.

        Each file is read once: reading holds up the thread that watches.
        """
        for path, seen in sorted(self.seen.copy().items(), key=lambda each: each[1]):
            if path not in self._parsed:
                self._parsed.add(path)
                for line in Path(path).read_bytes().splitlines():
                    self._published.setdefault(self._commit_of(json.loads(line)), seen)
        return self._published


def _visible(folder: str, depth: int) -> Iterator[str]:
    """Return the paths `depth` levels below a folder, without names that begin with a dot."""
    try:
        with os.scandir(folder) as entries:
            found = [entry.path for entry in entries if not entry.name.startswith(".")]
    except FileNotFoundError:
        return
    for path in found:
        if depth == 1:
            yield path
        else:
            yield from _visible(path, depth - 1)


@contextmanager
def running(
    template: str, folder: Path, settings: Mapping[str, str], *flags: str, **variables: str
) -> Iterator[int]:
    """Run `penstock run TEMPLATE` in a new session, with `folder`/checkpoint; yield its process id."""
    command = [str(Path(sys.executable).with_name("penstock")), "run", template]
    command += [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    command += ["--checkpoint-dir", str(folder / "checkpoint"), *flags, "--progress", "none"]
    with open(folder / "log", "wb") as log:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, **variables},
        )
    try:
        yield child.pid
        if child.poll() is not None:
            raise SystemExit(
                f"the pipeline ended with status {child.returncode}:\n{(folder / 'log').read_text()}"
            )
    finally:
        _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Stop the pipeline as Ctrl-C does. If it does not stop, kill the first process group of its session."""
    if child.poll() is None:
        child.send_signal(signal.SIGINT)
    try:
        child.wait(60)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def memory(process: int) -> int:
    """Return the proportional set size of a process, in bytes; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def wait_for(holds: Callable[[], bool], what: str, seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until `holds()`; raise a SystemExit that names `what` when it takes longer than `seconds`."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise SystemExit(f"{what} did not come within {seconds:g} s")
        time.sleep(0.2)
