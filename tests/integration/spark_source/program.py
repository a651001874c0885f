"""A Spark program as users write it: changes of a table into Parquet, one folder for each batch.

    python -m tests.integration.spark_source.program FORMAT FOLDER TRIGGER OPTION=VALUE…

TRIGGER is "now" (read what there is and end) or a time, such as "500 milliseconds" (read until killed).
"""

from __future__ import annotations

import os
import sys
from typing import Any

from penstock.runner.spark.java import find_java

START_ATTEMPTS = 5
_LATE = "failed to connect back"
"""Spark waits ten seconds for the process of a Python source. On a machine with many more processes than cores its
imports take longer."""


def session() -> Any:
    from pyspark.sql import SparkSession

    os.environ["JAVA_HOME"] = find_java().home
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").appName("penstock-data-source")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
    }.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    return made


def main(format_: str, folder: str, trigger: str, *pairs: str) -> None:
    from penstock.spark import register

    spark = session()
    register(spark)
    options = dict(pair.split("=", 1) for pair in pairs)

    def save(rows: Any, batch: int) -> None:
        # The folder is named by the batch, so a repeated batch replaces its rows.
        rows.write.mode("overwrite").parquet(f"{folder}/rows/batch={batch}")

    for attempt in range(START_ATTEMPTS):
        changes = spark.readStream.format(format_).options(**options).load()
        writer = changes.writeStream.foreachBatch(save).option("checkpointLocation", f"{folder}/checkpoint")
        when = {"availableNow": True} if trigger == "now" else {"processingTime": trigger}
        query = writer.trigger(**when).start()
        try:
            query.awaitTermination()
            break
        except Exception as error:
            if _LATE not in str(error) or attempt == START_ATTEMPTS - 1:
                raise
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
