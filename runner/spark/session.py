"""The Spark context of a pipeline: that of a session that is given or active, or one that is started here.

It is a bare `SparkContext`: the SQL half of a session takes four seconds to start and the runner does not use it.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.runner.spark.diagnosis import context_failure
from penstock.runner.spark.errors import SparkStartError
from penstock.runner.spark.gateway import JvmProcess, start_jvm
from penstock.runner.spark.java import find_java, launcher_home
from penstock.runner.spark.python_check import check_python
from penstock.runner.spark.scratch import PrivateFolder, make_private_folder, remove_abandoned
from penstock.runner.spark.settings import (
    DEFAULT_MASTER,
    LOOPBACK,
    SECRET,
    SETTINGS,
    is_local,
    java_options,
    local_folders,
    network_settings,
    unprotected,
)

logger = logging.getLogger(__name__)

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_LOG4J = Path(__file__).parent / "log4j2.properties"
_LONGEST_SOCKET_FOLDER = 60
"""Characters: the path of a Unix domain socket has at most 107, of which PySpark's file name takes 43."""

_starting = threading.Lock()
_started: _Started | None = None


class _Started:
    """The session that this process has started: its JVM (None under spark-submit) and its private folders."""

    def __init__(self, folders: list[PrivateFolder]) -> None:
        self.folders = folders
        self.jvm: JvmProcess | None = None

    def end(self) -> None:
        """End the session, if it still runs, and delete its folders."""
        from pyspark import SparkContext

        if self.jvm is not None:
            self.jvm.mute()
        active, SparkContext._active_spark_context = SparkContext._active_spark_context, None
        try:
            if active is not None:
                active.stop()
        except Exception as error:  # the JVM has ended before; py4j has several errors for that
            logger.debug("the context had ended before: %s", type(error).__name__)
        if self.jvm is not None:
            # PySpark keeps the gateway for the next context of the process, and it may be one that does not work.
            SparkContext._gateway, gateway = None, SparkContext._gateway
            SparkContext._jvm = None
            if gateway is not None:
                gateway.shutdown()
            self.jvm.end()
        for folder in self.folders:
            folder.remove()
        self.folders = []


def context_of(spark: Any) -> Any:
    """The context of a `SparkSession`; a `SparkContext` is its own."""
    return getattr(spark, "sparkContext", spark)


def context(master: str | None, settings: Mapping[str, str]) -> Any:
    """Return the active `SparkContext`, or start one.

    Under spark-submit the master and all settings are those of the submission. Our defaults apply to settings that it
    leaves out. `master` and `settings` are ignored with a warning.

    Raises:
        SparkStartError: Spark cannot start; the message says what to do. `JavaNotFoundError` is one of these.
        ModuleNotFoundError: pyspark is missing.
    """
    from pyspark import SparkContext

    with _starting:
        _end_if_dead()
        if SparkContext._active_spark_context is not None:
            return SparkContext._active_spark_context
        if "PYSPARK_GATEWAY_PORT" not in os.environ:
            return _start_own(master, settings)
        if master or settings:
            logger.warning(
                "--spark_master and --spark_conf do not count under spark-submit: pass it --master and --conf"
            )
        return _start_submitted()


def jvm_of(spark_context: Any) -> JvmProcess | None:
    """The JVM of a context that was started here, and not under spark-submit; otherwise None."""
    from pyspark import SparkContext

    ours = _started is not None and SparkContext._active_spark_context is spark_context
    return _started.jvm if ours and _started is not None else None


def slots(spark_context: Any) -> int:
    """How many tasks the context runs at once, according to Spark."""
    return max(1, int(spark_context.defaultParallelism))


def _end_if_dead() -> None:
    """Forget a session that cannot run anything, so that the next pipeline of this process gets a new one.

    PySpark continues to return its context after the JVM was killed, or has stopped the context because it ran out
    of memory.
    """
    from pyspark import SparkContext

    active = SparkContext._active_spark_context
    if _started is None or active is None or _started.jvm is None:
        return
    if _started.jvm.exit_code() is not None or active._jsc is None or active._jsc.sc().isStopped():
        _started.end()


