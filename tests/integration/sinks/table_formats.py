"""A pipeline into a table of Delta or Iceberg with Spark's own writers, in a process whose Spark has their jars.

    python -m tests.integration.sinks.table_formats FOLDER JAR,JAR,... delta,iceberg

Writes FOLDER/found.json: the rows of the tables, and the ids with which the functions were called; or the error.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from penstock.event import Op, Version
from penstock.io.delta.target import DeltaTarget
from penstock.io.spark import WriteToSpark
from penstock.io.staging.complete_marks import Mark
from penstock.io.staging.table_notes import WrittenTable
from tests.support.read_tables import session
from tests.support.sinks.spark_examples import EVENTS, SCHEMA, FailsOnce, example, run
from tests.unit.formats.events import event_of
from tests.unit.tables.lakes import FORMATS, DeltaLake, IcebergLake, Lake
from tests.unit.tables.test_delta import publish
from tests.unit.tables.test_snapshot_rows import row

MARK = Mark.of("job", "sink", 7, 1_769_860_800_000_000)
DELETED = 3
EVENTS_WITH_DELETE = [
    *EVENTS,
    event_of(SCHEMA, Op.DELETE, before={"id": DELETED, "name": "n19"}, timestamp=30 * 10**9),
]


def marked_table(folder: Path) -> str:
    """Return a Delta table with a mark that says until when it is complete."""
    target = DeltaTarget(str(folder / "marked"), "log", "evolve", mark_seconds=0)
    write_deltalake(target.uri, pa.table({"id": [1]}))
    target.mark_complete(MARK, [WrittenTable(target.uri, "shop", "orders")])
    return target.uri


def partitioned(spark: SparkSession, lake: Lake) -> list[tuple[int, int]]:
    """Return what Spark reads in one partition of a table of the sink, after rows have moved into it."""
    moved = [row(number, 1, Version(2000 + number), Op.UPDATE) for number in range(3)]
    for number, events in enumerate(([row(each, 0) for each in range(6)], moved), 2):
        publish(lake.driver(partition_by=["amount"]), events, number)
    if isinstance(lake, DeltaLake):
        table = f"delta.`{lake.path}`"
    else:
        assert isinstance(lake, IcebergLake)
        spark.read.format("iceberg").load(lake.table().metadata_location).createOrReplaceTempView("t")
        table = "t"
    found = spark.sql(
        f"select id, amount from {table} where amount = 1 and not _penstock_deleted order by id"
    )
    return [tuple(each) for each in found.collect()]


def main(folder: Path, jars: str, formats: str) -> dict[str, object]:
    """Run the pipeline; return what is found afterwards."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = session(folder, jars)
    table = str(folder / "delta")
    writers = [example(f"to_{each}", TABLE=table) for each in formats.split(",")]

    def save(dataframe: object, epoch_id: int) -> None:
        for writer in writers:
            writer(dataframe, epoch_id)

    try:
        run(
            spark,
            folder,
            WriteToSpark(FailsOnce(save, folder / "calls"), shards=1),
            events=EVENTS_WITH_DELETE,
        )
    except Exception as error:
        return {"error": str(error), "spark": spark.version}
    delta = spark.sql(f"select id, name from delta.`{table}` order by id").collect()
    iceberg = spark.table("lake.shop.changes").collect()
    return {
        "spark": spark.version,
        "delta": [tuple(row) for row in delta],
        "iceberg": sorted((row["op"], json.loads(row["key"])["id"], row["after"]) for row in iceberg),
        "calls": json.loads((folder / "calls").read_text()),
        "partitioned": [partitioned(spark, lake(folder / lake.__name__)) for lake in FORMATS.values()],
        "mark": spark.sql(f"describe history delta.`{marked_table(folder)}` limit 1")
        .collect()[0]
        .userMetadata,
    }


if __name__ == "__main__":
    found = main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
    Path(sys.argv[1], "found.json").write_text(json.dumps(found))
