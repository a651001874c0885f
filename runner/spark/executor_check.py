"""Check that the executors of a cluster have the driver's packages, before a pipeline takes over its checkpoint.

A local master needs no check, because its workers run with the driver's Python. Without the check, an executor with
another version of Beam or Penstock would fail on a pickled object in the middle of an epoch, or compute something else.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import platform
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError

from penstock.runner.spark.diagnosis import SHIP_PACKAGES, job_failure
from penstock.runner.spark.errors import WorkerSetupError
from penstock.runner.spark.session import task_slots
from penstock.runner.spark.settings import is_local

logger = logging.getLogger(__name__)

PACKAGES = ("penstock", "apache-beam", "msgspec")
"""Distributions that executors need in the driver's versions: their objects travel between driver and executors."""

QUIET_SECONDS = 30.0
"""Time after which the driver logs that it still waits. Executors need about 5 s, and longer to unpack an archive."""


@dataclass(frozen=True, slots=True)
class Installation:
    """The installation of a Python process: its version, versions of `PACKAGES` ("" if unknown), missing modules."""

    host: str
    python: str
    versions: Mapping[str, str]
    missing: tuple[str, ...] = ()


def installation(modules: Iterable[str]) -> Installation:
    """Return the installation of this process. `modules` are searched, and not imported."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # a folder on PYTHONPATH has no version
            versions[name] = ""
    missing = tuple(name for name in modules if not _exists(name))
    minor = ".".join(platform.python_version_tuple()[:2])
    return Installation(socket.gethostname(), minor, versions, missing)


def differences(driver: Installation, executors: Iterable[Installation]) -> list[str]:
    """Return one sentence for each host whose installation differs from the driver's. Pure."""
    found = {}
    for each in executors:
        wrong = [f"Python {each.python}, not {driver.python}"] if each.python != driver.python else []
        wrong += [
            f"{name} {version}, not {driver.versions[name]}"
            for name, version in each.versions.items()
            # Versions are compared only if both are known.
            if version and driver.versions[name] and version != driver.versions[name]
        ]
        wrong += [f"no module {name}" for name in each.missing]
        if wrong:
            found[each.host] = f"the executor on {each.host} has {', '.join(wrong)}"
    return list(found.values())


def check_executors(spark_context: Any, modules: Sequence[str] = ()) -> None:
    """Run one short job on all task slots of a cluster. `modules` will be imported by the pipeline's steps.

    Raises:
        WorkerSetupError: executors cannot run the pipeline; the message says what differs and how to ship it.
    """
    if is_local(str(spark_context.master)):
        return
    waiting = threading.Timer(QUIET_SECONDS, _say_that_nothing_runs, [str(spark_context.master)])
    waiting.daemon = True
    waiting.start()
    # One task per task slot. Spark may still run two on one executor, so an executor can be missed; it fails later
    # then.
    n = task_slots(spark_context)
    spark_context.setJobGroup("penstock-check", "check of the executors", interruptOnCancel=True)
    try:
        found = spark_context.parallelize(range(n), n).mapPartitions(_report(tuple(modules))).collect()
    except Py4JJavaError as error:
        raise job_failure(str(error), lambda stage: "the check of the executors") from error
    finally:
        waiting.cancel()
    if wrong := differences(installation(modules), found):
        raise WorkerSetupError(f"{'; '.join(wrong)}: {SHIP_PACKAGES}")


def _report(modules: tuple[str, ...]) -> Any:
    def run(_: Iterator[int]) -> Iterator[Installation]:
        yield installation(modules)

    return run


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its package is missing
        return False


def _say_that_nothing_runs(master: str) -> None:
    logger.warning(
        "no task has run for %g s on %s: the cluster may have no free cores or less memory than "
        "spark.executor.memory asks for (Spark's own page shows its executors); still waiting",
        QUIET_SECONDS,
        master,
    )
