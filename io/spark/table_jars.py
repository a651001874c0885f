"""Checks whether the table formats in Spark's class path were built for this Spark. Pure.

The writers of Delta and Iceberg use internals of Spark that change from version to version. With jars of another
version a write may fail after its first append has been committed: Delta 4.3.1 for Spark 4.1 does so on Spark 4.3.0,
with `NoSuchMethodError: LogicalRDD.<init>`, and Iceberg 1.12.0 fails with `IncompatibleClassChangeError: SparkView`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TableFormat:
    """A table format with writers in Spark: a class that its jar has, and the sink to use without them."""

    name: str
    class_name: str
    sink: str


TABLE_FORMATS = (
    TableFormat("Delta", "io.delta.tables.DeltaTable", "WriteToDelta"),
    TableFormat("Iceberg", "org.apache.iceberg.spark.SparkCatalog", "WriteToIceberg"),
)

# delta-spark_4.1_2.13-4.3.1.jar, iceberg-spark-runtime-4.1_2.13-1.12.0.jar
_BUILT_FOR = re.compile(r"(?:delta-spark_|iceberg-spark-(?:runtime-)?)(\d+\.\d+)_\d+\.\d+-")


def refusal(format: TableFormat, jar: str, spark_version: str) -> str | None:
    """Return why a table format must not be used, from the path of its jar; None if it was built for this Spark.

    A jar whose name has no Spark version was built for one of the versions before 4.1, when the names had none.
    """
    spark = ".".join(spark_version.split(".")[:2])
    file = jar.rpartition("/")[2]
    match = _BUILT_FOR.search(file)
    if match and match[1] == spark:
        return None
    if match is None and _number(spark) < (4, 1):
        return None
    built = f"Spark {match[1]}" if match else "a Spark before 4.1"
    return (
        f"{format.name}'s jar {file} was built for {built}, and this is Spark {spark_version}: a write could fail "
        f"after part of it was committed, so nothing was written. Take the jar for Spark {spark} if there is one, "
        f"remove this jar from the session, or use {format.sink}, which needs no jar"
    )


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
