"""Run SQL statements as a client of Spark Connect, and print the rows of the last one as JSON.

    python -m tests.integration.spark_source.connect_client URL STATEMENT…

A process of its own, because PySpark has classic sessions or clients in one process, not both.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession


def main(url: str, *statements: str) -> None:
    spark = SparkSession.builder.remote(url).getOrCreate()
    rows = [spark.sql(each).collect() for each in statements][-1]
    print(json.dumps([list(row) for row in rows]))


if __name__ == "__main__":
    main(*sys.argv[1:])
