"""`WriteToSpark` on real Spark: the examples of its page, with functions that fail after their write."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, DataFrameWriter

from penstock.errors import UsageError
from penstock.event import Op, Source
from penstock.io.spark import WriteToSpark
from penstock.io.spark.rows import SparkRows
from tests.support.sinks.spark_examples import SCHEMA, FailsOnce, example, run
from tests.unit.formats.events import event_of

pytestmark = pytest.mark.spark

EXPECTED = sorted((number % 4, f"n{number}") for number in range(20))


class PausedBeforeWriting:
    """A DataFrame or its writer. Before it writes, the driver is paused, and `successor` runs."""

    WRITES = ("parquet", "jdbc", "insertInto", "saveAsTable")

    def __init__(self, inner: Any, successor: Callable[[], None]) -> None:
        self._inner, self._successor = inner, successor

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name in self.WRITES:

            def write(*arguments: Any) -> None:
                self._successor()
                found(*arguments)

            return write
        if callable(found):
            return lambda *arguments: self._paused(found(*arguments))
        return self._paused(found)

    def _paused(self, value: Any) -> Any:
        return (
            PausedBeforeWriting(value, self._successor)
            if isinstance(value, (DataFrame, DataFrameWriter))
            else value
        )


class CalledByTwoDrivers:
    """Calls each function as a driver that is paused before it writes, while another driver makes the same call."""

    def __init__(self, functions: list[Callable[[Any, int], None]], notes: Path) -> None:
        self.functions, self.notes = functions, notes

    def __call__(self, dataframe: Any, epoch_id: int) -> None:
        for function in self.functions:

            def successor(function: Callable[[Any, int], None] = function) -> None:
                with self.notes.open("a") as notes:
                    notes.write(f"{epoch_id}\n")
                function(dataframe, epoch_id)

            # A target may refuse the second driver, which ends then.
            with suppress(Exception):
                function(PausedBeforeWriting(dataframe, successor), epoch_id)


def found(rows: list[Any]) -> list[tuple[int, str]]:
    return sorted((json.loads(row["key"])["id"], json.loads(row["after"])["name"]) for row in rows)


def examples(spark: Any, folder: Path) -> tuple[list[Callable[[Any, int], None]], Callable[[], None]]:
    """Return the functions of the page, and a function that reads what they have written and drops the table."""
    url = f"jdbc:derby:memory:{folder.name};create=true"
    spark.sql("drop table if exists changes")
    with closing(spark._jvm.java.sql.DriverManager.getConnection(url)) as connection:
        connection.createStatement().execute(
            'create table changes ("epoch" bigint, "version" varchar(200), "op" varchar(20), '
            '"row_key" varchar(2000), "row_after" varchar(2000), primary key ("epoch", "version"))'
        )

    def read_back() -> None:
        assert found(spark.read.parquet(f"{folder}/lake").collect()) == EXPECTED
        rows = spark.read.jdbc(url, "changes").selectExpr("row_key as key", "row_after as after")
        assert found(rows.collect()) == EXPECTED
        assert found(spark.table("changes").collect()) == EXPECTED
        spark.sql("drop table changes")

    return [
        example("to_parquet", LAKE=f"{folder}/lake"),
        example("to_jdbc", URL=url),
        example("to_table"),
    ], read_back


@pytest.mark.slow(seconds=10)
def test_each_change_is_written_once_though_every_first_call_fails_after_its_write(
    spark: Any, tmp_path: Path
):
    writers, read_back = examples(spark, tmp_path)

    def save(dataframe: Any, epoch_id: int) -> None:
        for writer in writers:
            writer(dataframe, epoch_id)

    run(spark, tmp_path, WriteToSpark(FailsOnce(save, tmp_path / "calls"), shards=1))
    read_back()
    calls = json.loads((tmp_path / "calls").read_text())
    ids = [epoch for epoch, _ in calls]
    assert ids == sorted(ids)
    for epoch in set(ids):
        same = [rows for id_, rows in calls if id_ == epoch]
        assert len(same) == 2, "each id is repeated once"
        assert same[0] == same[1], "the same id has other rows"


@pytest.mark.campaign
@pytest.mark.slow(seconds=10)
def test_each_change_is_written_once_though_a_paused_driver_wakes_up_in_the_middle_of_the_function(
    spark: Any, tmp_path: Path
):
    writers, read_back = examples(spark, tmp_path)
    notes = tmp_path / "paused"
    run(spark, tmp_path, WriteToSpark(CalledByTwoDrivers(writers, notes), shards=1))
    assert len(notes.read_text().split()) == len(writers)
    read_back()


@pytest.mark.long(seconds=10)
def test_structs_have_the_columns_of_the_table_and_its_types(spark: Any, tmp_path: Path):
    def save(dataframe: Any, epoch_id: int) -> None:
        dataframe.select("key.id", "after.name").write.mode("overwrite").parquet(
            f"{tmp_path}/lake/e={epoch_id}"
        )

    run(spark, tmp_path, WriteToSpark(save, images="struct", shards=1))
    frame = spark.read.parquet(f"{tmp_path}/lake")
    assert frame.schema["id"].dataType.typeName() == "long"
    assert sorted((row["id"], row["name"]) for row in frame.collect()) == EXPECTED


def test_the_layout_of_a_table_is_its_change_feed(spark: Any, tmp_path: Path):
    def save(dataframe: Any, epoch_id: int) -> None:
        dataframe.write.mode("overwrite").parquet(f"{tmp_path}/lake/e={epoch_id}")

    second = 10**9
    row = {"id": 1, "name": "a"}
    events = [
        event_of(SCHEMA, Op.CREATE, after=row, timestamp=second),
        event_of(SCHEMA, Op.UPDATE, before=row, after={"id": 1, "name": None}, timestamp=2 * second),
        event_of(SCHEMA, Op.UPDATE, after={"id": 1}, timestamp=3 * second),
        event_of(SCHEMA, Op.DELETE, before={"id": 1, "name": None}, timestamp=4 * second),
    ]
    run(spark, tmp_path, WriteToSpark(save, layout="table", shards=1), events=events)
    frame = spark.read.parquet(f"{tmp_path}/lake")
    assert frame.schema["id"].dataType.typeName() == "long"
    rows = frame.orderBy("_commit_version", "_change_type").collect()
    assert [(row._change_type, row.id, row["name"], row._not_sent) for row in rows] == [
        ("insert", 1, "a", []),
        ("update_postimage", 1, None, []),
        ("update_preimage", 1, "a", []),
        ("update_postimage", 1, None, ["name"]),
        ("delete", 1, None, []),
    ]


def test_rows_of_a_table_are_of_one_table_and_previewed_as_they_are_written():
    row = {"id": 1, "name": "a"}
    one, other = (event_of(SCHEMA, Op.CREATE, after=row, source=Source("spanner", table=t)) for t in "tu")
    with pytest.raises(UsageError, match="layout='table' needs the events of one table"):
        SparkRows("json", "table")._rows([one, other])
    (written,) = WriteToSpark(print, layout="table").preview(one)
    assert written["row"]["_change_type"] == "insert"
    assert written["row"]["name"] == "a"
    with pytest.raises(UsageError, match="layout is one of events, table"):
        WriteToSpark(print, layout="rows")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="leave images out"):
        WriteToSpark(print, layout="table", images="struct")


def test_the_function_may_not_be_something_else():
    with pytest.raises(UsageError, match="a function"):
        WriteToSpark("save")  # type: ignore[arg-type]
