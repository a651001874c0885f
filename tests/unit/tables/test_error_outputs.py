"""Each sink with columns has an error output, and a limit for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.testing.util import assert_that, equal_to

from penstock.errors import UsageError
from penstock.event import ChangeEvent, Kind, Op
from penstock.io.delta import WriteToDelta
from penstock.io.files import WriteToAvro, WriteToParquet
from penstock.io.iceberg import WriteToIceberg
from penstock.io.spark import WriteToSpark
from tests.unit.formats.events import event_of, schema_of

SCHEMA = schema_of({"id": Kind.INT64}, at=Kind.TIMESTAMP)
EVENTS = [
    event_of(SCHEMA, Op.CREATE, after={"id": number, "at": 1_000 * number + (number % 2)})
    for number in range(6)
]
"""Every second one has nanoseconds, which no table can hold."""


def save(dataframe: Any, epoch_id: int) -> None:
    raise AssertionError("not called here")


SINKS = {
    "avro": lambda folder: WriteToAvro(folder),
    "delta": lambda folder: WriteToDelta(folder),
    "iceberg": lambda folder: WriteToIceberg("shop.t"),
    "parquet": lambda folder: WriteToParquet(folder),
    "spark": lambda folder: WriteToSpark(save),
}


@pytest.mark.parametrize("name", SINKS)
def test_a_sink_stops_at_max_dead_letters(name: str, tmp_path: Path):
    pipeline = beam.Pipeline()
    sink = SINKS[name](tmp_path).with_exception_handling(max_dead_letters=3)
    events = pipeline | beam.Create(EVENTS).with_output_types(ChangeEvent)
    _, refused = events | "Write" >> sink
    assert refused.producer.full_label.startswith("Write/Limit/")
    with pytest.raises(UsageError, match="max_dead_letters must be 1 or more"):
        SINKS[name](tmp_path).with_exception_handling(max_dead_letters=0)


def test_the_limit_counts_refused_rows_only(tmp_path: Path):
    sink = WriteToParquet(tmp_path / "a").with_exception_handling(max_dead_letters=4)
    with beam.Pipeline("FnApiRunner") as pipeline:
        _, refused = pipeline | beam.Create(EVENTS).with_output_types(ChangeEvent) | sink
        keys = refused | beam.Map(lambda each: each.event.key["id"])
        assert_that(keys, equal_to([1, 3, 5]))


def test_the_row_that_reaches_the_limit_fails_the_pipeline_with_its_position(tmp_path: Path):
    sink = WriteToParquet(tmp_path / "b").with_exception_handling(max_dead_letters=3)
    pipeline = beam.Pipeline("FnApiRunner")
    _ = pipeline | beam.Create(EVENTS).with_output_types(ChangeEvent) | sink
    with pytest.raises(Exception, match=r"3 rows refused by a Parquet file.*position .*column at.*max_dead"):
        pipeline.run().wait_until_finish()
