"""Start Spark's JVM, read what it writes to standard error, and connect PySpark to it.

PySpark starts the JVM with `java_gateway.launch_gateway` (read in 4.3.0) and waits for it, lets it write to our
standard error and raises `JAVA_GATEWAY_EXITED` without a reason if it ends. Here `launch_jvm` starts the same command
and returns at once, before PySpark is imported, so the driver can import and plan while the JVM starts. The JVM writes
to a pipe. A thread copies the pipe to standard error and keeps the last lines, from which `diagnosis` says why the JVM
ended. If the JVM does not start, its stack traces are not copied: the error says the same in one sentence. Lines that
users' code prints in workers go to standard output.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shlex
import signal
import struct
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TextIO

from penstock.extras import require_extra
from penstock.runner.spark.daemon_handoff import PARENT
from penstock.runner.spark.diagnosis import Limits, start_failure
from penstock.runner.spark.errors import SparkKilledError, SparkStartError
from penstock.runner.spark.printed_lines import LINE_PREFIX

KEPT_LINES = 200
"""Number of the JVM's last log lines that are kept for an error message."""

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
        self._target, self._printed_to = _descriptor(sys.__stderr__), _descriptor(sys.__stdout__)
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

    def kill(self) -> None:
        """End the JVM at once, with the programs that start it."""
        self.mute()
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

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
            if line.startswith(LINE_PREFIX):
                # Not kept for error messages, because it may contain values of rows, and not affected by `mute`.
                _write(self._printed_to, line.removeprefix(LINE_PREFIX))
                continue
            with self._turn:
                self._lines.append(line)
                if self._held is not None:
                    self._held.append(line)
                else:
                    self._write(line)

    def _write(self, data: bytes) -> None:
        if not _write(self._target, data):
            self._target = None


def _write(target: int | None, data: bytes) -> bool:
    """Write to a descriptor; return False if its reader is gone, or its disk is full."""
    try:
        while data and target is not None:
            data = data[os.write(target, data) :]
    except OSError:
        return False
    return True


def _descriptor(stream: TextIO | None) -> int | None:
    """Return the descriptor of an original standard stream; None if the process was started without it.

    Its usual number is not taken for granted: in a process that began with it closed, it may be any file.
    """
    try:
        return None if stream is None else stream.fileno()
    except (OSError, ValueError):
        return None


def launch_jvm(
    settings: Mapping[str, str],
    environment: Mapping[str, str],
    address: Path,
    companion: Sequence[str] = (),
) -> JvmProcess:
    """Start the JVM that serves PySpark and return at once; `connect` waits for it.

    `settings` are Spark's, `environment` is added to this process's. The JVM writes to the file `address` how to
    reach it. It ends when its standard input is closed, so it does not outlive this process. `companion` is a command
    that becomes a child of the JVM.
    """
    conf = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    # Build the command as PySpark does, from the same variables.
    arguments = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
    home = str(spark_home())
    command = [f"{home}/bin/spark-submit", *conf, *arguments]
    # Pass SPARK_HOME: without it the script starts a Python to find it.
    own = {"SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": str(address), "SPARK_HOME": home}
    return JvmProcess(start_process(command, {**os.environ, **own, **environment}, companion))


def spark_home() -> Path:
    """Return Spark's home as PySpark finds it, without importing PySpark where it was installed by pip.

    Raises:
        MissingExtraError: pyspark is missing.
    """
    if home := os.environ.get("SPARK_HOME"):
        return Path(home)
    require_extra("spark", "pyspark")
    spec = importlib.util.find_spec("pyspark")
    package = Path(spec.origin).parent if spec and spec.origin else Path()
    if (package / "jars").is_dir():
        return package
    from pyspark.find_spark_home import _find_spark_home

    return Path(_find_spark_home())


def start_process(
    command: Sequence[str], environment: Mapping[str, str], companion: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """Start a program that a signal to this program's group does not reach. Its two outputs are one pipe.

    - It gets a new process group. GNU `timeout`, shells and service managers signal a whole group; a JVM that
      gets SIGTERM shuts down at once, while this process still wants to end its epoch and commit. If this process
      dies, the JVM sees the end of its standard input and ends.
    - It ignores SIGINT (Ctrl-C), which it inherits from a shell.
    - `Popen` gets no function for the child, as PySpark gives it one for SIGINT: then it does not call `fork()`. In a
      process that reads from gRPC, the handlers that gRPC has put around fork() abort about every fourth child before
      it is another program.

    `companion` starts first, without streams. The program replaces the shell that has started it, so it is the parent.
    The companion finds the parent's process id in the variable `PARENT`: if it asked the system, and the parent had
    ended by then, it would get the id of the process that adopted it.
    """
    # Popen knows `process_group` since Python 3.11. In 3.10 a new session is the only way to a group without `fork()`.
    own_group: dict[str, Any] = (
        {"process_group": 0} if sys.version_info >= (3, 11) else {"start_new_session": True}
    )
    beside = f"{PARENT}=$$ {shlex.join(companion)} >/dev/null 2>&1 &" if companion else ""
    return subprocess.Popen(
        ["/bin/sh", "-c", f'trap "" INT; {beside} exec "$@"', "sh", *command],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,  # a JVM that cannot allocate its heap says so there
        stderr=subprocess.STDOUT,
        **own_group,
    )


def connect(jvm: JvmProcess, address: Path) -> None:
    """Wait until a JVM is ready, and make it PySpark's.

    Raises:
        SparkStartError: the JVM ended before it was ready; the message says why.
    """
    from pyspark import SparkContext

    while not address.exists():
        if jvm.exit_code(_POLL_SECONDS) is not None and not address.exists():
            raise _ended(jvm)
    # A private method, but the only one that connects PySpark to a JVM without making a context (read in 4.3).
    with _gateway_in_environment(address.read_bytes()):
        SparkContext._ensure_initialized()


@contextlib.contextmanager
def explaining_its_end(jvm: JvmProcess) -> Iterator[None]:
    """Say why the JVM has ended if that is why a call to it within the block failed.

    A JVM that is killed after it has written its address gives only a refused connection.

    Raises:
        SparkStartError: the JVM has ended.
    """
    from py4j.protocol import Py4JError, Py4JJavaError

    try:
        yield
    except (SparkStartError, Py4JJavaError):  # the second one is an answer, so the JVM runs
        raise
    except (OSError, EOFError, Py4JError) as error:
        # The connection may break a moment before the process has ended.
        if jvm.exit_code(_END_SECONDS) is None:
            raise
        raise _ended(jvm) from error


def _ended(jvm: JvmProcess) -> SparkStartError:
    jvm.mute()
    code = jvm.exit_code()
    text = start_failure(jvm.log, code, Limits.of_this_process())
    return SparkKilledError(text) if code is not None and code < 0 else SparkStartError(text)


_POLL_SECONDS, _END_SECONDS = 0.02, 2.0


@contextlib.contextmanager
def _gateway_in_environment(address: bytes) -> Iterator[None]:
    """Let PySpark connect to a JVM that runs, as it does in a program that spark-submit has started.

    `address` is the content of the file that `PythonGatewayServer` writes: the port, and the secret after its length.
    """
    port, length = struct.unpack_from(">ii", address)
    os.environ["PYSPARK_GATEWAY_PORT"] = str(port)
    os.environ["PYSPARK_GATEWAY_SECRET"] = address[8 : 8 + length].decode()
    try:
        yield
    finally:
        del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]
