"""A worker daemon that starts together with the JVM, and replaces the one that Spark starts.

Spark starts its Python daemon with the first job. The daemon imports Beam, which takes a second. So `early_daemon`
starts while the JVM starts. When Spark starts its own, that process looks for the early one (`hand_over`) and passes it
its standard streams, environment, arguments and path. From then on the early daemon answers to Spark, and Spark's
process only waits for its end. If there is no early daemon, or it has died, Spark's process does the work.

Both are children of the JVM, so the workers are where people look for them. The two processes talk over a Unix domain
socket in a private folder: one message with three descriptors, and one byte back when the daemon has taken them.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import socket
import sys
from collections.abc import Callable, Mapping, Sequence

from penstock.runner.spark.worker_path import without_archives

ADDRESS = "PENSTOCK_EARLY_DAEMON"
"""Environment variable of Spark's process with the path of the socket."""

PARENT = "PENSTOCK_PARENT"
"""Environment variable of the early daemon with the process id of the JVM."""

EARLY = "--early"
"""First argument of an early daemon. The path of the socket follows, and the names of modules to import."""

_TAKEN = b"t"
_AT_START = {"PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "YES"}
"""Variables that Python reads when it starts, with the values that Spark gives its daemon."""

_MAX_MESSAGE = 1 << 20
"""Maximum bytes of one receive. The message contains the environment, so it may need several."""
_LOOK_SECONDS = 1.0
"""Time between two checks whether the JVM still lives."""


def early_daemon(address: str, imports: Sequence[str] = ()) -> list[str]:
    """Return the command of an early daemon. It must become a child of the JVM, and ends with it."""
    variables = {**_AT_START, "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0")}
    named = [f"{name}={value}" for name, value in variables.items()]
    return ["env", *named, sys.executable, "-m", "penstock.runner.daemon", EARLY, address, *imports]


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
        _wait_for_end(connection)
    return True


def _wait_for_end(connection: socket.socket) -> None:
    """Wait until the early daemon closes the connection. Returns only where the program `cat` is missing."""
    # This process does nothing else as long as the pipeline runs, and Python and its modules are 12 MB.
    if (program := shutil.which("cat")) is not None:
        os.dup2(connection.fileno(), 0)
        with contextlib.suppress(OSError):
            os.execv(program, ["cat"])
    with contextlib.suppress(OSError):
        connection.recv(1)


def listen(address: str) -> socket.socket:
    """In the early daemon: be found by Spark's process, which waits until `take_over` answers."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(address)
    listener.listen()
    return listener


def take_over(
    listener: socket.socket, jvm: int, parent: Callable[[], int] = os.getppid
) -> socket.socket | None:
    """In the early daemon: wait for Spark's process, and take its streams, environment, arguments, path and folder.

    Returns the connection, which must stay open as long as this process lives: Spark's process waits for its end. None
    if the JVM has ended, or if Spark's process needs a Python that was started in another way. `jvm` is the process id
    of the JVM, which has started this process.
    """
    while not select.select([listener.fileno()], [], [], _LOOK_SECONDS)[0]:
        if parent() != jvm:
            return None
    connection, _ = listener.accept()
    data, descriptors, _, _ = socket.recv_fds(connection, _MAX_MESSAGE, 3)
    while more := connection.recv(_MAX_MESSAGE):
        data += more
    content = json.loads(data)
    environment: dict[str, str] = content["environment"]
    # Python reads these variables only when it starts. If they differ, Spark's process must do the work itself.
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
    # Answer last: from now on Spark's process only waits, so everything must have been taken over.
    connection.sendall(_TAKEN)
    return connection
