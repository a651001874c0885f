"""CPU time of a process and all its descendants, from /proc: a driver, its JVM, Spark's Python daemon and the workers.

Children that have ended count through their parent (`cutime`, `cstime`) after it has waited for them. Before that they
are zombies, which are still listed. So the sum never loses CPU time of a worker unless a process is orphaned. The
kernel counts in ticks of 10 ms: measure for seconds. Linux only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from measure.figures import Cost

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PARENT, _FIRST_TIME, _LAST_TIME = 1, 11, 14
"""Fields of /proc/<pid>/stat after the command: ppid; utime, stime, cutime, cstime."""


def tree(root: int) -> set[int]:
    """The ids of a process and all its descendants, zombies too."""
    children: dict[int, list[int]] = {}
    for process, fields in _processes():
        children.setdefault(int(fields[_PARENT]), []).append(process)
    found, waiting = set(), [root]
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
