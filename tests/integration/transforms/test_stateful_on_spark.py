"""Transforms that keep state, on Spark: transfers that overtake each other across partitions and tables."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from penstock.runner import PySparkRunner
from penstock.transforms import (
    AssembledTransaction,
    AssembleTransactions,
    Barriers,
    Deduplicate,
    OrderByKey,
    ShardByKey,
    ShardRecord,
)
from tests.simulation.transforms.scripts import event, script, shuffled_with_lag
from tests.simulation.transforms.test_assemble_transactions import total, transfers

pytestmark = [pytest.mark.spark, pytest.mark.slow]


class AppendLineFn(beam.DoFn):
    """Appends a line to the file `name`; a script has one run, so no line comes twice."""

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__()
        self._path = folder / name

    def process(self, line: str) -> None:
        with self._path.open("a") as file:
            file.write(line + "\n")


def as_line(transaction: AssembledTransaction) -> str:
    return f"{transaction.timestamp} {transaction.id} {total(transaction)} {len(transaction.events)}"


def run(spark: Any, folder: Path, build: Any) -> None:
    options = PipelineOptions([f"--checkpoint_dir={folder / 'checkpoint'}", "--spark_parallelism=2"])
    pipeline = beam.Pipeline(runner=PySparkRunner(spark), options=options)
    build(pipeline)
    pipeline.run().wait_until_finish()


def test_transfers_are_whole_and_in_commit_order_on_spark(spark: Any, tmp_path: Path) -> None:
    rng = random.Random(11)
    events = transfers(rng, 12)
    steps = shuffled_with_lag([*events, *events[:5]], rng, lag_ms=4)

    def build(pipeline: beam.Pipeline) -> None:
        whole = pipeline | script(steps) | Deduplicate(horizon_seconds=60) | AssembleTransactions()
        _ = whole | beam.Map(as_line) | beam.ParDo(AppendLineFn(tmp_path, "transactions"))

    run(spark, tmp_path, build)
    lines = [line.split() for line in (tmp_path / "transactions").read_text().splitlines()]
    order = [(int(at), name) for at, name, _, _ in lines]
    assert order == sorted(order)
    assert [amount for _, _, amount, _ in lines] == ["0"] * 12
    assert sum(int(count) for *_, count in lines) == len(events)


def in_shard(pair: tuple[int, ShardRecord]) -> str:
    shard, record = pair
    return f"{shard} {record.timestamp.step} {record.timestamp.tx_id} {int(record.is_barrier)}"


def test_no_earlier_event_follows_a_barrier_on_spark(spark: Any, tmp_path: Path) -> None:
    rng = random.Random(12)
    events = [event(n % 8, 1_000_000 + 900 * n, f"t{n}") for n in range(40)]
    steps = shuffled_with_lag(events, rng, lag_ms=6)

    def build(pipeline: beam.Pipeline) -> None:
        shards = pipeline | script(steps) | OrderByKey() | ShardByKey(2)
        records = shards | Barriers(shards=2, interval_seconds=0.005)
        _ = records | beam.Map(in_shard) | beam.ParDo(AppendLineFn(tmp_path, "records"))

    run(spark, tmp_path, build)
    lines = [list(map(int, line.split())) for line in (tmp_path / "records").read_text().splitlines()]
    assert sum(not barrier for *_, barrier in lines) == 40
    barriers = []
    for shard in (0, 1):
        rows = [row for row in lines if row[0] == shard]
        stamps = [(step, tx_id) for _, step, tx_id, _ in rows]
        for n, (_, _, _, barrier) in enumerate(rows):
            assert not barrier or min(stamps[n:]) == stamps[n]
        barriers.append([step for _, step, _, barrier in rows if barrier])
    assert barriers[0] == barriers[1] == sorted(set(barriers[0]))
