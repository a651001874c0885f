"""The watermark of a pipeline while it runs, compared with the files that it has published.

For sinks with `roll_seconds=0`, which stage each change in the epoch that reads it: a change below the watermark of a
checkpoint must have been in a staged file before that checkpoint. A file keeps its modification time when it is
published.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from penstock_emulators.oracle.change import nanoseconds
from penstock_emulators.oracle.lines import visible_files

_CLOCK_STEP_NS = 10_000_000
"""How much later than a checkpoint a file may seem to be staged: the kernel's clock for files has steps."""


@dataclass(frozen=True, slots=True)
class Report:
    """One checkpoint: when it was committed, and its lowest output watermark, in nanoseconds since 1970."""

    checkpoint: int
    watermark: int


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file: its name, when it was staged, and its earliest commit timestamp, in nanoseconds since 1970."""

    name: str
    staged: int
    earliest: int


def staged_files(output: Path) -> list[StagedFile]:
    """Return the files of an output folder whose lines have a `commit_timestamp`."""
    return [
        StagedFile(
            path.name,
            path.stat().st_mtime_ns,
            min(nanoseconds(json.loads(line)["commit_timestamp"]) for line in path.read_bytes().splitlines()),
        )
        for path in visible_files(output)
    ]


def broken_watermarks(reports: Sequence[Report], files: Iterable[StagedFile]) -> list[str]:
    """Return a sentence for each watermark that went back, or passed a change that no staged file had."""
    wrong = [
        f"the watermark went back by {(before.watermark - after.watermark) / 1e9:.3f} s"
        for before, after in pairwise(reports)
        if after.watermark < before.watermark
    ]
    for file in files:
        for report in reports:
            if file.earliest < report.watermark and file.staged > report.checkpoint + _CLOCK_STEP_NS:
                wrong.append(
                    f"{file.name} was staged {(file.staged - report.checkpoint) / 1e9:.3f} s after a checkpoint whose "
                    f"watermark had passed its first change by {(report.watermark - file.earliest) / 1e9:.3f} s"
                )
                break
    return wrong
