"""The readers of PySpark over a stream without a service: offsets, targets, limits, imports."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest
from pyspark.sql.datasource import DataSourceStreamReader

from penstock.errors import SetupError, UsageError
from penstock.spark.source import _StreamReader
from penstock.spark.spanner import SpannerDataSource, SpannerSlices
from penstock.spark.ydb import YdbDataSource
from penstock_emulators.ydb.topic import Topic
from tests.unit.ydb.memory import TABLE, described

SECOND = 1_000_000_000
GIVEN = {"project": "my-project", "instance": "main", "database": "shop", "change_stream": "S"}


class Clock:
    """Takes the place of a `SliceReader`: the time of the service, and the slices that it is asked for."""

    def __init__(self, stream: Any) -> None:
        self.stream, self.time, self.asked = stream, 100 * SECOND, []

    def check(self) -> None: ...

    def now(self) -> int:
        return self.time

    def parts(self, start: int, end: int, most: int) -> list[Any]:
        self.asked.append((start, end, most))
        return []


@pytest.fixture
def stream() -> SpannerSlices:
    return slices()


def slices(**options: str) -> SpannerSlices:
    made = SpannerDataSource({**GIVEN, **options}).stream()
    object.__setattr__(made, "reader", Clock(made.reader.stream))
    return made


def reader(stream: Any) -> _StreamReader:
    return _StreamReader(stream, None)


def seconds(offset: Any) -> float:
    return float(offset["before"][17:].rstrip("Z")) + 60 * float(offset["before"][14:16])


def test_a_new_query_begins_now_or_at_its_start() -> None:
    assert seconds(reader(slices()).initialOffset()) == pytest.approx(100, abs=1e-5)
    assert seconds(reader(slices(start="1970-01-01T00:00:07Z")).initialOffset()) == 7


def test_an_offset_names_its_stream_and_another_stream_refuses_it(stream: SpannerSlices) -> None:
    offset = reader(stream).initialOffset()
    assert offset["stream"] == "change stream S of projects/my-project/instances/main/databases/shop"
    with pytest.raises(SetupError, match="checkpoint of the query belongs to the change stream S"):
        reader(slices(change_stream="Other")).partitions(offset, offset)


def test_a_batch_ends_now_and_not_later_than_the_end_of_the_stream() -> None:
    plain, ending = reader(slices()), reader(slices(end="1970-01-01T00:00:30Z"))
    assert seconds(plain.latestOffset(plain.initialOffset())) == 100
    # The end is inclusive, and an offset is not.
    assert ending.latestOffset(None)["before"] == "1970-01-01T00:00:30.000000001Z"


def test_a_long_backlog_is_read_in_slices() -> None:
    limited = reader(slices(start="1970-01-01T00:00:10Z", max_slice_seconds="40"))
    start = limited.initialOffset()
    ends = []
    for _ in range(4):
        start = limited.latestOffset(start)
        ends.append(seconds(start))
    assert ends == [50, 90, 100, 100]


def test_available_now_ends_at_the_time_when_the_query_began(stream: SpannerSlices) -> None:
    query = reader(stream)
    query.prepareForTriggerAvailableNow()
    stream.reader.time += 50 * SECOND  # type: ignore[attr-defined]
    assert seconds(query.latestOffset(query.initialOffset() | {"before": "1970-01-01T00:01:00Z"})) == 100
    assert seconds(query.reportLatestOffset()) == 150


def test_a_first_run_with_available_now_has_a_batch_so_that_its_position_is_stored(
    stream: SpannerSlices,
) -> None:
    query = reader(stream)
    query.prepareForTriggerAvailableNow()
    stream.reader.time += SECOND  # type: ignore[attr-defined]
    start = query.initialOffset()
    end = query.latestOffset(start)
    assert start != end
    query.partitions(start, end)
    ((first, last, _),) = stream.reader.asked  # type: ignore[attr-defined]
    assert first < last == 100 * SECOND


def test_a_clock_that_was_set_back_moves_no_offset_back(stream: SpannerSlices) -> None:
    query = reader(stream)
    start = query.latestOffset(query.initialOffset())
    stream.reader.time -= 50 * SECOND  # type: ignore[attr-defined]
    assert query.latestOffset(start) == start


def test_spark_4_0_asks_without_arguments(stream: SpannerSlices) -> None:
    assert seconds(reader(stream).latestOffset()) == 100


def test_a_batch_query_needs_a_start_and_ends_now() -> None:
    with pytest.raises(UsageError, match="needs the option start"):
        slices().bounds()
    start, end = slices(start="1970-01-01T00:00:07Z").bounds()
    assert (seconds(start), seconds(end)) == (7, 100)


@pytest.mark.slow
def test_importing_the_data_sources_imports_no_beam_and_no_client() -> None:
    program = (
        "import sys, penstock.spark.registration, penstock.spark.spanner, penstock.spark.postgres, penstock.spark.ydb\n"
        "found = {name.partition('.')[0] for name in sys.modules}\n"
        "print(*found & {'apache_beam', 'grpc', 'psycopg', 'pyspark', 'ydb'})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["pyspark"]


def ydb(**options: str) -> Any:
    given = {
        "endpoint": "grpc://localhost:1",
        "database": "/local",
        "table": "t",
        "changefeed": "f",
        **options,
    }
    return YdbDataSource(given)


def test_spark_is_told_the_most_rows_of_a_batch() -> None:
    limit = reader(ydb(maxRowsPerTrigger="5").stream()).getDefaultReadLimit()
    assert limit.max_rows == 5
    assert type(reader(ydb().stream()).getDefaultReadLimit()).__name__ == "ReadAllAvailable"


@pytest.mark.parametrize(
    "limited", [ydb(max_rows_per_trigger="5"), SpannerDataSource({**GIVEN, "max_slice_seconds": "5"})]
)
def test_a_limit_is_refused_where_spark_does_not_say_where_a_batch_begins(
    limited: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert limited.streamReader(None)
    monkeypatch.delattr(DataSourceStreamReader, "getDefaultReadLimit")
    with pytest.raises(UsageError, match="which needs Spark 4.2 or newer"):
        limited.streamReader(None)


@pytest.mark.parametrize(
    ("mode", "options", "messages"),
    [
        ("NEW_AND_OLD_IMAGES", {}, 5),
        ("NEW_AND_OLD_IMAGES", {"layout": "events"}, 10),
        ("NEW_IMAGE", {}, 10),
    ],
)
def test_a_message_may_have_two_rows(mode: str, options: dict[str, str], messages: int) -> None:
    found = described(Topic("/local/t/f"), table=msgspec.structs.replace(TABLE, mode=mode))
    assert ydb(**options).stream()._messages(found, 10) == messages
    assert ydb(**options).stream()._messages(found, 1) == 1
