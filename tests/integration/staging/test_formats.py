"""Staging writes other file formats than JSON Lines: here Parquet, by a format of a dozen lines."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import apache_beam as beam
import pyarrow
import pyarrow.parquet
from apache_beam.testing.util import assert_that
from apache_beam.transforms.window import TimestampedValue

from penstock.io.staging import PublishedFile, RollingPolicy, WriteStagedFiles, store_of
from penstock.io.staging.blocks import RecordBlock


@dataclass(frozen=True)
class Parquet:
    """Records are rows as JSON text; a file has one row group for each block."""

    suffix: ClassVar[str] = ".parquet"

    def content(self, blocks: Iterable[RecordBlock]) -> Iterator[bytes]:
        buffer = io.BytesIO()
        schema = pyarrow.schema({"key": pyarrow.string(), "n": pyarrow.int64()})
        with pyarrow.parquet.ParquetWriter(buffer, schema) as writer:
            for block in blocks:
                rows = [json.loads(record) for _, record in block.records()]
                writer.write_table(pyarrow.Table.from_pylist(rows, schema))
        yield buffer.getvalue()


def encode(row: dict[str, Any]) -> bytes:
    return json.dumps(row).encode()


def bucket(row: dict[str, Any], event_us: int) -> str:
    return f"key={row['key']}/{event_us // 60_000_000}"


def test_parquet_files_hold_each_row_once_in_order_and_count_their_records(tmp_path: Path) -> None:
    rows = [{"key": "ab"[n % 2], "n": n} for n in range(100)]

    def check(files: list[PublishedFile]) -> None:
        assert sum(file.records for file in files) == len(rows)
        for file in files:
            assert pyarrow.parquet.read_metadata(file.path).num_rows == file.records

    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        published = (
            pipeline
            | beam.Create(rows)
            | beam.Map(lambda row: TimestampedValue(row, row["n"]))
            | WriteStagedFiles(
                store_of(tmp_path),
                encode=encode,
                bucket=bucket,
                format=Parquet(),
                policy=RollingPolicy(0, 1 << 20),
            )
        )
        assert_that(published, check)
    for key in "ab":
        files = sorted(tmp_path.glob(f"key={key}/*.parquet"), key=lambda file: int(file.name.split("_")[0]))
        # Read by the open file: a path with "key=" would add a partition column.
        found = [row for file in files for row in pyarrow.parquet.ParquetFile(file).read().to_pylist()]
        assert found == [row for row in rows if row["key"] == key]
