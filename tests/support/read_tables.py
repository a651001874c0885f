"""Reads tables of Delta and Iceberg with another program, in a process that has its packages.

    python -m tests.support.read_tables duckdb|spark REQUEST.json ROWS.json

The request has, for each name, the format and the place of a table (`tests.support.table_readers.Place`). The answer
has the rows of each.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from penstock.compat import UTC
from tests.support.table_readers import EXTENSIONS, Place, jars

Tables = Mapping[str, Place]
Rows = list[dict[str, Any]]
_DELTA = "io.delta.sql.DeltaSparkSessionExtension"
_ICEBERG = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"


def with_duckdb(tables: Tables) -> Iterator[tuple[str, Rows]]:
    import duckdb

    connection = duckdb.connect()
    for each in EXTENSIONS:
        connection.execute(f"load '{_extension(each)}'")
    for name, (format_, place) in tables.items():
        rows = connection.execute(f"select * from {format_}_scan('{place}')")
        yield name, rows.to_arrow_table().to_pylist()


def _extension(name: str) -> Path:
    import importlib

    package = importlib.import_module(f"duckdb_extension_{name}")
    (file,) = Path(str(package.__file__)).parent.glob(f"extensions/*/{name}.duckdb_extension")
    return file


def session(folder: Path, packages: str) -> Any:
    """Return a Spark session with the jars `packages`, as docs/sinks/spark.md says.

    Delta's log is read in few tasks.
    """
    from pyspark.sql import SparkSession

    settings = {
        "spark.jars": packages,
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "spark-warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.extensions": f"{_DELTA},{_ICEBERG}",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": str(folder / "warehouse"),
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def with_spark(tables: Tables) -> Iterator[tuple[str, Rows]]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = session(Path.cwd(), ",".join(map(str, jars())))
    for name, (format_, place) in tables.items():
        yield name, [row.asDict(recursive=True) for row in spark.read.format(format_).load(place).collect()]
    spark.stop()


def plain(value: Any) -> Any:
    """Return a value that JSON has not: a time, in UTC, as text; Spark's have no zone, and the process is in UTC."""
    if isinstance(value, datetime):
        whole = value if value.tzinfo else value.replace(tzinfo=UTC)
        return whole.astimezone(UTC).isoformat(timespec="microseconds")
    if isinstance(value, bytes | bytearray):
        return value.hex()
    raise TypeError(f"no text for a {type(value).__name__}")


def main(reader: str, request: str, answer: str) -> None:
    read = {"duckdb": with_duckdb, "spark": with_spark}[reader]
    rows = dict(read(json.loads(Path(request).read_text())))
    # Renamed, so that a file that exists is whole.
    Path(f"{answer}.new").write_text(json.dumps(rows, default=plain))
    Path(f"{answer}.new").rename(answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
