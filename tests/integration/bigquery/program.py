"""A program for kill campaigns: keys that count, as change events, into a change log of BigQuery.

    python -m tests.integration.bigquery.program ENDPOINT WRITE_ENDPOINT CHECKPOINT HOOKS KEYS

The numbers of a key begin at 0 and end as those of `tests.integration.files.counting` do.
"""

from __future__ import annotations

import sys
from typing import Any

import apache_beam as beam

from penstock.event import ChangeEvent
from penstock.io.bigquery import WriteToBigQuery
from penstock.runner import PySparkRunner
from tests.integration.files.counting import HookFn, count_fn
from tests.integration.sinks.program import to_event


def main(endpoint: str, write_endpoint: str, checkpoint: str, hooks: str, keys: str) -> int:
    """Run to the end; 0 if the pipeline is DONE."""
    arguments = [f"--checkpoint_dir={checkpoint}", "--streaming", "--spark_master=local[2,4]"]
    pipeline = beam.Pipeline(runner=PySparkRunner(), argv=arguments)
    events = (
        pipeline
        | beam.Create([f"k{number}" for number in range(int(keys))])
        | "Count" >> beam.ParDo(count_fn(hooks)).with_output_types(dict[str, Any])
        | "Read" >> beam.ParDo(HookFn(hooks, "read")).with_output_types(dict[str, Any])
        | "Event" >> beam.Map(to_event).with_output_types(ChangeEvent)
    )
    delivered = events | "Log" >> WriteToBigQuery(
        project="p", dataset="shop", shards=2, endpoint=endpoint, write_endpoint=write_endpoint
    )
    delivered | "Sent" >> beam.ParDo(HookFn(hooks, "sent"))
    return 0 if pipeline.run().wait_until_finish() == "DONE" else 1


if __name__ == "__main__":
    from tests.integration.bigquery import program  # workers must find the DoFns by name

    sys.exit(program.main(*sys.argv[1:]))
