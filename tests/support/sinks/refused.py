"""What the error outputs of the sinks under test must have: the one row that every target refuses, once."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import apache_beam as beam

from penstock.io.files import WriteToJsonLines
from penstock_emulators.oracle.lines import read_lines
from tests.support.sinks.source import BAD_NUMBER, BAD_OWNER, BAD_WRITER, number_at
from tests.support.sinks.target import Refused


def write_refused(outputs: Refused, folder: str) -> None:
    """Write all error outputs to a folder, each as a table of its name."""
    lines = [
        refused | f"Lines of {label}" >> beam.Map(_line, label).with_output_types(dict[str, Any])
        for label, refused in outputs.items()
    ]
    if lines:
        _ = lines | beam.Flatten() | "Refused" >> WriteToJsonLines(folder, table=_sink, roll_seconds=0)


def _line(refused: Any, label: str) -> dict[str, Any]:
    event = refused.event
    name = event.key.get("owner") or event.key["row_key"].decode().partition("/")[0]
    return {
        "sink": label,
        "owner": name,
        "order": event.version.order,
        "reason": refused.reason[:100],
    }


def _sink(line: dict[str, Any]) -> str:
    name: str = line["sink"]
    return name


def refusal_faults(folder: Path, sinks: Iterable[str]) -> list[str]:
    """Return one sentence for each of the sinks whose error output does not have the refused row exactly once."""
    lines = [line.content for line in read_lines(folder)] if folder.exists() else []
    faults = []
    for sink in sinks:
        rows = [(line["owner"], number_at(line["order"])) for line in lines if line["sink"] == sink]
        if rows != [(BAD_OWNER, BAD_NUMBER)]:
            faults.append(f"the error output of {sink} has {rows}, and not the row of {BAD_WRITER}")
    return faults
