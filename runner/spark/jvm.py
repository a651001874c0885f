"""Calls to Spark's JVM that PySpark has no method for: names for Spark's UI, deletion of shuffle files, and less work.

Spark deletes the files of a shuffle when the JVM has collected the objects of that shuffle. An idle JVM collects
nothing for half an hour, so the blocks of all epochs would stay on every disk of the cluster. No task reads them after
their epoch has ended. So the driver asks for their deletion then.

An epoch with little data costs what its Spark job costs. Of the JVM's CPU time for such a job, a fifth went into new
serializers (`_serializer_of_blocks`), and a tenth into looking for classes by their short names (`_CLASSES`).

No call is needed for a correct result. A context without a JVM (in a test), or a Spark version without these methods,
works without them. They were read in PySpark 4.3.0.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

logger = logging.getLogger(__name__)


class SparkJvm:
    """Names stages and deletes shuffle files on one Spark context."""

    def __init__(self, spark_context: Any) -> None:
        self._context = spark_context
        self._java: Any = getattr(spark_context, "_jsc", None)
        self._cleaner: Any = None
        self.serializer_of_blocks: Any = None
        if self._java is not None:
            self._cleaner = self._call(functools.partial(_cleaner_of, self._java))
            self.serializer_of_blocks = self._call(functools.partial(_serializer_of_blocks, spark_context))
            self._call(functools.partial(_keep_classes, spark_context._jvm))

    @contextlib.contextmanager
    def naming(self) -> Iterator[Callable[[str], None]]:
        """Yield a function that sets the name which Spark's UI shows for RDDs and jobs that are made next."""
        if self._java is None:
            yield lambda name: None
            return
        from pyspark.traceback_utils import SCCallSiteSync

        # PySpark sets the call site of each RDD to a line of our code, and Spark's UI shows that line. If the depth is
        # above 0, PySpark assumes a nested call and leaves the call site as it is.
        SCCallSiteSync._spark_stack_depth += 1
        try:
            yield lambda name: self._call(functools.partial(self._java.setCallSite, name))
        finally:
            SCCallSiteSync._spark_stack_depth -= 1
            self._call(self._java.clearCallSite)

    def delete_shuffles(self, exchanges: Iterable[Any]) -> None:
        """Let Spark delete the files of RDDs that `exchange` has returned, in the background."""
        for rdd in exchanges:
            if self._cleaner is not None:
                self._call(functools.partial(_delete_shuffle, self._cleaner, rdd))

    def stage_name(self, stage: int) -> str | None:
        """Return the name that a stage got by `naming`, or None if Spark does not know it any more."""
        if self._java is None:
            return None
        info = self._call(lambda: self._context.statusTracker().getStageInfo(stage))
        return str(info.name) if info is not None else None

    def _call(self, method: Callable[[], Any]) -> Any:
        """Call the JVM. If it does not know a method, Spark's own cleaning is enough."""
        from py4j.protocol import Py4JError

        try:
            return method()
        except (Py4JError, OSError) as error:
            self._cleaner = None
            logger.debug("a call to Spark's JVM failed: %s", error)
            return None


_CLASSES = {
    "PairwiseRDD": (),
    "PythonPartitioner": (),
    "PythonRDD": ("collectAndServe", "valueOfPair"),
    "PythonUtils": ("getBroadcastThreshold",),
    "SimplePythonFunction": (),
}
"""Classes that PySpark uses for each RDD, and their static methods."""


def _keep_classes(jvm: Any) -> None:
    """Let PySpark find these classes and methods as attributes.

    Otherwise it asks the JVM each time. The JVM tries all packages that may have a class with this name, and looks into
    all archives of its class path for each of them.
    """
    for name, methods in _CLASSES.items():
        found = getattr(jvm, name)
        for method in methods:
            setattr(found, method, getattr(found, method))
        setattr(jvm, name, found)


def _serializer_of_blocks(spark_context: Any) -> Any:
    """Return Java's serializer, for the pairs of a number and bytes that are exchanged.

    For such pairs Spark takes Kryo. Each task gets its own copy of the serializer with the description of its stage,
    and makes new Kryo objects with it. Each of these registers about a hundred classes, which takes milliseconds.
    """
    settings = spark_context._jsc.sc().conf().clone()
    # Java's serializer keeps what it has written until it is reset, by default after 100 objects, which may be 50
    # blocks of a megabyte. After two objects, a pair, it keeps nothing.
    settings.set("spark.serializer.objectStreamReset", "2")
    return spark_context._jvm.org.apache.spark.serializer.JavaSerializer(settings)


def _cleaner_of(java: Any) -> Any:
    found = java.sc().cleaner()
    return found.get() if found.isDefined() else None


def _delete_shuffle(cleaner: Any, rdd: Any) -> None:
    # `exchange` returns a map over the shuffled RDD, so the shuffle is two dependencies above it.
    shuffled = rdd._jrdd.rdd().dependencies().head().rdd()
    cleaner.doCleanupShuffle(shuffled.dependencies().head().shuffleId(), False)


_FACTORY = "PENSTOCK_WORKER_FACTORY"
"""Environment variable of workers. Only the change of its value matters: see `use_new_worker_factory`."""


def has_broken_worker_factory(text: str) -> bool:
    """Whether a Java exception says that an executor can start no more Python workers.

    Spark 4.3 has a `PythonWorkerFactory` in each executor, which keeps a daemon. If the task that starts the daemon is
    cancelled while the daemon dies, `startDaemon` is interrupted during its error handling. It then
    keeps the dead daemon without the path of a socket, and every later task ends in a NullPointerException.
    """
    return "NullPointerException" in text and "PythonWorkerFactory.createThroughDaemon" in text


def use_new_worker_factory(spark_context: Any) -> None:
    """Let jobs that start from now on use new worker factories.

    Executors keep their factories by the environment variables of the workers (`SparkEnv.createPythonWorker`), so
    another value of any variable leads to a new one. The old one has no process any more.
    """
    number = int(spark_context.environment.get(_FACTORY, "0"))
    spark_context.environment[_FACTORY] = str(number + 1)
    logger.warning(
        "Spark could not start Python workers after a daemon of theirs died; trying again with a new daemon"
    )
