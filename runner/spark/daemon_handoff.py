"""A worker daemon that starts beside the JVM, and takes the place of the one that Spark starts.

Spark starts its Python daemon with the first job. The daemon imports Beam, which takes a second. So `EarlyDaemon`
starts the same daemon while the JVM starts. When Spark starts its own, that process looks for the early one
(`hand_over`) and passes it its standard streams, environment, arguments and path. From then on the early daemon answers
to Spark, and Spark's process only waits for its end. If there is no early daemon, or it has died, Spark's process does
the work.

The processes talk over a Unix domain socket in a private folder: one message with three descriptors, and one byte back
when the daemon has taken them.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock.runner.spark.worker_path import without_archives

ADDRESS = "PENSTOCK_EARLY_DAEMON"
"""Environment variable with the path of the socket."""

_TAKEN = b"t"
_AT_START = ("PYTHONHASHSEED", "PYTHONUNBUFFERED")
"""Variables that Python reads when it starts, with the values that Spark gives its daemon."""

_MAX_MESSAGE = 1 << 20


class EarlyDaemon:
    """The driver's side: the process, which ends with the driver, or when Spark closes its standard input."""

    def __init__(self, folder: Path, imports: Sequence[str] = ()) -> None:
        """Start it. `folder` is private; `imports` are modules that it imports besides Beam."""
        self.address = str(folder / "daemon")
        environment = {**os.environ, "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0")}
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(self.address)
            listener.listen()
            command = [sys.executable, "-m", "penstock.runner.early_daemon", str(listener.fileno()), *imports]
            self._process = subprocess.Popen(
                command,
                env={**environment, "PYTHONUNBUFFERED": "YES"},
                stdin=subprocess.PIPE,
                # If an import fails, Spark's process fails in the same way and says so.
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[listener.fileno()],
                process_group=0,
            )

    def end(self, wait_seconds: float = 2.0) -> None:
        """End it. Once it has taken Spark's place it ends with the JVM, so the JVM must have ended before."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(wait_seconds)
        except subprocess.TimeoutExpired:  # still importing
            self._process.kill()
            self._process.wait()
        with contextlib.suppress(OSError):
            os.unlink(self.address)


def hand_over(environment: Mapping[str, str] = os.environ) -> bool:
    """In the process that Spark started: let the early daemon do the work, and wait for its end.

    Returns False at once if there is none; then nothing has changed.
    """
    address = environment.get(ADDRESS)
    if not address:
        return False
    content = {
        "environment": dict(environment),
        "arguments": sys.argv,
        "path": sys.path,
        "folder": os.getcwd(),
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(address)
            socket.send_fds(connection, [json.dumps(content).encode()], [0, 1, 2])
            connection.shutdown(socket.SHUT_WR)
            if connection.recv(1) != _TAKEN:
                return False
        except OSError:
            return False
        # Spark must see the end of these pipes when the daemon closes them.
        with open(os.devnull, "r+b", buffering=0) as null:
            for descriptor in range(3):
                os.dup2(null.fileno(), descriptor)
        with contextlib.suppress(OSError):
            connection.recv(1)
    return True


def take_over(listener: socket.socket) -> socket.socket | None:
    """In the early daemon: wait for Spark's process, and take its streams, environment, arguments, path and folder.

    Returns the connection, which must stay open as long as this process lives: Spark's process waits for its end. None
    if the driver ended, or if Spark's process needs a Python that was started in another way.
    """
    ready, _, _ = select.select([listener.fileno(), 0], [], [])
    if listener.fileno() not in ready:
        return None
    connection, _ = listener.accept()
    data, descriptors, _, _ = socket.recv_fds(connection, _MAX_MESSAGE, 3)
    while more := connection.recv(_MAX_MESSAGE):
        data += more
    content = json.loads(data)
    environment: dict[str, str] = content["environment"]
    if any(environment.get(name) != os.environ.get(name) for name in _AT_START):
        return None
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:] = content["arguments"]
    sys.path[:] = without_archives(content["path"])
    os.chdir(content["folder"])
    connection.sendall(_TAKEN)
    return connection
