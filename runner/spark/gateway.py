"""Start PySpark's JVM and read what it writes to standard error.

PySpark starts the JVM with `java_gateway.launch_gateway` (read in 4.3.0), lets it write to our standard error and
raises `JAVA_GATEWAY_EXITED` without a reason if it ends. Here the JVM writes to a pipe. A thread copies the pipe to
standard error and keeps the last lines, from which `diagnosis` says why the JVM ended. If the JVM does not start, its
stack traces are not copied: the error says the same in one sentence.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from typing import IO, Any

from penstock.runner.spark.diagnosis import Limits, start_failure
from penstock.runner.spark.errors import SparkStartError

KEPT_LINES = 200

_MISSING_PACKAGE = re.compile(rb"WARNING: package \S+ not in java\.base\s*")
"""Java 25 prints this for a package that Spark 4.3 opens on every start, for older Javas."""


class JvmProcess:
    """The JVM that this process started: how it ended, and the last lines of its standard error.

    `heap` is the value of spark.driver.memory.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.heap = "1g"  # Spark's default
        self._process = process
        self._lines: deque[bytes] = deque(maxlen=KEPT_LINES)
        self._held: list[bytes] | None = []  # while it starts
        self._turn = threading.Lock()
        self._target = _standard_error()
        self._copier = threading.Thread(target=self._copy, daemon=True, name="penstock-jvm-stderr")
        self._copier.start()

    @property
    def log(self) -> str:
        """The last lines that the JVM and the Python workers below it wrote."""
        return b"".join(self._lines).decode(errors="replace")

    def exit_code(self, wait_seconds: float = 0.0) -> int | None:
        """Return the exit code, negative for a signal, or None if the JVM still runs after `wait_seconds`."""
        try:
            code = self._process.wait(wait_seconds)
        except subprocess.TimeoutExpired:
            return None
        self._copier.join(1.0)  # a worker that outlives the JVM keeps the pipe open
        return code

    def copy_output(self) -> None:
        """Copy what the JVM writes from now on, and what it has written while it started."""
        with self._turn:
            held, self._held = self._held, None
            self._write(b"".join(held or ()))

    def mute(self) -> None:
        """Copy nothing more: while Spark stops, its threads log tasks that they can no longer finish."""
        self._target = None

    def end(self, wait_seconds: float = 10.0) -> None:
        """Close the JVM's standard input, which ends it, and wait; kill it if it does not end."""
        self.mute()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):  # it has ended already
                self._process.stdin.close()
        if self.exit_code(wait_seconds) is None:
            self._process.kill()
            self._process.wait()

    def _copy(self) -> None:
        """Read until the pipe is closed, even when our standard error is closed: a full pipe stops the JVM."""
        source: IO[bytes] | None = self._process.stdout
        assert source is not None
        for line in source:
            if _MISSING_PACKAGE.fullmatch(line):
                continue
            with self._turn:
                self._lines.append(line)
                if self._held is not None:
                    self._held.append(line)
                else:
                    self._write(line)

    def _write(self, data: bytes) -> None:
        target = self._target
        try:
            while data and target is not None:
                data = data[os.write(target, data) :]
        except OSError:  # the reader of our standard error is gone, or its disk is full
            self._target = None


def _standard_error() -> int | None:
    """Return the descriptor of the original standard error; None if the process was started without one.

    Number 2 is not taken for granted: in a process that began with it closed, it may be any file.
    """
    try:
        return None if sys.__stderr__ is None else sys.__stderr__.fileno()
    except (OSError, ValueError):
        return None


def start_jvm(conf: Any, environment: Mapping[str, str]) -> JvmProcess | None:
    """Start the JVM of PySpark with a `SparkConf`, and with these environment variables besides ours.

    None if this process has a JVM of PySpark that another has started; it is used then.

    Raises:
        SparkStartError: the JVM ended before it was ready; the message says why.
    """
    from pyspark import SparkContext
    from pyspark.errors import PySparkRuntimeError

    with pyspark_popen(environment) as started:
        try:
            SparkContext._ensure_initialized(conf=conf)
        except PySparkRuntimeError as error:
            if not started:
                raise
            jvm = started[0]
            jvm.mute()
            why = start_failure(jvm.log, jvm.exit_code(5.0), Limits.of_this_process())
            raise SparkStartError(why) from error
    return started[0] if started else None


@contextlib.contextmanager
def pyspark_popen(environment: Mapping[str, str]) -> Iterator[list[JvmProcess]]:
    """While this lasts, PySpark starts its JVM with our `Popen`; yield the list that JVMs are added to.

    PySpark's `launch_gateway` takes arguments for `Popen`, but sets `env` and `preexec_fn` over them. So the name
    in its module is replaced. Four things are different:

    - Standard output and standard error are one pipe, and `environment` is added.
    - The JVM gets a new process group. GNU `timeout`, shells and service managers signal a whole group; a JVM
      that gets SIGTERM shuts down at once, while this process still wants to end its epoch and commit. If this
      process dies, the JVM sees the end of its standard input and ends.
    - In the main thread the JVM is started without `fork()`. In a process that reads from gRPC, the handlers that
      gRPC has put around fork() abort about every fourth child before it is another program: "Java gateway process
      exited before sending its port number". `Popen` forks only because PySpark gives it a function for the child,
      which makes the JVM ignore SIGINT (Ctrl-C). A child also inherits that from a parent that ignores SIGINT
      while it starts the child, and only the main thread may change what a process does with a signal.
    """
    from pyspark import java_gateway

    popen = java_gateway.Popen
    started: list[JvmProcess] = []

    def start(command: Any, preexec_fn: Any = None, env: Any = None, **options: Any) -> Any:
        options["env"] = {**(os.environ if env is None else env), **environment}
        # A JVM that cannot allocate its heap says so on standard output.
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "process_group": 0}
        if _may_ignore_interrupts():
            before = signal.signal(signal.SIGINT, signal.SIG_IGN)
            try:
                process = popen(command, **options)
            finally:
                signal.signal(signal.SIGINT, before)
        else:
            process = popen(command, preexec_fn=preexec_fn, **options)
        started.append(JvmProcess(process))
        return process

    java_gateway.Popen = start
    try:
        yield started
    finally:
        java_gateway.Popen = popen


def _may_ignore_interrupts() -> bool:
    """Whether this thread may set the handler of SIGINT, and set it back: Python cannot set a handler of C's."""
    in_main = threading.current_thread() is threading.main_thread()
    return in_main and signal.getsignal(signal.SIGINT) is not None
