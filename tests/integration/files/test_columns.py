"""Files with columns, written by the sinks and read by DuckDB and fastavro."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import apache_beam as beam
import duckdb
import fastavro
import pyarrow.parquet
import pytest
from apache_beam.transforms.window import TimestampedValue

from penstock.errors import UsageError
from penstock.event import ChangeEvent, Kind, Op, Source
from penstock.io.files import WriteToAvro, WriteToJsonLines, WriteToParquet
from penstock.io.files.layout import partition_folder
from penstock.publish import PublishOnDriver
from tests.simulation.stream import run_stream
from tests.unit.formats.events import event_of, schema_of

HOUR_NS = 3_600 * 10**9
START_NS = 1_700_000_000 * 10**9 // HOUR_NS * HOUR_NS
OLD = schema_of({"id": Kind.INT64}, name=Kind.STRING)
NEW = schema_of({"id": Kind.INT64}, name=Kind.STRING, price=Kind.FLOAT64)


def change(number: int, **options: Any) -> ChangeEvent:
    """Return a change of the table Orders: the columns change in the middle, and each change is half an hour later."""
    schema, row = (OLD, {}) if number < 5 else (NEW, {"price": number / 2})
    after = {"id": number % 3, "name": f"n{number}", **row, **options}
    op = Op.CREATE if number < 3 else Op.UPDATE
    return event_of(schema, op, after=after, timestamp=START_NS + number * HOUR_NS // 2)


CHANGES = [change(number) for number in range(10)]


def timed(events: list[ChangeEvent]) -> Any:
    return lambda p: (
        p
        | beam.Create(events, reshuffle=False)
        | beam.Map(lambda event: TimestampedValue(event, event.timestamp // 10**9))
    )


def test_duckdb_reads_all_rows_and_the_partitions_though_the_columns_changed(tmp_path: Path) -> None:
    run_stream(lambda p: timed(CHANGES)(p) | WriteToParquet(tmp_path / "lake", shards=2, roll_seconds=0))
    lake = f"read_parquet('{tmp_path}/lake/Orders/**/*.parquet', union_by_name=true, hive_partitioning=true)"
    rows = duckdb.sql(
        f"select key.id, after.name, after.price, date, hour from {lake} order by metadata.version"
    ).fetchall()
    assert [row[:3] for row in rows] == [
        (number % 3, f"n{number}", number / 2 if number >= 5 else None) for number in range(10)
    ]
    assert [int(row[4]) for row in rows] == [(22 + number // 2) % 24 for number in range(10)]
    assert len({str(row[3]) for row in rows}) == 2


def test_each_file_has_the_columns_of_one_version_of_the_table(tmp_path: Path) -> None:
    run_stream(
        lambda p: timed(CHANGES)(p) | WriteToParquet(tmp_path, partition_by="none", roll_seconds=0, table="t")
    )
    columns = [pyarrow.parquet.read_schema(file).field("after").type for file in tmp_path.glob("t/*.parquet")]
    assert sorted(held.num_fields for held in columns) == [2, 3]


def test_avro_files_have_the_same_rows(tmp_path: Path) -> None:
    run_stream(lambda p: timed(CHANGES)(p) | WriteToAvro(tmp_path, partition_by="day", roll_seconds=0))
    rows = [row for file in tmp_path.glob("Orders/date=*/*.avro") for row in fastavro.reader(file.open("rb"))]
    rows.sort(key=lambda row: row["metadata"]["version"])
    assert [(row["key"]["id"], row["after"]["name"]) for row in rows] == [(n % 3, f"n{n}") for n in range(10)]


def test_a_row_that_no_file_can_hold_goes_to_the_error_output_and_the_others_are_written(
    tmp_path: Path,
) -> None:
    schema = schema_of({"id": Kind.INT64}, at=Kind.TIMESTAMP)
    good, bad = (event_of(schema, after={"id": n, "at": 1_000 + n}) for n in (0, 1))
    lines = tmp_path / "refused"

    def build(p: beam.Pipeline) -> None:
        sink = WriteToParquet(tmp_path / "lake", partition_by="none", roll_seconds=0)
        _, refused = p | beam.Create([good, bad], reshuffle=False) | sink.with_exception_handling()
        _ = refused | PublishOnDriver(
            lambda found: lines.write_text("\n".join(each.reason for each in found))
        )

    run_stream(build)
    assert duckdb.sql(f"select key.id from '{tmp_path}/lake/Orders/*.parquet'").fetchall() == [(0,)]
    assert (
        lines.read_text() == "column at of Orders has a value that Arrow's timestamp[us, tz=UTC] cannot hold"
    )


def test_changes_without_event_time_are_in_the_partition_that_engines_read_as_null() -> None:
    assert (
        partition_folder(-(10**12), "hour")
        == "date=__HIVE_DEFAULT_PARTITION__/hour=__HIVE_DEFAULT_PARTITION__/"
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"compression": "lz77"}, "zstd, snappy, gzip, none"),
        ({"partition_by": "minute"}, "hour, day, none"),
        ({"shards": 0}, "shards must be 1 or more"),
    ],
)
def test_a_wrong_argument_is_refused_with_what_is_allowed(options: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        WriteToParquet("/out", **options)


def test_messages_of_the_log_have_no_columns_and_are_written_too(tmp_path: Path) -> None:
    from penstock.event import NO_COLUMNS, Message, Version

    message = ChangeEvent(
        Source("postgresql", database="d"),
        Op.MESSAGE,
        0,
        None,
        None,
        None,
        Version(1),
        NO_COLUMNS,
        message=Message("audit", b"\x00"),
    )
    run_stream(
        lambda p: (
            p
            | beam.Create([message], reshuffle=False)
            | WriteToParquet(tmp_path, partition_by="none", roll_seconds=0)
        )
    )
    found = duckdb.sql(
        f"select metadata.message_prefix, metadata.message from '{tmp_path}/postgresql/*.parquet'"
    )
    assert found.fetchall() == [("audit", b"\x00")]


def test_compressed_lines_are_one_gzip_file(tmp_path: Path) -> None:
    run_stream(
        lambda p: (
            p
            | beam.Create([{"n": 1}, {"n": 2}], reshuffle=False)
            | WriteToJsonLines(tmp_path, table="t", compression="gzip", roll_seconds=0)
        )
    )
    (file,) = tmp_path.glob("t/*/*.jsonl.gz")
    assert gzip.decompress(file.read_bytes()) == b'{"n":1}\n{"n":2}\n'
