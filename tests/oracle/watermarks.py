"""The watermark that a pipeline reports while it runs, compared with the files that it has published.

The progress line names the lowest output watermark and the time of the checkpoint that has it. A change below that
watermark must have been in a staged file before that checkpoint. A file keeps its modification time when it is
published.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.oracle.change import nanoseconds
from tests.oracle.lines import visible_files

_CLOCK_STEP = 10_000_000
"""How much later than a checkpoint a file may seem to be staged: the kernel's clock for files has steps."""


@dataclass(frozen=True, slots=True)
class Report:
    """A progress line. Times are nanoseconds since 1970: of the checkpoint, and its watermark."""

    checkpoint: int
    watermark: int


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file: its name, when it was staged, and its earliest commit timestamp, in nanoseconds since 1970."""

    name: str
    staged: int
    earliest: int


def reports_in(log: Path) -> list[Report]:
    """Return the progress lines of a run, without those before the first watermark."""
    found = map(_fields, log.read_text(errors="replace").splitlines())
    return [
        Report(nanoseconds(each["last_checkpoint"]), nanoseconds(each["watermark"]))
        for each in found
        if each.get("event") == "progress" and each["watermark"] and each["last_checkpoint"]
    ]


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
            if file.earliest < report.watermark and file.staged > report.checkpoint + _CLOCK_STEP:
                wrong.append(
                    f"{file.name} was staged {(file.staged - report.checkpoint) / 1e9:.3f} s after a checkpoint whose "
                    f"watermark had passed its first change by {(report.watermark - file.earliest) / 1e9:.3f} s"
                )
                break
    return wrong


def _fields(line: str) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}
