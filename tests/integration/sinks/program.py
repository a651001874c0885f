"""A program for kill campaigns: keys that count, as change events, into several targets at once.

    python -m tests.integration.sinks.program DSN BOOTSTRAP_SERVERS CHECKPOINT HOOKS KEYS

The number n of a key is a statement on a row (`event_of`), so the rows and the log that must be in the targets follow
from the last numbers. The numbers end as those of `tests.integration.files.counting` do.
"""

from __future__ import annotations

import sys
from typing import Any

import apache_beam as beam

from penstock.event import ChangeEvent, Column, ColumnType, Kind, Op, Source, TableSchema, Version
from penstock.io.kafka import WriteToKafka
from penstock.io.sql import WriteToSql
from penstock.runner import PySparkRunner
from penstock.transforms.formats.formatted import FormattedRecord
from tests.integration.files.counting import HookFn, count_fn

SOURCE = Source("spanner", "test", "shop", "", "counts")
_INT, _TEXT = ColumnType(Kind.INT64), ColumnType(Kind.STRING)
SCHEMA = TableSchema(
    (Column("owner", _TEXT, False, 1), Column("slot", _INT, False, 2), Column("a", _INT), Column("b", _INT))
)
ROUND, SLOTS = 4, 7
"""Each row gets four statements in a row; a key has so many rows, and begins again with the first one."""


def event_of(owner: str, number: int) -> ChangeEvent:
    """Return the statement `number` of an owner: CREATE, two partial UPDATEs, and a DELETE or an UPDATE."""
    round_, step = divmod(number, ROUND)
    key = {"owner": owner, "slot": round_ % SLOTS}
    op, after = statement(number, step)
    after = None if after is None else key | after
    version = Version(number, str(number), f"{owner:>4}")
    return ChangeEvent(SOURCE, op, number * 1000, key, None, after, version, SCHEMA)


def statement(number: int, step: int) -> tuple[Op, dict[str, int] | None]:
    if step == 0:
        return Op.CREATE, {"a": number, "b": number}
    if step == 3 and number % 3 == 0:
        return Op.DELETE, None
    return Op.UPDATE, {"a" if step == 1 else "b": number}


def to_event(row: dict[str, Any]) -> ChangeEvent:
    return event_of(row["key"], row["n"])


def record_of(event: ChangeEvent) -> list[FormattedRecord]:
    """A format: the topic shop.counts, the owner as the key, the number as the value."""
    assert event.key is not None
    owner, number = event.key["owner"], event.version.order
    return [
        FormattedRecord("shop.counts", owner.encode(), str(number).encode(), event.timestamp, event.version)
    ]


def main(dsn: str, servers: str, checkpoint: str, hooks: str, keys: str) -> int:
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
    delivered = events | "Replica" >> WriteToSql(dsn, shards=2)
    delivered | "Sent" >> beam.ParDo(HookFn(hooks, "sent"))
    events | "Log" >> WriteToSql(dsn, mode="log", table="{table}_log", shards=2)
    if servers:
        events | "Queue" >> WriteToKafka(servers, format=record_of, shards=2)
    return 0 if pipeline.run().wait_until_finish() == "DONE" else 1


if __name__ == "__main__":
    from tests.integration.sinks import program  # workers must find the DoFns by name

    sys.exit(program.main(*sys.argv[1:]))
