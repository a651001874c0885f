"""Options for a JVM that a test starts with Spark's own classes, without Penstock's runner."""

from __future__ import annotations

from penstock.runner.spark.class_archive import find_archive
from penstock.runner.spark.java import find_java


def jvm_options() -> str:
    """Return options with which the JVM starts with a fifth less CPU: one compiler, one collector, archived classes.

    As the value of SPARK_SUBMIT_OPTS they count for every Spark that a process starts, and print nothing.
    """
    archive = find_archive(find_java())
    shared = f" -XX:SharedArchiveFile={archive} -Xlog:cds=off -Xlog:cds+dynamic=off" if archive else ""
    return f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC{shared}"
