"""The transform in a Beam pipeline, on Beam's own runner."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from tests.support.waiting import wait_until

pytestmark = pytest.mark.emulator
SECOND = 1_000_000_000


class Keep(beam.DoFn):
    """Appends each element to a file; a list would not work, because the pipeline is pickled before it runs."""

    def __init__(self, path: str) -> None:
        self._path = path

    def process(self, record: Any, timestamp: Any = beam.DoFn.TimestampParam) -> None:
        line = [
            record.commit_timestamp,
            timestamp.micros,
            record.table_name,
            record.mod_type,
            list(record.mods),
        ]
        with open(self._path, "a") as file:
            file.write(json.dumps(line) + "\n")


def run(pipeline_of: Callable[[beam.Pipeline], Any]) -> Any:
    pipeline = beam.Pipeline(options=PipelineOptions(["--direct_num_workers=1"]))
    pipeline_of(pipeline)
    result = pipeline.run()
    result.wait_until_finish()
    return result


def counters(result: Any) -> dict[str, int]:
    found = result.metrics().query()["counters"]
    return {c.key.metric.name: c.committed for c in found if c.key.metric.namespace == "penstock.io.spanner"}


@pytest.mark.slow
def test_a_bounded_read_ends_with_every_change_at_its_commit_timestamp(
    database: Any, writers: Callable[..., Any], tmp_path: Path
) -> None:
    start = time.time_ns()
    with writers(database, threads=2) as running:
        time.sleep(5)
    end = time.time_ns() + SECOND // 10
    out = tmp_path / "records"
    result = run(lambda p: p | database.reading(start=start, end=end) | beam.ParDo(Keep(str(out))))

    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert running.commits
    assert set(running.commits) <= {line[0] for line in lines}
    assert all(micros == nanos // 1000 for nanos, micros, *_ in lines)
    seen = counters(result)
    assert seen["records"] == len(lines)
    assert seen["changes"] == sum(len(mods) for *_, mods in lines)
    assert seen["splits"] + seen["merges"] + seen["moves"] >= 3
    assert seen["partitions_announced"] >= seen["partitions_closed"] - 1
    assert seen["requests"] > 0
    assert not [thread for thread in threading.enumerate() if "spanner-reader" in thread.name]


def test_two_reads_of_one_stream_in_one_pipeline_both_get_every_change(database: Any, tmp_path: Path) -> None:
    start = time.time_ns()
    for number in range(5):
        with database.client.batch() as batch:
            batch.insert("Accounts", ["Id", "Value"], [(number, "x")])
    end = time.time_ns() + SECOND // 10
    reading = database.reading(start=start, end=end)
    outs = [tmp_path / "one", tmp_path / "two"]

    def pipeline_of(pipeline: beam.Pipeline) -> None:
        for out in outs:
            _ = pipeline | out.name >> reading | f"keep {out.name}" >> beam.ParDo(Keep(str(out)))

    run(pipeline_of)
    assert [len(out.read_text().splitlines()) for out in outs] == [5, 5]


def test_an_error_in_the_middle_of_the_pipeline_leaves_no_thread_behind(database: Any) -> None:
    start = time.time_ns()
    with database.client.batch() as batch:
        batch.insert("Accounts", ["Id", "Value"], [(1, "x")])
    reading = database.reading(start=start, end=start + 3 * SECOND)

    def explode(record: Any) -> None:
        raise ArithmeticError("downstream")

    with pytest.raises(Exception, match="downstream"):
        run(lambda p: p | reading | beam.Map(explode))
    wait_until(lambda: not [t for t in threading.enumerate() if "spanner-reader" in t.name])
