"""CPU time of a process and all its descendants, from /proc: a driver, its JVM, Spark's Python daemon and the workers.

Children that have ended count through their parent (`cutime`, `cstime`) after it has waited for them. Before that they
are zombies, which are still listed. So the sum never loses CPU time of a worker unless a process is orphaned. The
kernel counts in ticks of 10 ms: measure for seconds. Linux only.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from measure.figures import Cost

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PARENT, _FIRST_TIME, _LAST_OWN_TIME, _LAST_TIME, _START = 1, 11, 12, 14, 19
"""Fields of /proc/<pid>/stat after the command: ppid; utime, stime, cutime, cstime; starttime."""
_LOOK_SECONDS = 0.05
DRIVER, JVM = "driver", "JVM"


def tree(*roots: int) -> set[int]:
    """The ids of processes and all their descendants, zombies too."""
    children: dict[int, list[int]] = {}
    for process, fields in _processes():
        children.setdefault(int(fields[_PARENT]), []).append(process)
    found, waiting = set(), [*roots]
    while waiting:
        process = waiting.pop()
        found.add(process)
        waiting += children.get(process, [])
    return found


def tree_cpu(root: int) -> float:
    """Return the CPU seconds, user and system, of a process and all its descendants since they started."""
    members = tree(root)
    ticks = (_ticks(fields) for process, fields in _processes() if process in members)
    return sum(ticks) / _TICKS_PER_SECOND


def part_of(process: int, root: int) -> str:
    """Return the part of a pipeline that a process is; `root` is the process of the command."""
    if process == root:
        return DRIVER
    try:
        program = Path(f"/proc/{process}/comm").read_text().strip()
    except OSError:
        return "ended"
    return JVM if program == "java" else "Python workers and their daemon"


class Stopwatch:
    """Measures from its construction to `stop` the process tree of `root`, or of this process if none is given."""

    def __init__(self, root: int | None = None) -> None:
        self._root = os.getpid() if root is None else root
        self._cpu = tree_cpu(self._root)
        self._wall = time.perf_counter()

    def stop(self) -> Cost:
        """Return the cost since the construction. It may be called several times."""
        wall = time.perf_counter() - self._wall
        return Cost(wall, tree_cpu(self._root) - self._cpu)


class ProgramStopwatch:
    """Measures a whole program and all processes that it starts, also those that nobody waits for.

    Spark's daemon ignores SIGCHLD, so the kernel adds the CPU time of its workers to no parent, and a driver that ends
    leaves its JVM behind. So this looks 20 times a second, and keeps the last CPU time that it saw of each process.
    What a process uses after the last look is lost: at most 0.05 s for each.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._members: dict[tuple[int, str], int] = {}
        self._parts: dict[tuple[int, str], str] = {}
        self._peak = 0
        self._ended = threading.Event()
        self._begun = time.perf_counter()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> Cost:
        """Return the cost since the construction. The root may be a zombie, but must not have been waited for."""
        wall = time.perf_counter() - self._begun
        self._ended.set()
        self._thread.join()
        self._look()
        parts = Counter[str]()
        for key, ticks in self._members.items():
            parts[self._parts[key]] += ticks
        by_part = {part: ticks / _TICKS_PER_SECOND for part, ticks in parts.items()}
        return Cost(wall, sum(by_part.values()), by_part, self._peak)

    def _run(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            self._look()

    def _look(self) -> None:
        self._peak = max(self._peak, _peak_of(self._root))
        processes = {(process, fields[_START]): fields for process, fields in _processes()}
        # A process that was a descendant once stays a member, with its children: when its parent ends, it gets another.
        # The time of its start tells it from a later process with its number.
        members = tree(self._root, *(process for process, _ in self._members.keys() & processes.keys()))
        for key, fields in processes.items():
            if key[0] in members:
                ticks = fields[_FIRST_TIME : _LAST_OWN_TIME + 1]
                self._members[key] = sum(int(field) for field in ticks)
                # A process that has just been started is another program for a moment. A zombie keeps its name.
                self._parts[key] = part_of(key[0], self._root)


def _peak_of(process: int) -> int:
    """Return the most memory (resident) that a process has held, in bytes; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def _ticks(fields: list[str]) -> int:
    return sum(int(field) for field in fields[_FIRST_TIME : _LAST_TIME + 1])


def _processes() -> Iterator[tuple[int, list[str]]]:
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            text = Path("/proc", entry, "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        yield int(entry), text.rpartition(")")[2].split()
