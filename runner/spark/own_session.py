"""A session that this process starts: its private folders, its JVM and its context; and how all three end."""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import shutil
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from penstock.runner.spark.class_archive import find_archive
from penstock.runner.spark.daemon_handoff import ADDRESS, early_daemon
from penstock.runner.spark.diagnosis import context_failure
from penstock.runner.spark.errors import SparkStartError
from penstock.runner.spark.gateway import JvmProcess, connect, explaining_its_end, launch_jvm
from penstock.runner.spark.java import Java, find_java, launcher_home
from penstock.runner.spark.printed_lines import VARIABLE
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
    memory_variables,
    network_settings,
    unprotected,
)

logger = logging.getLogger(__name__)

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_LOG4J = Path(__file__).parent / "log4j2.properties"
_MAX_SOCKET_FOLDER = 60
"""Characters: the path of a Unix domain socket has at most 107, of which PySpark's file name takes 43."""

_started: OwnSession | None = None


def started_session() -> OwnSession | None:
    """Return the session that this process has started last, if any."""
    return _started


class OwnSession:
    """A session of this process. `jvm` is None under spark-submit, which has started the JVM.

    `settings` are Spark's settings that do not come from the JVM's own configuration.
    """

    def __init__(self, settings: Mapping[str, str], folders: list[PrivateFolder]) -> None:
        self.settings = settings
        self.folders = folders
        self.jvm: JvmProcess | None = None
        self._address: Path | None = None

    @property
    def is_local(self) -> bool:
        """Whether driver, executors and workers all run on this machine."""
        return is_local(self.settings.get("spark.master", ""))

    @classmethod
    def launch(
        cls, master: str | None, settings: Mapping[str, str], imports: Sequence[str] = ()
    ) -> OwnSession:
        """Start a JVM and a worker daemon, and do not wait for them. PySpark is not imported here.

        If this process has a JVM of PySpark already, the session uses it. `imports` are modules that workers of a
        local master import before their first task.

        Raises:
            SparkStartError: Spark cannot start like this; the message says what to do.
            MissingExtraError: pyspark is missing.
        """
        chosen = {
            "spark.app.name": "penstock",
            "spark.master": DEFAULT_MASTER,
            "spark.ui.enabled": "false",
            **SETTINGS,
            **settings,
        }
        if master:
            chosen["spark.master"] = master
        # Check everything before the JVM starts: its own messages about these mistakes are stack traces.
        if is_local(chosen["spark.master"]):
            _choose_python(chosen)
        _check_spark_home()
        session = cls(chosen, _private_folders(chosen))
        try:
            session._launch_jvm(settings.get(_JAVA_OPTIONS, ""), imports)
        except BaseException:
            session.end()
            raise
        return session

    @classmethod
    def submitted(cls) -> OwnSession:
        """Return a session on the JVM that spark-submit has started."""
        from pyspark import SparkConf, SparkContext

        SparkContext._ensure_initialized()  # only the submission's JVM knows its settings
        conf = SparkConf()
        for name, value in SETTINGS.items():
            conf.setIfMissing(name, value)
        known = dict(conf.getAll())
        session = cls(known, [])
        if session.is_local:
            session.folders = _private_folders(known)
            known["spark.local.dir"] = _joined(session.folders)
        return session

    def connect(self) -> None:
        """Wait for the JVM.

        Raises:
            SparkStartError: it has ended; the message says why.
        """
        if self.jvm is not None and self._address is not None:
            with explaining_its_end(self.jvm):
                connect(self.jvm, self._address)

    def start_context(self) -> Any:
        """Start the context with the network settings that the settings lack, and end it when this process ends.

        Raises:
            SparkStartError: Spark refuses its settings, or the JVM has ended; the message says what to do.
        """
        with nullcontext() if self.jvm is None else explaining_its_end(self.jvm):
            return self._start_context()

    def _start_context(self) -> Any:
        from py4j.protocol import Py4JJavaError
        from pyspark import SparkConf, SparkContext

        global _started
        conf = SparkConf()  # with what the JVM has read from spark-defaults.conf
        conf.setAll(list(self.settings.items()))
        known = dict(conf.getAll())
        for name, value in network_settings(known, secrets.token_hex(32)).items():
            conf.set(name, value)
        if unprotected(dict(conf.getAll())):
            logger.warning(
                "every user who reaches the ports of this Spark driver can read its data, because spark.authenticate "
                "is not set and Spark cannot make a secret for this cluster: set spark.authenticate and "
                "spark.authenticate.secret as the cluster has them, or spark.authenticate=false to accept this"
            )
        memory = known.get("spark.driver.memory", "1g")
        try:
            context = SparkContext.getOrCreate(conf)
        except Py4JJavaError as error:
            raise SparkStartError(context_failure(str(error), memory)) from error
        if self.jvm is not None:
            self.jvm.heap = memory
            self.jvm.copy_output()
        # PySpark's accumulator server prints a traceback when the JVM dies; the error of the pipeline says more.
        context._accumulatorServer.handle_error = lambda *request: None
        _started = self
        atexit.register(self.end)
        return context

    def end(self) -> None:
        """End the session, if it still runs, and delete its folders."""
        if self.jvm is not None:
            self.jvm.mute()
        if "pyspark" in sys.modules:
            self._end_context()
        if self.jvm is not None:
            self.jvm.end()
        for folder in self.folders:
            folder.remove()
        self.folders = []

    def _end_context(self) -> None:
        from pyspark import SparkContext

        # Forget the context before it is stopped: `stop` may fail because the JVM is gone, and then PySpark (4.3) would
        # continue to return this context to other pipelines.
        active, SparkContext._active_spark_context = SparkContext._active_spark_context, None
        try:
            if active is not None:
                _stop_in_background(active)
                active.stop()
        except Exception as error:  # the JVM has ended before; py4j has several errors for that
            logger.debug("the context had ended before: %s", type(error).__name__)
        if self.jvm is not None:
            # PySpark keeps the gateway for the next context of the process, and it may be one that does not work.
            SparkContext._gateway, gateway = None, SparkContext._gateway
            SparkContext._jvm = None
            if gateway is not None:
                gateway.shutdown()

    def _launch_jvm(self, java_options_of_user: str, imports: Sequence[str]) -> None:
        temporary = _socket_folder(self.folders)
        java = find_java()
        # The user's options come last, so that one about the archive or the heap wins.
        archive = None if "ArchiveClassesAtExit" in java_options_of_user else find_archive(java)
        options = java_options(
            _LOG4J.as_uri(),
            temporary,
            str(archive) if archive else None,
            of_user=java_options_of_user,
            heap=self.settings.get("spark.driver.memory"),
        )
        self.settings = {**self.settings, _JAVA_OPTIONS: options}
        if has_gateway():
            # A program that stops our context keeps our JVM, and PySpark uses it again.
            self.jvm = _started.jvm if _started is not None else None
            return
        environment = _jvm_environment(java, self.folders, self.settings["spark.master"])
        # These are on the JVM's command line, which every user of the machine can read.
        public = {name: value for name, value in self.settings.items() if name != SECRET}
        self._address = self.folders[0].path / "gateway"
        companion = []
        if _has_plain_workers(self.settings):
            environment[ADDRESS] = f"{temporary}/daemon"
            companion = early_daemon(environment[ADDRESS], imports)
        self.jvm = launch_jvm(public, environment, self._address, companion)


