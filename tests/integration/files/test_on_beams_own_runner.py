"""`WriteToJsonLines` on Beam's FnApiRunner: it is an ordinary Beam transform and needs no runner of Penstock."""

import json
from collections import defaultdict
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.testing.util import assert_that
from apache_beam.transforms.window import FixedWindows, TimestampedValue

from penstock.io.files import PublishedFile, WriteToJsonLines
from penstock.io.files.names import NO_EVENT_TIME

START = 1_763_740_800  # 2025-11-21T16:00:00Z


def write(output: Path, count: int, check=lambda files: None, **arguments: object) -> None:
    """Write `count` rows, ten seconds of event time apart, of two tables and seven keys each."""
    settings = {"shards": 3, "roll_seconds": 60, "key": lambda row: row["key"]} | arguments
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        published = (
            pipeline
            | beam.Create(range(count))
            | beam.Map(
                lambda i: TimestampedValue({"table": f"t{i % 2}", "key": i % 7, "i": i}, START + i * 10)
            )
            | beam.WindowInto(FixedWindows(60))
            | WriteToJsonLines(output, table=lambda row: row["table"], **settings)  # type: ignore[arg-type]
        )
        assert_that(published, check)


def buckets(output: Path) -> dict[tuple[str, str, str], list[dict]]:
    """The rows of each (table, hour, shard), in the order of names, then lines."""
    found: dict[tuple[str, str, str], list[dict]] = defaultdict(list)
    for path in sorted(output.glob("t*/*/*.jsonl")):
        bucket = path.parts[-3], path.parts[-2], path.name.split("_")[0]
        found[bucket].extend(map(json.loads, path.read_text().splitlines()))
    return found


@pytest.mark.parametrize(
    ("roll_seconds", "roll_bytes"), [(60, 1 << 20), (0, 1 << 20), (60, 200)], ids=["end", "epoch", "size"]
)
def test_every_row_is_written_once_in_its_table_hour_and_shard_in_order_per_key(
    tmp_path, roll_seconds, roll_bytes
):
    write(tmp_path, 1_000, roll_seconds=roll_seconds, roll_bytes=roll_bytes)
    found = buckets(tmp_path)
    rows = [row for bucket in found.values() for row in bucket]
    assert sorted(row["i"] for row in rows) == list(range(1_000))
    for (table, hour, _shard), bucket in found.items():
        assert {row["table"] for row in bucket} == {table}
        assert {f"2025-11-21T{16 + row['i'] // 360}" for row in bucket} == {hour}
        for key in range(7):
            order = [row["i"] for row in bucket if row["key"] == key]
            assert order == sorted(order)
    shards_of = defaultdict(set)
    for (_, _, shard), bucket in found.items():
        for row in bucket:
            shards_of[row["key"]].add(shard)
    assert all(len(shards) == 1 for shards in shards_of.values())
    assert len(set.union(*shards_of.values())) > 1


def test_the_sink_emits_every_file_that_it_published(tmp_path):
    def check(files: list[PublishedFile]) -> None:
        assert {file.path for file in files} == set(map(str, tmp_path.glob("t*/*/*.jsonl")))
        assert sum(file.records for file in files) == 100
        for file in files:
            assert Path(file.path).stat().st_size == file.length

    write(tmp_path, 100, check)


def test_nothing_is_left_in_staging(tmp_path):
    write(tmp_path, 100)
    assert list((tmp_path / ".penstock-staging").rglob("g*")) == []


def test_two_sinks_of_one_pipeline_share_an_output(tmp_path):
    """Without the Reshuffle FnApiRunner would mix up the timers of the two sinks in one fused stage."""
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        rows = pipeline | beam.Create(["a", "b", "c"])
        rows | "One" >> WriteToJsonLines(tmp_path, table="t", format=str.upper)
        (
            rows
            | beam.Reshuffle()
            | "Other" >> WriteToJsonLines(tmp_path, table="t", format=lambda row: {"row": row})
        )
    lines = [line for path in tmp_path.glob("t/*/*.jsonl") for line in path.read_text().splitlines()]
    assert sorted(lines) == ["A", "B", "C", '{"row":"a"}', '{"row":"b"}', '{"row":"c"}']


def test_rows_without_event_time_have_their_own_folder(tmp_path):
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        pipeline | beam.Create([{"a": 1}]) | WriteToJsonLines(tmp_path, table="t")
    assert [path.parent.name for path in tmp_path.glob("t/*/*.jsonl")] == [NO_EVENT_TIME]


def test_an_error_of_a_format_fails_the_pipeline_without_showing_the_row(tmp_path):
    with (
        pytest.raises(Exception, match="not JSON") as failure,
        beam.Pipeline(runner="FnApiRunner") as pipeline,
    ):
        (
            pipeline
            | beam.Create(["secret"])
            | WriteToJsonLines(tmp_path, table="t", format=lambda row: {row: {row}})
        )
    assert "secret" not in str(failure.value)
    assert list(tmp_path.glob("t/*/*")) == []
