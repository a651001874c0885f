"""Jars of table formats that were built for another Spark are refused before anything is written."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from penstock.attempt import Attempt, running_attempt
from penstock.errors import UsageError
from penstock.io.spark import target
from penstock.io.spark.table_jars import TABLE_FORMATS, refusal
from penstock.io.spark.target import SparkFunctionTarget
from penstock.io.staging.epochs import EpochDelivery

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


def test_a_function_is_not_called_with_jars_for_another_spark(monkeypatch: pytest.MonkeyPatch):
    jars = {DELTA.class_name: "/jars/delta-spark_4.1_2.13-4.3.1.jar"}
    session = SimpleNamespace(version="4.3.0", sparkContext=Mock())
    monkeypatch.setattr(target, "_session", lambda: session)
    monkeypatch.setattr(target, "_jar_of", lambda _, name: jars.get(name))
    monkeypatch.setattr(target, "dataframe_of", lambda *_: "rows")
    function = Mock()
    attempt = Attempt("j", 1, 7, "nonce")
    with running_attempt(attempt), pytest.raises(UsageError, match="nothing was written"):
        SparkFunctionTarget(function).publish(EpochDelivery("s", "j", 1, 7), [])
    function.assert_not_called()
    jars.clear()
    with running_attempt(attempt):
        SparkFunctionTarget(function).publish(EpochDelivery("s", "j", 1, 7), [])
    function.assert_called_once_with("rows", 7)
