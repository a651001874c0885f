"""PostgreSQL's log to files of lines, exactly once: one line per changed row, as sent or in a format.

    penstock run postgres-to-files --set dsn=… --checkpoint-dir …
    python -m penstock.pipelines.postgres_to_files --dsn=… --checkpoint_dir=…
    spark-submit …/postgres_to_files.py --dsn=… --checkpoint_dir=…

Order: within (table, hour, shard), the order of file names and then of lines is the commit order of each primary key.
After a crash no line is lost and none is repeated. State: the lines that wait for the next roll. The source's
watermark is held back by lines that are not yet published. Materialized rows and barriers keep more state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apache_beam as beam

from penstock.pipelines.parameters import parameters_of
from penstock.pipelines.program import run_program, run_script
from penstock.pipelines.source_to_sink import build


def postgres_to_files(
    pipeline: beam.Pipeline, *, replay: Any = None, preview: Any = None, **choices: Any
) -> beam.PCollection:
    """Apply the pipeline of the template `postgres-to-files`, which says what each choice means; return the files.

    See `penstock.pipelines.source_to_sink.build`.
    """
    return build(pipeline, "postgres", "files", choices, replay=replay, preview=preview)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the pipeline as a program; see `run_program`."""
    return run_program(postgres_to_files, arguments, parameters_of("postgres", "files").every)


if __name__ == "__main__":
    # As a script this module is `__main__`, which no worker can import, so the importable module runs.
    run_script("penstock.pipelines.postgres_to_files")
