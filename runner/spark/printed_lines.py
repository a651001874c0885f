"""Lines that users' code prints in a worker of a local master: `beam.Map(print)`. They belong to standard output.

Spark copies both outputs of its workers to the JVM's standard error (`PythonWorkerFactory`, read in 4.3), which the
driver reads. So a worker puts a prefix before each line that it prints, and the driver writes lines with it to its own
standard output. The workers of a cluster print into the logs of their executors, without a prefix.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping

LINE_PREFIX = b"\x02printed\x03"
"""What no program prints at the start of a line."""

VARIABLE = "PENSTOCK_MARK_PRINTS"
"""Environment variable that is set for the workers of a local master."""


def prefix_prints(environment: Mapping[str, str] = os.environ) -> None:
    """Let `sys.stdout` prefix its lines from now on, if this process is a worker of a local master."""
    if environment.get(VARIABLE) and not isinstance(sys.stdout, _PrefixedOutput):
        sys.stdout.flush()
        sys.stdout = _PrefixedOutput(_PrefixedLines(sys.stdout.fileno()))


class _PrefixedLines(io.RawIOBase):
    """Writes to a descriptor, with the prefix at the start of each line."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._in_line = descriptor, False

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def write(self, data: object) -> int:
        given = bytes(data)  # type: ignore[call-overload]
        for line in given.splitlines(keepends=True):
            left = line if self._in_line else LINE_PREFIX + line
            while left:
                left = left[os.write(self._descriptor, left) :]
            self._in_line = not line.endswith(b"\n")
        return len(given)


class _PrefixedOutput(io.TextIOWrapper):
    def __init__(self, lines: _PrefixedLines) -> None:
        super().__init__(io.BufferedWriter(lines), "utf-8", "backslashreplace", line_buffering=True)