def _start_own(master: str | None, settings: Mapping[str, str]) -> Any:
    """Start a JVM and a context on it; on a local master workers use this Python unless the user names one."""
    from pyspark import SparkConf

    chosen = {
        "spark.app.name": "penstock",
        "spark.master": DEFAULT_MASTER,
        "spark.ui.enabled": "false",
        **SETTINGS,
        **settings,
    }
    if master:
        chosen["spark.master"] = master
    local = is_local(chosen["spark.master"])
    if local:
        _choose_python(chosen)
    _check_spark_home()
    session = _Started(_private_folders(chosen))
    try:
        environment = _jvm_environment(session.folders, chosen["spark.master"])
        temporary = _socket_folder(session.folders)
        options = java_options(_LOG4J.as_uri(), temporary)
        chosen[_JAVA_OPTIONS] = f"{options} {settings.get(_JAVA_OPTIONS, '')}".strip()
        # PySpark passes these on the JVM's command line, which every user of the machine can read.
        public = {name: value for name, value in chosen.items() if name != SECRET}
        jvm = start_jvm(SparkConf(loadDefaults=False).setAll(list(public.items())), environment)
        # A program that stops our context keeps our JVM, and PySpark uses it again.
        session.jvm = jvm or (_started.jvm if _started is not None else None)
        conf = SparkConf()  # with what the JVM has read from spark-defaults.conf
        if session.jvm is not None:
            session.jvm.heap = conf.get("spark.driver.memory", "1g")
        if SECRET in chosen:
            conf.set(SECRET, chosen[SECRET])
        return _start_context(conf, session)
    except BaseException:
        session.end()
        raise


def _start_submitted() -> Any:
    """Start a context on the submission's JVM, with our settings where it says nothing."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # only the submission's JVM knows its settings
    conf = SparkConf()
    for name, value in SETTINGS.items():
        conf.setIfMissing(name, value)
    known = dict(conf.getAll())
    session = _Started([])
    if is_local(known.get("spark.master", "")):
        session.folders = _private_folders(known)
        conf.set("spark.local.dir", _joined(session.folders))
    try:
        return _start_context(conf, session)
    except BaseException:
        session.end()
        raise


def _start_context(conf: Any, session: _Started) -> Any:
    """Start the context with the network settings that `conf` lacks, and end it when this process ends."""
    from py4j.protocol import Py4JJavaError
    from pyspark import SparkContext

    global _started
    known = dict(conf.getAll())
    for name, value in network_settings(known, secrets.token_hex(32)).items():
        conf.set(name, value)
    if unprotected(dict(conf.getAll())):
        logger.warning(
            "anybody who reaches the ports of this Spark driver can read its data, because spark.authenticate is "
            "not set and Spark cannot make a secret for this cluster: set spark.authenticate and "
            "spark.authenticate.secret as the cluster has them, or spark.authenticate=false to accept this"
        )
    try:
        started = SparkContext.getOrCreate(conf)
    except Py4JJavaError as error:
        memory = known.get("spark.driver.memory", "1g")
        raise SparkStartError(context_failure(str(error), memory)) from error
    if session.jvm is not None:
        session.jvm.copy_output()
    # PySpark's accumulator server prints a traceback when the JVM dies; the error of the pipeline says more.
    started._accumulatorServer.handle_error = lambda *request: None
    _started = session
    atexit.register(session.end)
    return started


def _choose_python(chosen: Mapping[str, str]) -> None:
    """Name the Python of local workers: PySpark's default is the first `python3` on PATH."""
    named = chosen.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON")
    if named:
        check_python(named)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def _check_spark_home() -> None:
    home = os.environ.get("SPARK_HOME")
    if home and not os.access(Path(home, "bin", "spark-submit"), os.X_OK):
        raise SparkStartError(
            f"SPARK_HOME is {home!r}, which has no bin/spark-submit: unset it, and the Spark of the package pyspark "
            "is used, or set it to the folder of a Spark 4.3"
        )


def _private_folders(settings: Mapping[str, str]) -> list[PrivateFolder]:
    """Make a private folder in each folder for Spark's blocks, after removing those of drivers that were killed."""
    folders = []
    for base in map(Path, local_folders(os.environ, settings, tempfile.gettempdir())):
        try:
            remove_abandoned(base)
            folders.append(make_private_folder(base))
        except OSError as error:
            logger.warning("Spark does not use the folder %s: %s", base, error)
    if not folders:
        raise SparkStartError(
            "Spark has no folder for its blocks: set SPARK_LOCAL_DIRS or --spark_conf=spark.local.dir=… to a folder "
            "that can be written to"
        )
    return folders


def _socket_folder(folders: list[PrivateFolder]) -> str:
    """Return the JVM's temporary folder: sockets are made there, and the path of a socket must be short."""
    for folder in folders:
        if len(str(folder.path)) <= _LONGEST_SOCKET_FOLDER:
            return str(folder.path)
    folders.append(make_private_folder(Path("/tmp")))
    return str(folders[-1].path)


def _jvm_environment(folders: list[PrivateFolder], master: str) -> dict[str, str]:
    """Return the variables of the driver's JVM. Variables do not reach the executors of a cluster, settings do."""
    environment = {"JAVA_HOME": launcher_home(find_java(), temporary=folders[0].path)}
    if not master.startswith("k8s"):  # Spark would mount a volume at these paths in each executor
        environment["SPARK_LOCAL_DIRS"] = _joined(folders)
    if is_local(master):
        environment["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP", LOOPBACK)
    return environment


def _joined(folders: list[PrivateFolder]) -> str:
    return ",".join(str(folder.path) for folder in folders)
