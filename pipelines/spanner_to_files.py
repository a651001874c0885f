"""Spanner change stream to files of lines, exactly once: one line per changed row, as sent or in a format.

    penstock run spanner-to-files --set project=… --checkpoint-dir …
    python -m penstock.pipelines.spanner_to_files --project=… --checkpoint_dir=…
    spark-submit …/spanner_to_files.py --project=… --checkpoint_dir=…

Order: within (table, hour, shard), the order of file names and then of lines is the commit order of each primary key.
After a crash no line is lost and none is repeated. State: the lines that wait for the next roll. The watermark is that
of the source, held back by lines that are not yet published. With snapshot=initial, the rows of the tables come first,
as lines with the mod_type READ. Materialized rows and barriers keep more state.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import apache_beam as beam

from penstock.event import Op
from penstock.io.spanner import ReadFromSpannerChangeStream
from penstock.io.spanner.events import OPS
from penstock.io.spanner.filter import Selection
from penstock.pipelines.event_lines import EventLines, NativeLines, WriteLines, readable, with_lineage_log
from penstock.pipelines.event_options import NATIVE, EventOptions
from penstock.pipelines.parameters import takes
from penstock.pipelines.program import run_program, run_script
from penstock.transforms.formats.spanner_lines import mod_lines


@takes(
    ReadFromSpannerChangeStream,
    "project instance database change_stream start end snapshot snapshot_data_boost signal_table signal_file "
    "signal_folder chunk_rows parallel_tables heartbeat_seconds poll_seconds unavailable_seconds tables mod_types "
    "exclude_transaction_tags dialect database_role rpc_priority include_replicas exclude_replicas auto_failover "
    "api_endpoint plain_text root_certificates client_certificate client_key",
    events_of="spanner",
)
def spanner_to_files(
    pipeline: beam.Pipeline,
    *,
    source: ReadFromSpannerChangeStream,
    events: EventOptions,
    output: str,
    shards: int = 1,
    roll_seconds: float = 10,
    lineage_log: str | None = None,
) -> beam.PCollection:
    """Apply the whole pipeline to `pipeline`; returns the published files.

    The arguments are the parameters of the template `spanner-to-files`, which says what each means.
    `start` and `end` are inclusive and RFC 3339 in UTC.

    Raises:
        UsageError: an argument is malformed or out of range; the message names it.
    """
    if events.materialize_rows:
        source, events = filtering_after_rows(source, events)
    to_lines: beam.PTransform = NativeLines(events, mod_lines)
    if events.format != NATIVE:
        to_lines = EventLines(
            events, "spanner", source.stream, source.capture_type, shards, source.source_tables
        )
    read = readable(with_lineage_log(source, lineage_log), events)
    lines = pipeline | "ReadChangeStream" >> read | "ToLines" >> to_lines
    return lines | "WriteFiles" >> WriteLines(events, output, shards=shards, roll_seconds=roll_seconds)


def filtering_after_rows(
    source: ReadFromSpannerChangeStream, events: EventOptions
) -> tuple[ReadFromSpannerChangeStream, EventOptions]:
    """Move the filters `mod_types` and `exclude_transaction_tags` from the source to the step after `MaterializeRows`.

    That step completes a row from all of its earlier changes, also from those that are not written.
    """
    selection = source.selection
    operations = [OPS[mod_type].value for mod_type in sorted(selection.mod_types)]
    if operations:
        operations.append(Op.READ.value)  # mod_types does not concern the rows of a snapshot
    later = replace(events, operations=operations, without_tags=sorted(selection.excluded_tags))
    return source.with_selection(Selection(selection.tables)), later


main = partial(run_program, spanner_to_files)
"""Run the pipeline as a program; see `run_program`."""

if __name__ == "__main__":
    # As a script this module is `__main__`, which no worker can import, so the importable module runs.
    run_script("penstock.pipelines.spanner_to_files")
