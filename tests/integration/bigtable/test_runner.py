"""The transform in Beam pipelines, on Beam's own runner and on Spark."""

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
from tests.integration.bigtable.conftest import INSTANCE, PROJECT
from tests.integration.bigtable.replay import (
    KINDS,
    assert_no_duplicates,
    assert_order_of_each_row,
    kinds_of,
    mutations_of,
    replayed,
)
from tests.integration.emulators.bigtable.client import set_cell
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.emulator, pytest.mark.slow]
SECOND = 1_000_000_000
MUTATIONS, RECORDS = 200_000, 150_000
"""Of a campaign: the writers' records hold 1.4 mutations each."""


class Keep(beam.DoFn):
    """Appends each element to a file; a list would not work, because the pipeline is pickled before it runs."""

    def __init__(self, path: str) -> None:
        self._path = path

    def process(self, record: Any, timestamp: Any = beam.DoFn.TimestampParam) -> None:
        line = [timestamp.micros, ChangeStreamMutationCoder().encode(record).hex()]
        with open(self._path, "a") as file:
            file.write(json.dumps(line) + "\n")


class Kept:
    """The elements that `Keep` has written to a file so far, with timestamps in microseconds."""

    def __init__(self, path: Path) -> None:
        self.timestamps: list[int] = []
        self.records: list[ChangeStreamMutation] = []
        self._path = path
        self._read = 0

    def refreshed(self) -> Kept:
        """Read the complete new lines."""
        if not self._path.exists():
            return self
        with self._path.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                micros, text = json.loads(line)
                self.timestamps.append(micros)
                self.records.append(ChangeStreamMutationCoder().decode(bytes.fromhex(text)))
                self._read += len(line)
        return self


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


def write_until(table: Any, running: Any, records: int, layout_changes: int) -> None:
    """Wait until the emulator has received this number of writes."""
    until = time.monotonic() + 1800
    while (seen := table.control.statistics(table.name))["records"] < records or (
        seen["layout_changes"] < layout_changes
    ):
        assert not running.errors, running.errors[0]
        assert time.monotonic() < until, f"the writers are too slow: {seen}"
        time.sleep(0.2)


def test_a_bounded_read_ends_on_the_direct_runner(
    table: Any, writers: Callable[..., Any], tmp_path: Path, campaign: Any
) -> None:
    start = time.time_ns()
    table.control.churn(0.3, seed=3, table=table.name)
    with writers(table, threads=2, pause=campaign.size(5, 0) / 1000) as running:
        write_until(table, running, campaign.size(600, RECORDS), campaign.size(8, 50))
    end = time.time_ns()
    out = tmp_path / "records"
    result = run(lambda p: p | table.reading(start=start, end=end) | beam.ParDo(Keep(str(out))))
    kept = Kept(out).refreshed()
    records = kept.records
    assert kept.timestamps == [record.commit_timestamp // 1000 for record in records]
    assert_no_duplicates(records)
    assert_order_of_each_row(records)
    assert replayed(records) == table.cells()
    assert kinds_of(records) == KINDS
    assert mutations_of(records) >= campaign.size(600, MUTATIONS)
    seen = counters(result)
    assert seen["records"] == len(records)
    assert seen["changes"] == mutations_of(records)
    assert seen["requests"] > 0
    _record(campaign, "bigtable-replay-direct-runner", table, records)


def test_an_error_in_the_middle_of_the_pipeline_leaves_no_thread_behind(table: Any) -> None:
    start = time.time_ns()
    table.client.write(b"a", set_cell("f", b"q", b"x"))
    reading = table.reading(start=start, end=start + 3 * SECOND)

    def explode(record: Any) -> None:
        raise ArithmeticError("downstream")

    with pytest.raises(Exception, match="downstream"):
        run(lambda p: p | reading | beam.Map(explode))
    wait_until(lambda: not reader_threads(), reader_threads)


@pytest.mark.spark
def test_replay_equals_the_table_on_spark_through_churn(
    table: Any, writers: Callable[..., Any], spark: Any, tmp_path: Path, campaign: Any
) -> None:
    """Two workers, epochs of 0.2 s. Nothing is killed, so each side effect of a DoFn occurs once."""
    # Here, so that the other tests also run with Beam versions for which the runner is not made.
    from penstock.runner import PySparkRunner

    out = tmp_path / "records"
    options = [f"--checkpoint_dir={tmp_path / 'checkpoint'}", "--epoch_seconds=0.2", "--spark_parallelism=2"]
    pipeline = beam.Pipeline(runner=PySparkRunner(spark), options=PipelineOptions(options))
    table.control.churn(0.3, seed=campaign.seed, table=table.name)
    _ = pipeline | table.reading(heartbeat_seconds=0.2) | beam.ParDo(Keep(str(out)))
    result, kept = pipeline.run(), Kept(out)
    try:
        with writers(table, threads=2, pause=campaign.size(10, 0) / 1000) as running:
            write_until(table, running, campaign.size(500, RECORDS), campaign.size(15, 50))
        until = time.monotonic() + campaign.size(60, 600)
        expected = table.cells()
        while replayed(kept.refreshed().records) != expected:
            assert result.state not in ("FAILED", "CANCELLED"), result.wait_until_finish()
            assert time.monotonic() < until, "the records never make the table"
            time.sleep(0.5)
        seen = counters(result)
        assert seen["records"] > 0
        assert seen.get("late_records", 0) == 0, "the watermark was ahead of a record"
    finally:
        result.cancel()
    assert_no_duplicates(kept.records)
    assert_order_of_each_row(kept.records)
    assert kinds_of(kept.records) == KINDS
    assert mutations_of(kept.records) >= campaign.size(500, MUTATIONS)
    _record(campaign, "bigtable-replay-spark", table, kept.records)


def _record(campaign: Any, name: str, table: Any, records: list[ChangeStreamMutation]) -> None:
    campaign.record(
        name,
        mutations=mutations_of(records),
        records=len(records),
        layout_changes=table.control.statistics(table.name)["layout_changes"],
    )


def test_reading_a_table_by_ranges_gives_the_rows_of_the_ordinary_client(
    table: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for number in range(30):
        table.client.write(b"row%02d" % number, set_cell("f", b"q", b"%d" % number, 1000))
    monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", "localhost:1")  # of a worker with another environment
    out = tmp_path / "rows"
    reading = ReadFromBigtableTable(
        project=PROJECT,
        instance=INSTANCE,
        table=table.id,
        row_range=(b"row05", b"row25"),
        emulator_host=table.emulator.host,
    )
    reading.check()
    run(lambda p: p | reading | beam.Map(_line) | beam.Map(partial(_append, str(out))))
    expected = {key.decode() for key in table.cells() if b"row05" <= key < b"row25"}
    assert sorted(out.read_text().split()) == sorted(f"{key}:{int(key[3:])}" for key in expected)


def _line(row: TableRow) -> str:
    (cell,) = row.cells
    return f"{row.row_key.decode()}:{cell.value.decode()}"


def _append(path: str, line: str) -> None:
    with open(path, "a") as file:
        file.write(line + "\n")
