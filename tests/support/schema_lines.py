"""Files of a log with SCHEMA events: what each shard tells of the columns of a table, beside its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from penstock.io.files.options import FileOptions
from penstock.pipelines.event_lines import EventLines, WriteLines
from penstock.pipelines.event_options import EventOptions
from penstock_emulators.oracle.lines import read_lines

SHARDS = 2
_OF_CHANGE = 4
"""Columns of the change feed at the end of a row."""


def write_lines(
    output: Path, records: Iterable[Any], system: str, stream: Any, capture: Callable[[], str]
) -> None:
    """Write the records of a source as a change feed with SCHEMA events, on a runner of Beam."""
    options = EventOptions.of(system, {"format": "change_feed", "schema_events": True})
    lines = EventLines(options, system, stream, capture, SHARDS)
    with beam.Pipeline(FnApiRunner()) as pipeline:
        written = WriteLines(options, FileOptions(output=str(output), shards=SHARDS, roll_seconds=0))
        _ = pipeline | beam.Create(list(records)) | lines | written


def told_columns(output: Path) -> dict[str, list[list[str]]]:
    """Return of each shard the columns that its SCHEMA events tell.

    Every row has the columns that the last event before it in its shard tells, and each event begins where the last one
    ended.
    """
    told: dict[str, list[list[str]]] = {}
    for line in read_lines(output):
        of_shard, content = told.setdefault(line.shard, []), line.content
        if content["_change_type"] == "schema":
            before = content["_columns_before"]
            assert (before and names(before)) == (of_shard[-1] if of_shard else None)
            of_shard.append(names(content["_columns"]))
        else:
            assert of_shard, "a row comes before the columns of its table are told"
            assert list(content)[:-_OF_CHANGE] == of_shard[-1], "the columns of a row were not told"
    return told


def names(columns: list[dict[str, Any]]) -> list[str]:
    return [each["name"] for each in columns]
