"""Jars of table formats that were built for another Spark are refused before anything is written."""

from __future__ import annotations

import pytest

from penstock.io.spark.table_jars import TABLE_FORMATS, refusal

DELTA, ICEBERG = TABLE_FORMATS


@pytest.mark.parametrize(
    ("format", "jar", "spark"),
    [
        (DELTA, "/jars/delta-spark_4.1_2.13-4.3.1.jar", "4.1.1"),
        (ICEBERG, "/ivy/org.apache.iceberg_iceberg-spark-runtime-4.1_2.13-1.12.0.jar", "4.1.0"),
        (DELTA, "/jars/delta-spark_4.3_2.13-5.0.0.jar", "4.3.0"),
        (DELTA, "/jars/delta-spark_2.13-4.0.0.jar", "4.0.1"),
    ],
)
def test_a_jar_for_this_spark_may_be_used(format, jar, spark):
    assert refusal(format, jar, spark) is None


@pytest.mark.parametrize(
    ("format", "jar", "built", "sink"),
    [
        (DELTA, "/jars/io.delta_delta-spark_4.1_2.13-4.3.1.jar", "Spark 4.1", "WriteToDelta"),
        (DELTA, "/jars/delta-spark_2.13-4.0.0.jar", "a Spark before 4.1", "WriteToDelta"),
        (ICEBERG, "/jars/iceberg-spark-runtime-4.1_2.13-1.12.0.jar", "Spark 4.1", "WriteToIceberg"),
    ],
)
def test_a_jar_for_another_spark_is_refused_with_the_sink_that_needs_none(format, jar, built, sink):
    reason = refusal(format, jar, "4.3.0")
    assert reason is not None
    assert built in reason
    assert sink in reason
    assert "nothing was written" in reason
