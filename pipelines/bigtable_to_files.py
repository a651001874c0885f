"""Bigtable change stream to JSON Lines files, one line per changed cell, exactly once.

    penstock run bigtable-to-files --set project=… --checkpoint-dir …
    python -m penstock.pipelines.bigtable_to_files --project=… --checkpoint_dir=…
    spark-submit …/bigtable_to_files.py --project=… --checkpoint_dir=…

Order: within (table, hour, shard), the order of file names and then of lines is the commit order of each row,
as each source cluster applied it. After a crash no line is lost and none is repeated. State: the lines that
wait for the next roll. The watermark is that of the source, held back by lines that are not yet published.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import attrgetter

import apache_beam as beam

from penstock.errors import UsageError
from penstock.io.bigtable import ReadFromBigtableChangeStream
from penstock.io.files import WriteToJsonLines
from penstock.pipelines.program import run_program, run_script
from penstock.transforms.formats.bigtable_change_log import CHANGE_LOG, ROW, ChangeLogLine, change_log_lines


def bigtable_to_files(
    pipeline: beam.Pipeline,
    *,
    project: str,
    instance: str,
    table: str,
    output: str,
    app_profile: str = "default",
    start: str | None = None,
    end: str | None = None,
    heartbeat_seconds: float = 1,
    families: Sequence[str] = (),
    columns: Sequence[str] = (),
    ignored_families: Sequence[str] = (),
    ignored_columns: Sequence[str] = (),
    garbage_collection: bool = True,
    source_clusters: Sequence[str] = (),
    shape: str = CHANGE_LOG,
    base64: bool = False,
    unavailable_seconds: float = 60,
    shards: int = 1,
    roll_seconds: float = 10,
) -> beam.PCollection:
    """Apply the whole pipeline to `pipeline`; returns the published files.

    The arguments are the parameters of the template `bigtable-to-files`, which says what each means.
    `start` and `end` are inclusive and RFC 3339 in UTC; a column is ``family:qualifier``.

    Raises:
        UsageError: an argument is malformed or out of range; the message names it.
    """
    if shape not in (CHANGE_LOG, ROW):
        raise UsageError(f"shape {shape!r} is neither {CHANGE_LOG} nor {ROW}")
    changes = pipeline | "ReadChangeStream" >> ReadFromBigtableChangeStream(
        project=project,
        instance=instance,
        table=table,
        app_profile=app_profile,
        start=start,
        end=end,
        heartbeat_seconds=heartbeat_seconds,
        families=families,
        columns=columns,
        ignored_families=ignored_families,
        ignored_columns=ignored_columns,
        garbage_collection=garbage_collection,
        source_clusters=source_clusters,
        unavailable_seconds=unavailable_seconds,
    )
    to_lines = partial(change_log_lines, instance=instance, table=table, shape=shape, base64=base64)
    lines = changes | "ToLines" >> beam.FlatMap(to_lines).with_output_types(ChangeLogLine)
    return lines | "WriteFiles" >> WriteToJsonLines(
        output,
        table=table,
        key=attrgetter("row_key"),
        format=attrgetter("line"),
        shards=shards,
        roll_seconds=roll_seconds,
    )


main = partial(run_program, bigtable_to_files)
"""Run the pipeline as a program; see `run_program`."""

if __name__ == "__main__":
    # As a script this module is `__main__`, which no worker can import, so the importable module runs.
    run_script("penstock.pipelines.bigtable_to_files")
