"""A YDB changefeed to files of lines, exactly once: one line per change, as YDB wrote it or in a format.

    penstock run ydb-to-files --set endpoint=… --set database=… --checkpoint-dir …
    python -m penstock.pipelines.ydb_to_files --endpoint=… --database=… --checkpoint_dir=…
    spark-submit …/ydb_to_files.py --endpoint=… --database=… --checkpoint_dir=…

Order: within (table, hour, shard), the order of file names and then of lines is the commit order of each primary key.
After a crash no line is lost and none is repeated. State: the lines that wait for the next roll. The watermark is that
of the source, held back by lines that are not yet published. Materialized rows and barriers keep more state.
"""

from __future__ import annotations

from functools import partial

import apache_beam as beam

from penstock.io.ydb import ReadFromYdbChangefeed
from penstock.pipelines.event_lines import EventLines, NativeLines, WriteLines, readable, with_lineage_log
from penstock.pipelines.event_options import NATIVE, EventOptions
from penstock.pipelines.parameters import takes
from penstock.pipelines.program import run_program, run_script
from penstock.transforms.formats.ydb_lines import changefeed_lines


@takes(
    ReadFromYdbChangefeed,
    "endpoint database table changefeed start end snapshot consumer delivery_seconds token user password "
    "service_account_file metadata_credentials root_certificates heartbeat_seconds unavailable_seconds",
    events_of="ydb",
)
def ydb_to_files(
    pipeline: beam.Pipeline,
    *,
    source: ReadFromYdbChangefeed,
    events: EventOptions,
    output: str,
    shards: int = 1,
    roll_seconds: float = 10,
    lineage_log: str | None = None,
) -> beam.PCollection:
    """Apply the whole pipeline to `pipeline`; returns the published files.

    The arguments are the parameters of the template `ydb-to-files`, which says what each means.
    `start` and `end` are inclusive and RFC 3339 in UTC.

    Raises:
        UsageError: an argument is malformed or out of range; the message names it.
    """
    to_lines: beam.PTransform = NativeLines(events, changefeed_lines)
    if events.format != NATIVE:
        to_lines = EventLines(events, "ydb", source.stream, source.capture_type, shards)
    records = pipeline | "ReadChangeStream" >> readable(with_lineage_log(source, lineage_log), events)
    lines = records | "ToLines" >> to_lines
    return lines | "WriteFiles" >> WriteLines(events, output, shards=shards, roll_seconds=roll_seconds)


main = partial(run_program, ydb_to_files)
"""Run the pipeline as a program; see `run_program`."""

if __name__ == "__main__":
    # As a script this module is `__main__`, which no worker can import, so the importable module runs.
    run_script("penstock.pipelines.ydb_to_files")
