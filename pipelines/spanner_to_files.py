"""Spanner change stream to JSON Lines files, one line per changed row, exactly once.

    penstock run spanner-to-files --set project=… --checkpoint-dir …
    python -m penstock.pipelines.spanner_to_files --project=… --checkpoint_dir=…
    spark-submit …/spanner_to_files.py --project=… --checkpoint_dir=…

Order: within (table, hour, shard), the order of file names and then of lines is the commit order of each
primary key. After a crash no line is lost and none is repeated. State: the lines that wait for the next
roll. The watermark is that of the source, held back by lines that are not yet published.
"""

from __future__ import annotations

from functools import partial
from operator import attrgetter

import apache_beam as beam

from penstock.io.files import WriteToJsonLines
from penstock.io.spanner import ReadFromSpannerChangeStream
from penstock.pipelines.program import run_program, run_script
from penstock.transforms.formats.spanner_lines import ModLine, mod_lines


def spanner_to_files(
    pipeline: beam.Pipeline,
    *,
    project: str,
    instance: str,
    database: str,
    change_stream: str,
    output: str,
    start: str | None = None,
    end: str | None = None,
    heartbeat_seconds: float = 1,
    poll_seconds: float = 0.2,
    unavailable_seconds: float = 60,
    shards: int = 1,
    roll_seconds: float = 10,
) -> beam.PCollection:
    """Apply the whole pipeline to `pipeline`; returns the published files.

    The arguments are the parameters of the template `spanner-to-files`, which says what each means.
    `start` and `end` are inclusive and RFC 3339 in UTC.
    """
    records = pipeline | "ReadChangeStream" >> ReadFromSpannerChangeStream(
        project=project,
        instance=instance,
        database=database,
        change_stream=change_stream,
        start=start,
        end=end,
        heartbeat_seconds=heartbeat_seconds,
        poll_seconds=poll_seconds,
        unavailable_seconds=unavailable_seconds,
    )
    lines = records | "ToLines" >> beam.FlatMap(mod_lines).with_output_types(ModLine)
    return lines | "WriteFiles" >> WriteToJsonLines(
        output,
        table=attrgetter("table"),
        key=attrgetter("table", "keys"),
        format=attrgetter("line"),
        shards=shards,
        roll_seconds=roll_seconds,
    )


main = partial(run_program, spanner_to_files)
"""Run the pipeline as a program; see `run_program`."""

if __name__ == "__main__":
    # As a script this module is `__main__`, which no worker can import, so the importable module runs.
    run_script("penstock.pipelines.spanner_to_files")
