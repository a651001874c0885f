"""Bigtable change stream to files of lines, exactly once: one line per changed cell, or records in a format.

    penstock run bigtable-to-files --set project=… --checkpoint-dir …
    python -m penstock.pipelines.bigtable_to_files --project=… --checkpoint_dir=…
    spark-submit …/bigtable_to_files.py --project=… --checkpoint_dir=…

Order: within (table, hour, shard), the order of file names and then of lines is the commit order of each row,
as each source cluster applied it. After a crash no line is lost and none is repeated. State: the lines that
wait for the next roll. The source sets the watermark; it is held back by lines that are not yet published.
"""

from __future__ import annotations

from functools import partial

import apache_beam as beam

from penstock.errors import UsageError
from penstock.io.bigtable import ReadFromBigtableChangeStream
from penstock.pipelines.event_lines import EventLines, NativeLines, WriteLines, readable, with_lineage_log
from penstock.pipelines.event_options import NATIVE, EventOptions
from penstock.pipelines.parameters import takes
from penstock.pipelines.program import run_program, run_script
from penstock.transforms.formats.bigtable_change_log import CHANGE_LOG, ROW, change_log_lines
from penstock.transforms.formats.capture import check_choice


@takes(
    ReadFromBigtableChangeStream,
    "project instance table app_profile start end snapshot signal_file signal_folder chunk_rows heartbeat_seconds "
    "families columns ignored_families ignored_columns garbage_collection source_clusters unavailable_seconds",
    events_of="bigtable",
)
def bigtable_to_files(
    pipeline: beam.Pipeline,
    *,
    source: ReadFromBigtableChangeStream,
    events: EventOptions,
    output: str,
    shape: str = CHANGE_LOG,
    base64: bool = False,
    shards: int = 1,
    roll_seconds: float = 10,
    lineage_log: str | None = None,
) -> beam.PCollection:
    """Apply the whole pipeline to `pipeline`; returns the published files.

    The arguments are the parameters of the template `bigtable-to-files`, which says what each means.
    `start` and `end` are inclusive and RFC 3339 in UTC; a column is ``family:qualifier``.

    Raises:
        UsageError: an argument is malformed or out of range; the message names it.
    """
    to_lines: beam.PTransform
    if events.format == NATIVE:
        check_choice("shape", shape, (CHANGE_LOG, ROW))
        names = {"instance": source.stream.instance, "table": source.stream.table}
        to_lines = NativeLines(events, partial(change_log_lines, **names, shape=shape, base64=base64))
    elif shape != CHANGE_LOG or base64:
        raise UsageError("shape and base64 are for native lines: leave them out, or leave out format")
    else:
        to_lines = EventLines(events, "bigtable", source.stream, str, shards)
    read = readable(with_lineage_log(source, lineage_log), events)
    lines = pipeline | "ReadChangeStream" >> read | "ToLines" >> to_lines
    return lines | "WriteFiles" >> WriteLines(events, output, shards=shards, roll_seconds=roll_seconds)


main = partial(run_program, bigtable_to_files)
"""Run the pipeline as a program; see `run_program`."""

if __name__ == "__main__":
    # As a script this module is `__main__`, which no worker can import, so the importable module runs.
    run_script("penstock.pipelines.bigtable_to_files")
