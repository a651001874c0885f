"""A Spark program as users write it, without Beam: changes of a table into Parquet, one folder for each batch.

    python -m benchmarks.demo.data_source_job FORMAT FOLDER TRIGGER OPTION=VALUE…

TRIGGER is "now" (read what there is and end) or a time, such as "500 milliseconds" (read until killed). With the
environment variable SPARK_REMOTE, such as ``local[2]`` or ``sc://host``, it is a client of Spark Connect.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from penstock.runner.spark.java import find_java
from penstock.spark import register

START_ATTEMPTS = 40
_LATE = "failed to connect back"
"""Spark waits ten seconds for the process of a Python source, and no setting changes that. On a machine with many more
processes than cores its imports take longer."""
WHOLE_BACKLOG = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"
"""Spark 4.0 and 4.1 run one batch with `availableNow`, and after a crash it is the interrupted one. With this setting
of Spark, the changes after it are read too. Newer versions read to the end in any case."""
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
}


def session() -> Any:
    from pyspark.sql import SparkSession

    os.environ["JAVA_HOME"] = find_java().home
    os.environ.setdefault("WORKER_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_PYTHON", str(Path(__file__).with_name("worker_python.sh")))
    builder: Any = SparkSession.builder.appName("penstock-data-source")
    remote = os.environ.get("SPARK_REMOTE")
    # As on a cluster: a task is tried four times.
    builder = builder.remote(remote) if remote else builder.master("local[2,4]")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    if not remote:
        made.sparkContext.setLogLevel("ERROR")
    return made


def main(format_: str, folder: str, trigger: str, *pairs: str) -> None:
    spark = session()
    save_changes(spark, format_, folder, trigger, dict(pair.split("=", 1) for pair in pairs))
    spark.stop()


def save_changes(spark: Any, format_: str, folder: str, trigger: str, options: dict[str, str]) -> None:
    """Run the query until it ends. It continues from the checkpoint in `folder`, if there is one."""
    register(spark)
    spark.conf.set(WHOLE_BACKLOG, "true")

    def save(changes: Any, batch: int) -> None:
        # The folder is named by the batch, so a repeated batch replaces its rows.
        changes.write.mode("overwrite").parquet(f"{folder}/rows/batch={batch}")

    when = {"availableNow": True} if trigger == "now" else {"processingTime": trigger}
    for attempt in range(START_ATTEMPTS):
        try:
            changes = spark.readStream.format(format_).options(**options).load()
            writer = changes.writeStream.foreachBatch(save).option(
                "checkpointLocation", f"{folder}/checkpoint"
            )
            # On Spark Connect, the start waits for the process that calls `save`.
            writer.trigger(**when).start().awaitTermination()
            break
        except Exception as error:
            if _LATE not in str(error) or attempt == START_ATTEMPTS - 1:
                raise


if __name__ == "__main__":
    main(*sys.argv[1:])
