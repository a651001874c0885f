"""The tasks of one executor agree on who runs which input: a small file that they lock in turn.

See `penstock.runner.tasks.shared_inputs` for the rule. The file is in Spark's scratch folder, which the workers of one
executor share. Executors do not exchange inputs, also if they are on one host.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.attempt import Attempt
from penstock.runner.store.scratch import scratch_folder
from penstock.runner.tasks.epoch import EpochInput
from penstock.runner.tasks.shared_inputs import HostTasks

MAX_WAIT_SECONDS = 0.25
"""How long a task waits for the other tasks of its executor, if its process holds no stream of a free input.

Spark starts the tasks of a level within a few milliseconds. A reader that moves needs longer than this: a replication
slot must be released, and the server decodes the log again.
"""
_PAUSE_SECONDS = 0.002

_process: tuple[int, str] = (0, "")


def this_process() -> str:
    """Return a name that no other process has, on any host."""
    global _process
    # Workers are forked, so a name that the daemon has drawn would be the same in all of them.
    if _process[0] != os.getpid():
        _process = (os.getpid(), f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:8]}")
    return _process[1]


def input_of(
    partition: int,
    epoch: EpochInput,
    process: str,
    *,
    folder: str | None = None,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> int:
    """Return the index of the input that the task of `partition` runs in this process.

    `folder` is what the workers of the executor share; None: Spark's scratch folder.
    """
    if not any(epoch.owners):
        return partition
    path = shared_file("inputs", epoch.attempt, folder)
    end = clock() + MAX_WAIT_SECONDS
    while True:
        with _tasks(path, epoch.attempt.nonce) as tasks:
            tasks.arrived[partition] = process
            index = tasks.choose(partition, epoch.owners, waited=clock() >= end)
            if index is not None:
                # Under the lock of the file: no two tasks of the executor take one input.
                tasks.taken[index] = partition
                return index
        pause(_PAUSE_SECONDS)


def inputs_taken(epoch: EpochInput, *, folder: str | None = None) -> frozenset[int]:
    """Return the indices of the inputs that tasks of this executor run now. Only tasks that exchange inputs count."""
    if not any(epoch.owners):
        return frozenset()
    with _tasks(shared_file("inputs", epoch.attempt, folder), epoch.attempt.nonce) as tasks:
        return frozenset(tasks.taken)


def shared_file(content: str, attempt: Attempt, folder: str | None = None) -> Path:
    """Return the path of a file that the workers of this executor share; `folder`: see `input_of`."""
    # One file for each driver. A successor on this host has another token.
    token = attempt.drivers[-1].token if attempt.drivers else str(attempt.generation)
    name = f"penstock-{content}-{os.getuid()}-{attempt.job}-{token}.json"
    return Path(folder or scratch_folder() or tempfile.gettempdir()) / name


def write_shared(path: Path, content: str) -> None:
    """Write a file of `shared_file`. Others see the old content or the new one."""
    # A name that only this task writes, then a rename.
    part = Path(f"{path}.{os.getpid()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(part, flags, 0o600), "w", encoding="ascii") as file:
        file.write(content)
    part.replace(path)


@contextmanager
def _tasks(path: Path, attempt: str) -> Iterator[HostTasks]:
    """Yield the tasks of an attempt of an epoch, locked, and write them back."""
    # O_NOFOLLOW: without Spark's scratch folder this is /tmp, where others could have made a link.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "r+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        tasks = _decoded(file.read(), attempt)
        yield tasks
        file.seek(0)
        file.truncate()
        file.write(_encoded(tasks, attempt))
        file.flush()  # before the lock is released


def _decoded(content: str, attempt: str) -> HostTasks:
    # A process that was killed while it wrote leaves a part of the content. It is dead, and its task runs again.
    try:
        document: dict[str, Any] = json.loads(content)
    except ValueError:
        return HostTasks()
    if document["attempt"] != attempt:
        return HostTasks()
    return HostTasks(_by_number(document["arrived"]), _by_number(document["taken"]))


def _encoded(tasks: HostTasks, attempt: str) -> str:
    return json.dumps({"attempt": attempt, "arrived": tasks.arrived, "taken": tasks.taken})


def _by_number(entries: dict[str, Any]) -> dict[int, Any]:
    return {int(number): value for number, value in entries.items()}
