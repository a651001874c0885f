"""`WriteToJsonLines` on `PySparkRunner`: when files are published, and how open files survive a restart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest

from penstock.io.files import WriteToJsonLines
from penstock.runner import PySparkRunner
from penstock_emulators.oracle.lines import read_lines
from penstock_emulators.oracle.rules import counted
from tests.integration.files.counting import count_fn
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def start(spark: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Start two counting keys into ``out``; start it again to resume. Settings are the sink's."""
    running: list[Any] = []

    def start(count: int | None = None, **settings: Any) -> Any:
        if count is not None:
            (tmp_path / "end").write_text(str(count))
        options = [f"--checkpoint_dir={tmp_path / 'checkpoint'}", "--streaming", "--epoch_seconds=0.3"]
        options.append("--spark_parallelism=2")
        pipeline = beam.Pipeline(runner=PySparkRunner(spark=spark), argv=options)
        rows = (
            pipeline
            | beam.Create(["a", "b"])
            | "Count" >> beam.ParDo(count_fn(str(tmp_path))).with_output_types(dict[str, Any])
        )
        rows | WriteToJsonLines(tmp_path / "out", table="counts", key=_key, shards=2, **settings)
        running.append(pipeline.run())
        return running[-1]

    yield start
    for result in running:
        result.cancel()


def _key(row: dict[str, Any]) -> str:
    return row["key"]


def lines(root: Path) -> int:
    return sum(1 for _ in read_lines(root / "out"))


def assert_each_key_counts_without_a_gap(root: Path) -> None:
    found = list(read_lines(root / "out"))
    keys = {line.content["key"] for line in found}
    lengths = {key: sum(line.content["key"] == key for line in found) for key in keys}
    assert counted(found, "key", "n", lengths) == []


def test_a_source_that_ends_has_all_its_lines_published(start, tmp_path):
    result = start(count=300, roll_seconds=3_600)
    assert result.wait_until_finish() == "DONE"
    assert counted(read_lines(tmp_path / "out"), "key", "n", {"a": 300, "b": 300}) == []


def test_with_no_wait_every_epoch_publishes(start, tmp_path):
    result = start(roll_seconds=0)
    wait_until(lambda: len({path.name.split("_")[2] for path in tmp_path.glob("out/counts/*/*")}) >= 3)
    result.stop()
    result.wait_until_finish()
    assert_each_key_counts_without_a_gap(tmp_path)


def test_a_full_file_is_published_before_its_roll_interval_ends(start, tmp_path):
    result = start(roll_seconds=3_600, roll_bytes=2_000)
    wait_until(lambda: lines(tmp_path) > 0)
    result.stop()
    result.wait_until_finish()
    assert_each_key_counts_without_a_gap(tmp_path)


def test_open_files_survive_a_stop_and_a_drain_publishes_them(start, tmp_path):
    first = start(roll_seconds=3_600)
    wait_until(lambda: first.progress().epochs >= 4)
    first.stop()
    first.wait_until_finish()
    assert lines(tmp_path) == 0
    second = start(roll_seconds=3_600)
    wait_until(lambda: second.progress().epochs >= first.progress().epochs + 3)
    second.drain()
    second.wait_until_finish()
    assert lines(tmp_path) > 0
    assert_each_key_counts_without_a_gap(tmp_path)
    assert not list((tmp_path / "out/.penstock-staging").rglob("g*"))
