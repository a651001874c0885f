"""Provides the Spark context of a pipeline: from the given or active session, or from one that is started here.

    start = begin_session(master, settings)  # returns at once
    …                                        # plan the pipeline
    spark = start.context()                  # or start.release(), if the pipeline is refused

It is a bare `SparkContext`: the SQL half of a session takes four seconds to start and the runner does not use it.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.runner.spark.errors import SparkStartError
from penstock.runner.spark.gateway import JvmProcess
from penstock.runner.spark.own_session import OwnSession, has_gateway, started_session
from penstock.runner.spark.warm_up import warm_up
from penstock.timeline import trace

logger = logging.getLogger(__name__)

_CANCEL_SECONDS = 10.0
"""How long `cancel` waits until the thread that starts a session has ended."""

_turn = threading.RLock()
_beginning: SessionStart | None = None
"""The session that is starting and that no pipeline has received yet."""


def context_of(spark: Any) -> Any:
    """The context of a `SparkSession`; a `SparkContext` is its own."""
    return getattr(spark, "sparkContext", spark)


def jvm_of(spark_context: Any) -> JvmProcess | None:
    """The JVM of a context that was started here, and not under spark-submit; otherwise None."""
    session = started_session()
    return session.jvm if session is not None and _active_context() is spark_context else None


def task_slots(spark_context: Any) -> int:
    """How many tasks the context runs at once, according to Spark."""
    return max(1, int(spark_context.defaultParallelism))


def context(master: str | None, settings: Mapping[str, str]) -> Any:
    """Return the active `SparkContext`, or start one and wait for it."""
    return begin_session(master, settings).context()


def begin_session(
    master: str | None, settings: Mapping[str, str], imports: Sequence[str] = ()
) -> SessionStart:
    """Begin to start a session in the background, and return at once.

    `imports` are modules that the pipeline's workers need: on a local master they are imported beforehand.

    If this process has an active context, or a session that is starting, that one is used; `master` and `settings` are
    ignored then. If there is a JVM that others may use (spark-submit started it, or a context that the program has
    stopped left it), nothing starts before `SessionStart.context` is called.
    """
    global _beginning
    with _turn:
        if _beginning is not None:
            _beginning.share()
            return _beginning
        _end_if_dead()
        start = SessionStart(master, settings, imports)
        # A JVM that exists already may serve other code of the program, so nothing is started on it in the background.
        if not (has_gateway() or "PYSPARK_GATEWAY_PORT" in os.environ):
            _beginning = start
            start.begin()
        return start


class SessionStart:
    """The start of a session. Pipelines that begin at the same time share it.

    The JVM starts at once, in a thread. On a local master the context and a first job follow, while the pipeline is
    still being planned. On a cluster they wait for `context`, because an application takes resources there and the
    pipeline may yet be refused.
    """

    def __init__(self, master: str | None, settings: Mapping[str, str], imports: Sequence[str]) -> None:
        self._master = master
        self._settings = settings
        self._imports = imports
        self._users = 1
        self._thread: threading.Thread | None = None
        self._needed = threading.Event()
        self._cancelled = threading.Event()
        self._session: OwnSession | None = None
        self._context: Any = None
        self._error: BaseException | None = None

    def begin(self) -> None:
        """Start the thread."""
        # A daemon thread: at exit the interpreter waits for all other threads before it calls `cancel`.
        self._thread = threading.Thread(target=self._run, name="penstock-spark-start", daemon=True)
        atexit.register(self.cancel)
        self._thread.start()

    def share(self) -> None:
        """Let one more pipeline use this session."""
        self._users += 1

    def context(self) -> Any:
        """Wait for the session and return its `SparkContext`.

        Under spark-submit the submission sets the master and all settings, and our defaults apply to what it leaves
        out. A warning says that `master` and `settings` are ignored.

        Raises:
            SparkStartError: Spark cannot start; the message says what to do. `JavaNotFoundError` is one of these.
            MissingExtraError: pyspark is missing.
        """
        if self._thread is None:
            return self._present()
        self._needed.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
        self._forget()
        return self._context

    def release(self) -> None:
        """Declare that a pipeline does not use the session. If it is still starting and no other needs it, end it."""
        with _turn:
            self._users -= 1
            unused = self._users == 0
        if unused:
            self.cancel()

    def cancel(self) -> None:
        """End a session that no pipeline has received yet, and its JVM."""
        if self._thread is None or not self._forget():
            return
        self._cancelled.set()
        self._needed.set()
        session = self._session
        if session is not None and session.jvm is not None:
            session.jvm.kill()
        self._thread.join(_CANCEL_SECONDS)
        if self._context is not None and session is not None:
            session.end()

    def _forget(self) -> bool:
        """Let the next pipeline find or start a session itself. Return whether no pipeline has received this one."""
        global _beginning
        with _turn:
            known = _beginning is self
            if known:
                _beginning = None
                atexit.unregister(self.cancel)
        return known

    def _present(self) -> Any:
        """Return the active context, or start one on the existing JVM."""
        with _turn:
            active = _active_context()
            if active is not None:
                return active
            session = self._on_present_jvm()
            try:
                return session.start_context()
            except BaseException:
                session.end()
                raise

    def _on_present_jvm(self) -> OwnSession:
        if "PYSPARK_GATEWAY_PORT" not in os.environ:
            return OwnSession.launch(self._master, self._settings)
        if self._master or self._settings:
            logger.warning(
                "--spark_master and --spark_conf do not count under spark-submit: pass it --master and --conf"
            )
        return OwnSession.submitted()

    # Methods of the thread.

    def _run(self) -> None:
        """Start the session; after an error end the parts that have started."""
        try:
            self._session = OwnSession.launch(self._master, self._settings, self._imports)
            self._context = self._connected(self._session)
            trace("context")
        except BaseException as error:
            self._error = error
            self._forget()
            if self._session is not None:
                self._session.end()
            return
        if self._session.is_local and not self._needed.is_set():
            warm_up(self._context)
            trace("workers")

    def _connected(self, session: OwnSession) -> Any:
        # `cancel` kills the JVM, and then this thread's calls to it fail. But the JVM may have started after `cancel`.
        if self._cancelled.is_set() and session.jvm is not None:
            session.jvm.kill()
        session.connect()
        trace("JVM")
        if not session.is_local:
            self._needed.wait()
        if self._cancelled.is_set():
            raise SparkStartError("Spark was not needed any more while it started")
        return session.start_context()


def _active_context() -> Any:
    """PySpark's active context, or None. PySpark is not imported for this, which takes half a second."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark import SparkContext

    # The only public way, `SparkContext.getOrCreate`, would start a context if there is none.
    return SparkContext._active_spark_context


def _end_if_dead() -> None:
    """Forget a session that cannot run anything, so that the next pipeline of this process gets a new one.

    PySpark continues to return its context after the JVM was killed, or has stopped the context because it ran out
    of memory.
    """
    active, session = _active_context(), started_session()
    if session is None or active is None or session.jvm is None:
        return
    # `_jsc` is None after `stop`. A context that Spark itself has stopped still has it, so ask the JVM.
    if session.jvm.exit_code() is not None or active._jsc is None or active._jsc.sc().isStopped():
        session.end()
