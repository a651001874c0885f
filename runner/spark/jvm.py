"""What is said to Spark beside the work: words for its UI, and that the files of an exchange may go.

Spark deletes the files of a shuffle when the JVM has collected the objects that stand for it, and an idle JVM
collects nothing for half an hour: an epoch's blocks would pile up on every disk of the cluster. Nobody reads them
again once the epoch has ended, so they are given up there and then.

Both go through the JVM, past what PySpark offers. Neither is needed for a right result: a context without a JVM
(a test's), or a Spark that has moved these methods, runs without them.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

logger = logging.getLogger(__name__)


class SparkKeeper:
    """Names stages and gives up shuffles on one Spark context."""

    def __init__(self, spark_context: Any) -> None:
        self._java: Any = getattr(spark_context, "_jsc", None)
        self._cleaner: Any = None
        if self._java is not None:
            self._cleaner = self._guarded(functools.partial(_cleaner_of, self._java))

    @contextlib.contextmanager
    def naming(self) -> Iterator[Callable[[str], None]]:
        """Yield a function that says what the RDDs and jobs that are made next are called in Spark's UI."""
        if self._java is None:
            yield lambda words: None
            return
        from pyspark.traceback_utils import SCCallSiteSync

        # Above a depth of 0 PySpark leaves the call site alone, which it would set to a line of ours.
        SCCallSiteSync._spark_stack_depth += 1
        try:
            yield lambda words: self._guarded(functools.partial(self._java.setCallSite, words))
        finally:
            SCCallSiteSync._spark_stack_depth -= 1
            self._guarded(self._java.clearCallSite)

    def forget(self, exchanges: Iterable[Any]) -> None:
        """Let the files of what `partitionBy` has returned be deleted, in the background."""
        for rdd in exchanges:
            if self._cleaner is not None:
                self._guarded(functools.partial(_give_up, self._cleaner, rdd))

    def _guarded(self, ask: Callable[[], Any]) -> Any:
        """Ask the JVM; what it cannot do any more is left to Spark's own cleaning."""
        from py4j.protocol import Py4JError

        try:
            return ask()
        except Py4JError as error:
            self._cleaner = None
            logger.debug("Spark cleans up by itself: %s", error)
            return None


def _cleaner_of(java: Any) -> Any:
    found = java.sc().cleaner()
    return found.get() if found.isDefined() else None


def _give_up(cleaner: Any, rdd: Any) -> None:
    """Clean up the shuffle of an RDD that `partitionBy` has returned: a map over the shuffled RDD."""
    shuffled = rdd._jrdd.rdd().dependencies().head().rdd()
    cleaner.doCleanupShuffle(shuffled.dependencies().head().shuffleId(), False)