def _stop_in_background(context: Any) -> None:
    """End the accumulator server of a context in the background, because `SparkContext.stop` would wait for it.

    The server's thread checks once a second whether it must end (`accumulators._start_update_server`, read in PySpark
    4.3), so every program would end up to a second later.
    """
    server, context._accumulatorServer = context._accumulatorServer, None
    if server is not None:
        threading.Thread(target=server.shutdown, name="penstock-accumulators", daemon=True).start()


def _has_plain_workers(settings: Mapping[str, str]) -> bool:
    """Whether workers run here, with this Python and our daemon, and without variables that only they have."""
    python = settings.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON", "")
    return (
        is_local(settings["spark.master"])
        and not settings["spark.master"].startswith("local-cluster")
        and settings["spark.python.daemon.module"] == SETTINGS["spark.python.daemon.module"]
        and os.path.abspath(shutil.which(python) or "") == os.path.abspath(sys.executable)
        and not any(name.startswith("spark.executorEnv.") for name in settings)
    )


def has_gateway() -> bool:
    """Whether PySpark is connected to a JVM."""
    if "pyspark" not in sys.modules:
        return False
    from pyspark import SparkContext

    # PySpark 4.3 has no public way to ask this without starting a JVM.
    return SparkContext._gateway is not None


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
    """Make a private folder in each folder for Spark's blocks; before it, remove the folders of killed drivers."""
    folders = []
    for base in map(Path, local_folders(os.environ, settings, tempfile.gettempdir())):
        try:
            remove_abandoned(base)
            folders.append(make_private_folder(base))
        # One of several disks may be full or read-only, and Spark uses the others.
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
        if len(str(folder.path)) <= _MAX_SOCKET_FOLDER:
            return str(folder.path)
    folders.append(make_private_folder(Path("/tmp")))
    return str(folders[-1].path)


def _jvm_environment(java: Java, folders: list[PrivateFolder], master: str) -> dict[str, str]:
    """Return the variables of the driver's JVM. Variables do not reach the executors of a cluster, settings do."""
    environment = {"JAVA_HOME": launcher_home(java, temporary=folders[0].path)}
    environment |= memory_variables(os.environ)
    if not master.startswith("k8s"):  # Spark would mount a volume at these paths in each executor
        environment["SPARK_LOCAL_DIRS"] = _joined(folders)
    if is_local(master):
        # Executors of a local-cluster print into files.
        if not master.startswith("local-cluster"):
            environment[VARIABLE] = "1"
        environment["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP", LOOPBACK)
    return environment


def _joined(folders: list[PrivateFolder]) -> str:
    return ",".join(str(folder.path) for folder in folders)
