"""PySpark's worker daemon, with Beam and PySpark's worker imported before it forks.

A worker that imports Beam on its own costs 1.6 CPU seconds and 188 MB; forked from here, 8 MB.
Set by `spark.python.daemon.module`, unless a submission names another.

Workers log to standard error, at the levels of the pipeline that they run (`tasks/worker_logs.py`). Left out are Beam's
messages about optional packages and about exceptions of DoFns. The exceptions reach the driver, and their text may
quote rows.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

from penstock.runner.spark.daemon_handoff import hand_over
from penstock.runner.spark.worker_path import without_archives

if __name__ == "__main__":
    if hand_over():
        os._exit(0)
    # The JVM reads the path of the daemon's socket from this standard output: four bytes for the length, then the
    # path. If an import prints a line, four letters are taken for a length of more than a GB, the JVM runs out of
    # memory and Spark 4.3 ends the session. So what imports print goes to standard error.
    _pipe_to_jvm = os.dup(1)
    os.dup2(2, 1)
    sys.path[:] = without_archives(sys.path)

logging.basicConfig(
    level=logging.WARNING, stream=sys.stderr, format="%(asctime)s worker %(levelname)s %(name)s: %(message)s"
)
logging.disable(logging.WARNING)
import apache_beam  # noqa: E402, F401 - what this module is for
import pyspark.worker  # noqa: E402, F401 - PySpark imports it in each worker, after the fork
from pyspark import daemon  # noqa: E402 - after logging is set up

import penstock.runner.tasks.task  # noqa: E402, F401 - what this module is for
from penstock.runner.spark.freeze_imports import freeze_imports  # noqa: E402

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


def serve() -> None:
    """Be Spark's daemon: tell the JVM the path of a socket, and fork a worker for each connection to it."""
    # Spark starts Python unbuffered, so `print` writes a text and its newline one by one, and the lines of two
    # workers mix.
    sys.stdout.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]
    freeze_imports()
    daemon.manager()


if __name__ == "__main__":
    sys.stdout.flush()
    os.dup2(_pipe_to_jvm, 1)
    os.close(_pipe_to_jvm)
    serve()
