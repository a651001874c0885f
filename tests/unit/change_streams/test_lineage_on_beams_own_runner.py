"""A log of a source on Beam's FnApiRunner, which mixes up the timers of two sinks in one stage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import TaggedOutput

from penstock.io.change_streams.lineage import LINEAGE_EVENTS
from penstock.io.files import WriteToJsonLines
from penstock.io.spanner import ReadFromSpannerChangeStream


class EmitRecordsAndEvents(beam.DoFn):
    """Stands for the reader: three records, and two lineage events."""

    def __init__(self, settings: Any) -> None:
        pass

    def process(self, stream: Any) -> Iterator[Any]:
        for number in range(3):
            yield {"record": number}
        for number in range(2):
            yield TaggedOutput(LINEAGE_EVENTS, {"event": number})


class ReadWithoutService(ReadFromSpannerChangeStream):
    bounded_fn: Any = EmitRecordsAndEvents
    record_type = dict


def lines(folder: Path) -> list[str]:
    return sorted(line for path in folder.glob("*/*/*.jsonl") for line in path.read_text().splitlines())


def test_the_records_and_the_lineage_log_are_both_complete(tmp_path: Path) -> None:
    read = ReadWithoutService(
        project="p", instance="i", database="d", change_stream="S", start=1, end=2, emulator_host="h:1"
    )
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        (
            pipeline
            | read.with_lineage(WriteToJsonLines(tmp_path / "log", table="lineage"))
            | WriteToJsonLines(tmp_path / "out", table="records")
        )
    assert lines(tmp_path / "out") == ['{"record":0}', '{"record":1}', '{"record":2}']
    assert lines(tmp_path / "log") == ['{"event":0}', '{"event":1}']
