"""The transform in Beam pipelines: on Beam's own runner, and on Spark."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from penstock.io.bigtable import (
    ChangeStreamMutation,
    ChangeStreamMutationCoder,
    ReadFromBigtableTable,
    TableRow,
)
from penstock.runner import PySparkRunner
from tests.integration.bigtable.conftest import INSTANCE, PROJECT
from tests.integration.bigtable.emulator.client import set_cell
from tests.integration.bigtable.replay import assert_no_duplicates, assert_order_of_each_row, replayed

pytestmark = [pytest.mark.emulator, pytest.mark.slow]
SECOND = 1_000_000_000


class Keep(beam.DoFn):
    """Appends what it sees to a file: the pipeline is copied before it runs."""

    def __init__(self, path: str) -> None:
        self._path = path

    def process(self, record: Any, timestamp: Any = beam.DoFn.TimestampParam) -> None:
        line = [timestamp.micros, ChangeStreamMutationCoder().encode(record).hex()]
        with open(self._path, "a") as file:
            file.write(json.dumps(line) + "\n")


def kept(path: Path) -> list[tuple[int, ChangeStreamMutation]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [(micros, ChangeStreamMutationCoder().decode(bytes.fromhex(text))) for micros, text in lines]


def run(pipeline_of: Callable[[beam.Pipeline], Any]) -> Any:
    pipeline = beam.Pipeline(options=PipelineOptions(["--direct_num_workers=1"]))
    pipeline_of(pipeline)
    result = pipeline.run()
    result.wait_until_finish()
    return result


def counters(result: Any) -> dict[str, int]:
    found = result.metrics().query()["counters"]
    return {c.key.metric.name: c.committed for c in found if c.key.metric.namespace == "penstock.io.bigtable"}


def reader_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "bigtable-reader" in thread.name]


def test_a_bounded_reading_ends_by_itself_on_beams_own_runner(
    table: Any, writers: Callable[..., Any], tmp_path: Path
) -> None:
    start = time.time_ns()
    table.control.churn(0.3, seed=3, table=table.name)
    with writers(table, threads=2):
        time.sleep(3)
    end = time.time_ns()
    out = tmp_path / "records"
    result = run(lambda p: p | table.reading(start=start, end=end) | beam.ParDo(Keep(str(out))))
    pairs = kept(out)
    records = [record for _, record in pairs]
    assert all(micros == record.commit_timestamp // 1000 for micros, record in pairs)
    assert_no_duplicates(records)
    assert_order_of_each_row(records)
    assert replayed(records) == table.cells()
    seen = counters(result)
    assert seen["records"] == len(records)
    assert seen["entries"] == sum(len(record.entries) for record in records)
    assert seen["streams"] > 0


def test_an_error_in_the_middle_of_the_pipeline_leaves_no_thread_behind(table: Any) -> None:
    start = time.time_ns()
    table.client.write(b"a", set_cell("f", b"q", b"x"))
    reading = table.reading(start=start, end=start + 3 * SECOND)

    def explode(record: Any) -> None:
        raise ArithmeticError("downstream")

    with pytest.raises(Exception, match="downstream"):
        run(lambda p: p | reading | beam.Map(explode))
    until = time.monotonic() + 2
    while reader_threads() and time.monotonic() < until:
        time.sleep(0.05)
    assert reader_threads() == []


@pytest.mark.spark
def test_replay_equals_the_table_on_spark_through_churn(
    table: Any, writers: Callable[..., Any], spark: Any, tmp_path: Path, campaign: Any
) -> None:
    """Two workers, epochs of 0.2 s. Nothing is killed, so that side effects of a DoFn come once."""
    out = tmp_path / "records"
    options = [f"--checkpoint_dir={tmp_path / 'checkpoint'}", "--epoch_seconds=0.2", "--spark_parallelism=2"]
    pipeline = beam.Pipeline(runner=PySparkRunner(spark), options=PipelineOptions(options))
    table.control.churn(0.3, seed=campaign.seed, table=table.name)
    _ = pipeline | table.reading(heartbeat=0.2) | beam.ParDo(Keep(str(out)))
    result = pipeline.run()
    try:
        with writers(table, threads=2, pause=0.01):
            time.sleep(campaign.size(6, 120))
        until = time.monotonic() + 60
        expected = table.cells()
        while not out.exists() or replayed([record for _, record in kept(out)]) != expected:
            assert result.state not in ("FAILED", "CANCELLED"), result.wait_until_finish()
            assert time.monotonic() < until, "the records never make the table"
            time.sleep(0.5)
    finally:
        result.cancel()
    records = [record for _, record in kept(out)]
    assert_no_duplicates(records)
    assert_order_of_each_row(records)


def test_a_table_is_read_by_ranges_as_the_ordinary_client_reads_it(
    table: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for number in range(30):
        table.client.write(b"row%02d" % number, set_cell("f", b"q", b"%d" % number, 1000))
    monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", table.emulator.host)
    out = tmp_path / "rows"
    reading = ReadFromBigtableTable(
        project=PROJECT, instance=INSTANCE, table=table.id, row_range=(b"row05", b"row25")
    )
    run(lambda p: p | reading | beam.Map(_line) | beam.Map(partial(_append, str(out))))
    expected = {key.decode() for key in table.cells() if b"row05" <= key < b"row25"}
    assert sorted(out.read_text().split()) == sorted(f"{key}:{int(key[3:])}" for key in expected)


def _line(row: TableRow) -> str:
    (cell,) = row.cells
    return f"{row.row_key.decode()}:{cell.value.decode()}"


def _append(path: str, line: str) -> None:
    with open(path, "a") as file:
        file.write(line + "\n")
