"""PySpark's worker daemon, with Beam and PySpark's worker imported before it forks.

A worker that imports Beam on its own costs 1.6 CPU seconds and 188 MB; forked from here, 8 MB.
Set by `spark.python.daemon.module`, unless a submission names another. The driver may have started a daemon
together with the JVM, which then does the work: see `spark/daemon_handoff.py`.

Workers log to standard error, at the levels of the pipeline that they run (`tasks/worker_logs.py`). Beam's messages
about optional packages and about exceptions of DoFns are suppressed: the exceptions reach the driver in another way,
and their text may quote rows.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import logging
import os
import signal
import sys
from collections.abc import Iterable
from typing import Any

from penstock.runner.spark.daemon_handoff import EARLY, PARENT, hand_over, listen, take_over
from penstock.runner.spark.printed_lines import prefix_prints
from penstock.runner.spark.worker_path import without_archives

if __name__ == "__main__":
    # Imports make objects that live as long as this process. The garbage collector would inspect all of them many
    # times, which takes a sixth of the time of the imports. `serve` enables it again.
    gc.disable()
    # Not `os.getppid()`: a JVM that cannot start has ended by now, and this process would wait forever.
    _jvm = int(os.environ.get(PARENT, "0"))
    _listener = listen(sys.argv[2]) if sys.argv[1:2] == [EARLY] else None
    if _listener is not None and os.getppid() != _jvm:
        os._exit(0)
    if _listener is None and hand_over():
        os._exit(0)
    # The JVM reads the path of the daemon's socket from this standard output: four bytes for the length, then the
    # path. If an import printed a line, its first four letters would be read as a length of more than a GB, the JVM
    # would run out of memory, and Spark 4.3 would end the session. So output of imports goes to standard error.
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
from penstock.runner.spark.collect_garbage import GarbageCollector  # noqa: E402
from penstock.runner.spark.freeze_imports import freeze_imports  # noqa: E402

logging.disable(logging.NOTSET)
logging.getLogger("apache_beam.runners.common").setLevel(logging.CRITICAL)

_pyspark_worker = daemon.worker


def worker(sock: Any, authenticated: bool) -> int:
    """Serve the tasks of one executor connection; return an exit code that ends this worker.

    When Spark stops or cancels a task, the JVM closes the connection while the worker still flushes its output.
    PySpark's daemon (read in 4.3) prints a BrokenPipeError traceback then, as if the pipeline had failed.
    """
    prefix_prints()
    try:
        return int(_pyspark_worker(sock, authenticated))
    except (BrokenPipeError, ConnectionResetError):
        return 1  # the manager waits until the connection is closed, then ends this process
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()


# PySpark's `manager` looks these names up in its module, so this replaces them.
daemon.worker = worker
daemon.gc = GarbageCollector()


def import_for_workers(modules: Iterable[str]) -> None:
    """Import the modules that the pipeline's tasks will need, and what their packages talk to services with.

    In Penstock these are the modules `client` and `sender` of a package. Tasks would import them when they first
    connect, which takes half a second in each worker.
    """
    logging.disable(logging.WARNING)
    for module in modules:
        with contextlib.suppress(Exception):  # the task that needs it will say what is wrong
            importlib.import_module(module)
            package = module.rpartition(".")[0]
            for name in (f"{package}.client", f"{package}.sender"):
                if importlib.util.find_spec(name) is not None:
                    importlib.import_module(name)
    logging.disable(logging.NOTSET)


def serve() -> None:
    """Run Spark's daemon: tell the JVM the path of a socket, and fork a worker for each connection to it."""
    # Spark starts Python unbuffered, so `print` writes a text and its newline one by one, and the lines of two
    # workers mix.
    sys.stdout.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]
    freeze_imports()
    gc.enable()
    daemon.manager()


if __name__ == "__main__":
    sys.stdout.flush()
    if _listener is not None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        import_for_workers(sys.argv[3:])
        _connection = take_over(_listener, jvm=_jvm)
        if _connection is None:
            sys.exit(0)
    else:
        os.dup2(_pipe_to_jvm, 1)
    os.close(_pipe_to_jvm)
    serve()
