"""`WriteToSpark` on real Spark: the examples of its page, with functions that fail after their write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import UsageError
from penstock.io.spark import WriteToSpark
from tests.integration.sinks.spark_examples import FailsOnce, example, run

pytestmark = pytest.mark.spark

EXPECTED = sorted((number % 4, f"n{number}") for number in range(20))


def found(rows: list[Any]) -> list[tuple[int, str]]:
    return sorted((json.loads(row["key"])["id"], json.loads(row["after"])["name"]) for row in rows)


@pytest.mark.slow(seconds=10)
def test_each_change_is_written_once_though_every_first_call_fails_after_its_write(
    spark: Any, tmp_path: Path
):
    url = f"jdbc:derby:memory:{tmp_path.name};create=true"
    spark.sql("drop table if exists changes")
    empty = spark.createDataFrame([], "epoch bigint, op string, row_key string, row_after string")
    empty.write.jdbc(url, "changes")
    writers = [
        example("to_parquet", LAKE=f"{tmp_path}/lake"),
        example("to_jdbc", URL=url),
        example("to_table"),
    ]

    def save(dataframe: Any, epoch_id: int) -> None:
        for writer in writers:
            writer(dataframe, epoch_id)

    run(spark, tmp_path, WriteToSpark(FailsOnce(save, tmp_path / "calls"), shards=1))
    assert found(spark.read.parquet(f"{tmp_path}/lake").collect()) == EXPECTED
    rows = spark.read.jdbc(url, "changes").selectExpr("row_key as key", "row_after as after")
    assert found(rows.collect()) == EXPECTED
    assert found(spark.table("changes").collect()) == EXPECTED
    spark.sql("drop table changes")
    calls = json.loads((tmp_path / "calls").read_text())
    ids = [epoch for epoch, _ in calls]
    assert ids == sorted(ids)
    for epoch in set(ids):
        same = [rows for id_, rows in calls if id_ == epoch]
        assert len(same) == 2, "each id is repeated once"
        assert same[0] == same[1], "the same id has other rows"


def test_structs_have_the_columns_of_the_table_and_its_types(spark: Any, tmp_path: Path):
    def save(dataframe: Any, epoch_id: int) -> None:
        dataframe.select("key.id", "after.name").write.mode("overwrite").parquet(
            f"{tmp_path}/lake/e={epoch_id}"
        )

    run(spark, tmp_path, WriteToSpark(save, images="struct", shards=1))
    frame = spark.read.parquet(f"{tmp_path}/lake")
    assert frame.schema["id"].dataType.typeName() == "long"
    staged = tmp_path.glob("checkpoint/staging/.*/*/*/g*")
    assert not list(staged), "the end of the job leaves staged batches"
    assert sorted((row["id"], row["name"]) for row in frame.collect()) == EXPECTED


def test_the_function_may_not_be_something_else():
    with pytest.raises(UsageError, match="a function"):
        WriteToSpark("save")  # type: ignore[arg-type]
