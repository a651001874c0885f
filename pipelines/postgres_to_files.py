"""PostgreSQL's log to files of lines, exactly once: one line per changed row, as sent or in a format.

    penstock run postgres-to-files --set dsn=… --checkpoint-dir …
    python -m penstock.pipelines.postgres_to_files --dsn=… --checkpoint_dir=…
    spark-submit …/postgres_to_files.py --dsn=… --checkpoint_dir=…

Order: within (table, hour, shard), the order of file names and then of lines is the commit order of each primary key.
After a crash no line is lost and none is repeated. State: the lines that wait for the next roll. The watermark is that
of the source, held back by lines that are not yet published. Materialized rows and barriers keep more state.
"""

from __future__ import annotations

from functools import partial

import apache_beam as beam

from penstock.io.postgres import ReadFromPostgresChangeStream
from penstock.pipelines.event_lines import EventLines, NativeLines, WriteLines, readable
from penstock.pipelines.event_options import NATIVE, EventOptions
from penstock.pipelines.parameters import takes
from penstock.pipelines.program import run_program, run_script
from penstock.pipelines.transaction_metadata import refuse_snapshots
from penstock.transforms.formats.postgres_lines import log_lines


@takes(
    ReadFromPostgresChangeStream,
    "dsn publication slot further_slots create_slot start end tables protocol streaming binary heartbeat_seconds "
    "unavailable_seconds "
    "snapshot signal_table signal_file signal_folder chunk_rows parallel_tables",
    events_of="postgres",
)
def postgres_to_files(
    pipeline: beam.Pipeline,
    *,
    source: ReadFromPostgresChangeStream,
    events: EventOptions,
    output: str,
    shards: int = 1,
    roll_seconds: float = 10,
) -> beam.PCollection:
    """Apply the whole pipeline to `pipeline`; returns the published files.

    The arguments are the parameters of the template `postgres-to-files`, which says what each means.
    `start` and `end` are inclusive and RFC 3339 in UTC.

    Raises:
        UsageError: an argument is malformed or out of range; the message names it.
    """
    refuse_snapshots(events, source)
    to_lines: beam.PTransform = NativeLines(events, log_lines)
    if events.format != NATIVE:
        to_lines = EventLines(
            events, "postgres", source.stream, source.capture_type, shards, source.source_tables
        )
    lines = pipeline | "ReadChangeStream" >> readable(source, events) | "ToLines" >> to_lines
    return lines | "WriteFiles" >> WriteLines(events, output, shards=shards, roll_seconds=roll_seconds)


main = partial(run_program, postgres_to_files)
"""Run the pipeline as a program; see `run_program`."""

if __name__ == "__main__":
    # As a script this module is `__main__`, which no worker can import, so the importable module runs.
    run_script("penstock.pipelines.postgres_to_files")
