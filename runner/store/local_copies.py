"""Copies of state runs on the disk of a worker's machine, shared by its processes.

Spark runs the tasks of the same keys in different processes, and each would read its runs from the object store again.
A run never changes and its name is never used twice, so a copy is never stale. Every process checks the checksum of a
run when it opens the run. If a copy is lost or damaged, the run is read from the store again.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import stat
import tempfile
import time
import uuid
from collections.abc import Collection

from penstock.runner.protocol.names import run_age

logger = logging.getLogger(__name__)

LIMIT_BYTES = 4 << 30
"""Maximum size of all copies of one checkpoint on one machine. The oldest are deleted first."""

UNUSED_SECONDS = 86_400.0
"""Copies of another checkpoint are deleted when this much time has passed since the last change."""

_TEMPORARY = ".tmp-"


class LocalCopies:
    """Copies of files below one URL. For any number of threads and processes. Equal for equal URLs."""

    def __init__(self, url: str, base: str | None = None, limit_bytes: int = LIMIT_BYTES) -> None:
        self._url = url
        self._base = base
        self._limit_bytes = limit_bytes
        self._folder: str | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LocalCopies) and other._url == self._url

    def __hash__(self) -> int:
        return hash(self._url)

    def find(self, path: str) -> str | None:
        """Return the path of the copy of a file, or None."""
        local = self._local(path)
        return local if local and os.path.exists(local) else None

    def keep(self, path: str, data: bytes | memoryview) -> str | None:
        """Write a copy and return its path; None if this machine cannot, for example because its disk is full."""
        local = self._local(path)
        if local is None:
            return None
        # Another process may read the copy at once, so it appears complete. It need not survive a crash: no fsync.
        temporary = os.path.join(os.path.dirname(local), _TEMPORARY + uuid.uuid4().hex)
        try:
            with open(temporary, "xb") as file:
                file.write(data)
            os.replace(temporary, local)
        except OSError as error:
            logger.debug("no local copy of a state run: %s", error)
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            return None
        self._shrink(os.path.dirname(local), keep=local)
        return local

    def discard(self, path: str) -> bool:
        """Delete the copy of a file; return whether there was one."""
        local = self.find(path)
        if local is not None:
            _unlink(local)
        return local is not None

    def forget_dead(self, alive: Collection[str], before: tuple[int, int]) -> None:
        """Delete the copies of runs that were written before a (generation, epoch) and are not among `alive`."""
        if self._folder is None:
            return
        for name in _names_in(self._folder):
            age = run_age(name)
            if name not in alive and age is not None and age < before:
                _unlink(os.path.join(self._folder, name))

    def _local(self, path: str) -> str | None:
        if self._folder is None:
            self._folder = self._make_folder()
        return os.path.join(self._folder, path.rpartition("/")[2]) if self._folder else None

    def _make_folder(self) -> str | None:
        # Spark's scratch folders are on the disks that a cluster has for this.
        base = self._base or (os.environ.get("SPARK_LOCAL_DIRS") or tempfile.gettempdir()).split(",")[0]
        mine = os.path.join(base, f"penstock-runs-{os.getuid()}")
        folder = os.path.join(mine, hashlib.blake2b(self._url.encode(), digest_size=12).hexdigest())
        try:
            _make_private(mine)
            _make_private(folder)
            _delete_unused(mine, folder)
        except OSError as error:
            logger.debug("no folder for local copies of state runs: %s", error)
            return None
        return folder

    def _shrink(self, folder: str, keep: str) -> None:
        sized = []
        for name in _names_in(folder):
            with contextlib.suppress(FileNotFoundError):  # another process has deleted it
                status = os.stat(os.path.join(folder, name))
                sized.append((status.st_mtime, status.st_size, os.path.join(folder, name)))
        total = sum(size for _, size, _ in sized)
        # The oldest first. Processes that shrink at the same time may delete a few more than needed.
        for _, size, path in sorted(sized):
            if total <= self._limit_bytes:
                return
            # A process that has opened the copy keeps its content until it closes the file.
            if path != keep:
                _unlink(path)
                total -= size


def _make_private(folder: str) -> None:
    """Create a folder that only this user can use, or check that it is one.

    The name is known to all users of the machine. State may contain pickles, so a copy that another user wrote could
    run code.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a private folder of this user")


def _delete_unused(base: str, mine: str) -> None:
    """Delete the copies of checkpoints that have not changed for long. One that is still used is copied again."""
    for name in _names_in(base):
        folder = os.path.join(base, name)
        with contextlib.suppress(FileNotFoundError):
            if folder != mine and os.stat(folder).st_mtime < time.time() - UNUSED_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)


def _names_in(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def _unlink(path: str) -> None:
    with contextlib.suppress(OSError):  # another process was first
        os.unlink(path)
