"""PySpark's worker daemon, with Beam imported before it forks.

A worker that imports Beam on its own costs 1.6 CPU seconds and 188 MB; forked from here, 8 MB.
Set by `spark.python.daemon.module`, unless a submission names another.

Workers log warnings to standard error, but not what Beam says of optional packages, nor the exceptions of DoFns:
those reach the driver, and their text may quote somebody's data.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

logging.basicConfig(
    level=logging.WARNING, stream=sys.stderr, format="%(asctime)s worker %(levelname)s %(name)s: %(message)s"
)
logging.disable(logging.WARNING)
import apache_beam  # noqa: E402, F401 - what this module is for
from pyspark import daemon  # noqa: E402 - after logging is set up

import penstock.runner.tasks.task  # noqa: E402, F401 - what this module is for
from penstock.runner.spark.freeze import settle  # noqa: E402

logging.disable(logging.NOTSET)
logging.getLogger("apache_beam.runners.common").setLevel(logging.CRITICAL)

_pyspark_worker = daemon.worker


def worker(sock: Any, authenticated: bool) -> int:
    """Serve the tasks of one executor connection; return an exit code that ends this worker.

    When Spark stops or cancels a task, the JVM closes the connection while the worker still flushes its output.
    PySpark's daemon (read in 4.3) prints a BrokenPipeError traceback then, as if the pipeline had failed.
    """
    try:
        return int(_pyspark_worker(sock, authenticated))
    except (BrokenPipeError, ConnectionResetError):
        return 1  # the manager waits until the connection is closed, then ends this process


daemon.worker = worker  # `manager` looks the function up in its module

if __name__ == "__main__":
    settle()
    daemon.manager()
