"""Logs the time at which records pass each point of the pipeline, as lines of JSON, to measure latency. Pure.

    PENSTOCK_TIMELINE=/tmp/timeline penstock run spanner-to-files …

Every process of the pipeline appends to the file that the environment variable names, which must be on a disk that all
of them share. A line has the point (`phase`), the time `at` in nanoseconds since 1970, and fields that say of what:
`commits` are commit timestamps of records, `epoch` is the number of an epoch. Without the variable `trace` does
nothing. The file grows with the number of records, so the variable is for measurements.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

VARIABLE = "PENSTOCK_TIMELINE"
_path = os.environ.get(VARIABLE)
_descriptor: tuple[int, int] | None = None

enabled = _path is not None
"""Whether `trace` writes anything. Callers that prepare fields for it ask first."""


def trace(point: str, **fields: Any) -> None:
    """Append a line, if a timeline is wanted."""
    if _path is None:
        return
    line = json.dumps({"phase": point, "at": time.time_ns(), **fields}, separators=(",", ":"))
    # One write of a descriptor that appends: lines of several processes do not mix.
    os.write(_opened(_path), f"{line}\n".encode())


def _opened(path: str) -> int:
    """Return the descriptor of this process."""
    global _descriptor
    if _descriptor is None or _descriptor[0] != os.getpid():
        _descriptor = os.getpid(), os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    return _descriptor[1]
