"""The Spark session of a pipeline: one that is given, one that is active, or one of our own."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

DEFAULT_MASTER = "local[*,4]"

_OWN_SETTINGS = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "penstock.runner.daemon",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.worker.reuse": "true",
    "spark.speculation": "false",
    "spark.cleaner.periodicGC.interval": "1min",
}


def session(master: str | None, settings: Mapping[str, str]) -> Any:
    """Return the active session, or start one.

    Under spark-submit the master and all settings are those of the submission, unless `master` is given.

    Raises:
        JavaNotFoundError: there is no Java runtime; the message names both remedies.
        ModuleNotFoundError: pyspark is missing.
    """
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    builder = SparkSession.builder.appName(settings.get("spark.app.name", "penstock"))
    if not submitted:
        _find_java()
        builder = builder.config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={_log4j()}")
        builder = builder.config("spark.ui.enabled", "false")
    if master or not submitted:
        builder = builder.master(master or DEFAULT_MASTER)
    if not submitted and (master or DEFAULT_MASTER).startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    for key, value in {**_OWN_SETTINGS, **settings}.items():
        builder = builder.config(key, value)
    started = builder.getOrCreate()
    atexit.register(_stop, started)
    return started


def _stop(started: Any) -> None:
    """End a session of our own before the interpreter goes; one whose JVM is gone already is no error."""
    try:
        started.stop()
    except Exception as error:
        logger.debug("the session had ended before: %s", type(error).__name__)


def slots(spark: Any) -> int:
    """How many tasks the session runs at once, as far as Spark says."""
    return max(1, int(spark.sparkContext.defaultParallelism))


def _log4j() -> str:
    return (Path(__file__).parent / "log4j2.properties").as_uri()


def _find_java() -> None:
    from penstock.runner.java import find_java

    os.environ["JAVA_HOME"] = str(find_java().home)
