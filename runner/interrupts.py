"""Ctrl-C in a user's own program that waits for a pipeline: it ends in order and without a traceback.

The `penstock` command and `penstock.pipelines` have their own signals (`penstock.launch.signals`). Here the program
belongs to the user, so the interrupt stays an exception, which `finally` and `except KeyboardInterrupt` see.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType


@contextmanager
def interrupts_raised() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt within the block and do nothing else.

    The handler that PySpark sets with each context (`SparkContext._do_init`, read in 4.3) cancels all jobs of Spark
    first: the epoch that runs would fail before the pipeline could be asked to stop. A program's own handler stays.
    """
    before = signal.getsignal(signal.SIGINT)
    of_pyspark = str(getattr(before, "__module__", "")).partition(".")[0] == "pyspark"
    # Python sets handlers of signals in the main thread only.
    if threading.current_thread() is not threading.main_thread() or not of_pyspark:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def interrupted(message: str) -> KeyboardInterrupt:
    """Return the exception to raise. If it ends the program, Python shows `message` and no traceback.

    It is no subclass: Python ends with the exit code of SIGINT only for KeyboardInterrupt itself.
    """
    raised, previous = KeyboardInterrupt(message), sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if error is raised:
            print(message, file=sys.stderr)
        else:
            previous(kind, error, traceback)

    sys.excepthook = hook
    return raised
