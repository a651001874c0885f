"""Table sinks on the real driver and tasks, in this process: one order for the events of a table, and one commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import apache_beam as beam
import pytest
from apache_beam.testing.test_stream import TestStream

from penstock.event import ChangeEvent
from penstock.io.columnar.publish_tables import publish_tables
from penstock.io.columnar.replica import events_of_epoch
from penstock.io.delta import WriteToDelta
from penstock.io.delta.target import DeltaTarget
from penstock.io.iceberg import WriteToIceberg
from penstock.io.staging.batch import EventBlocks, StagedBatch
from penstock.io.staging.coders import RecordBlockCoder
from penstock.io.staging.options import StagingOptions
from penstock.io.staging.publish_epochs import PublishEpochs
from tests.simulation.stream import run_stream
from tests.support.catalogs import catalog_in
from tests.support.key_histories import KeyHistory


def history_of_new_keys() -> KeyHistory:
    """40 rows; 20 of them get another large value, and then another key, without the large value."""
    history = KeyHistory(statements_of_a_transaction=20)
    for key in range(40):
        history.insert(key)
    for key in range(20):
        history.update(key, key, {"big": f"new {key}"})
    for key in range(20):
        history.update(key, key + 1000, {})
    return history


def stream_of(*elements: Sequence[ChangeEvent]) -> TestStream:
    stream = TestStream()
    for each in elements:
        stream = stream.add_elements(each)
    return stream.advance_watermark_to_infinity()


def expected(history: KeyHistory) -> list[tuple[int, str, str]]:
    return sorted((key, row["big"], row["wide"]) for key, row in history.rows.items())


def delta(folder: Path, **options: Any) -> tuple[beam.PTransform, Callable[[], Any]]:
    uri = str(folder / "lake")
    return WriteToDelta(uri, roll_seconds=0, **options), lambda: delta_rows(uri)


def delta_vectors(folder: Path) -> tuple[beam.PTransform, Callable[[], Any]]:
    return delta(folder, deletion_vectors=True)


def delta_rows(uri: str) -> Any:
    import pyarrow as pa
    from deltalake import DeltaTable, QueryBuilder

    return pa.table(QueryBuilder().register("t", DeltaTable(uri)).execute("select * from t"))


def iceberg(folder: Path) -> tuple[beam.PTransform, Callable[[], Any]]:
    from pyiceberg.catalog import load_catalog

    properties = catalog_in(folder)
    sink = WriteToIceberg("shop.t", catalog="test", catalog_properties=properties, roll_seconds=0)
    return sink, lambda: load_catalog("test", **properties).load_table("shop.t").scan().to_arrow()


def live(table: Any) -> list[tuple[int, str, str]]:
    rows = table.to_pylist()
    return sorted((row["id"], row["big"], row["wide"]) for row in rows if not row["_penstock_deleted"])


@pytest.mark.parametrize("epochs", [(40,), (40, 60), (70,)])
@pytest.mark.parametrize("sink", [delta, delta_vectors, iceberg])
def test_a_row_keeps_its_large_value_when_its_key_changes(
    sink: Any, epochs: tuple[int, ...], tmp_path: Path
) -> None:
    """Whether the value and the key change in one epoch, in two, or within one that has a part of a transaction."""
    history = history_of_new_keys()
    write, read = sink(tmp_path)
    parts = [history.events[start:end] for start, end in pairwise((0, *epochs, len(history.events)))]
    run_stream(lambda p: p | stream_of(*parts) | write, folder=tmp_path)
    assert live(read()) == expected(history)


class Published:
    """A target that keeps what each epoch published: the batches, and the keys of the events."""

    name = "a list"
    calls: ClassVar[list[tuple[int, list[int]]]] = []

    def check(self) -> None:
        pass

    def publish(self, delivery: Any, batches: Sequence[StagedBatch]) -> None:
        keys = [event.key["id"] for table in events_of_epoch(batches) for event in table.events if event.key]
        self.calls.append((len(batches), keys))


def test_all_events_of_an_epoch_are_one_batch_in_the_order_of_the_table(tmp_path: Path) -> None:
    history = history_of_new_keys()
    Published.calls = []
    run_stream(
        lambda p: (
            p
            | stream_of(history.events[:40], history.events[40:])
            | publish_tables(Published(), options=StagingOptions())
        ),
        folder=tmp_path,
    )
    keys = [event.key["id"] for event in history.events if event.key]
    assert Published.calls == [(1, keys[:40]), (1, keys[40:])]


def test_events_that_a_checkpoint_of_four_shards_holds_come_before_those_of_one_shard(tmp_path: Path) -> None:
    """The checkpoint has new large values in four shards, for an hour. Then the keys change, with `roll_seconds=0`."""
    history = history_of_new_keys()
    target = DeltaTarget(str(tmp_path / "lake"), "current", "evolve")

    def with_four_shards(p: beam.Pipeline) -> None:
        format = EventBlocks(RecordBlockCoder().encode)
        _ = p | stream_of(*parts) | "Publish" >> PublishEpochs(target, format, shards=4, roll_seconds=3600)

    def with_one_shard(p: beam.Pipeline) -> None:
        _ = p | stream_of(*parts) | "Publish" >> publish_tables(target, options=StagingOptions())

    parts = (history.events[:40], history.events[40:60], history.events[60:])
    read = 0

    def has_read_twice(record: Any) -> bool:
        nonlocal read
        read += 1
        return read == 3

    run_stream(with_four_shards, folder=tmp_path, stop=has_read_twice)
    assert not (tmp_path / "lake").exists(), "the checkpoint does not hold the events"
    run_stream(with_one_shard, folder=tmp_path)
    assert live(delta_rows(str(tmp_path / "lake"))) == expected(history)
