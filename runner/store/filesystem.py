"""Where a checkpoint lives: the few operations that the protocol needs of storage.

The heart is `create_if_absent`: of all drivers that create one path, exactly one succeeds, and what it
wrote is whole and durable. A local file system does it with an exclusive hard link, an object store with a
conditional put. Everything else writes under names that no other attempt uses, so it needs no atomicity.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from pathlib import Path
from typing import Protocol

from penstock.runner.protocol.errors import NotWrittenError, OutcomeUnknownError

PRIVATE_FOLDER = 0o700
PRIVATE_FILE = 0o600
_TEMPORARY = ".tmp-"


class FileSystem(Protocol):
    """Storage of one checkpoint. Paths are strings; folders come into being with their first file."""

    def create_if_absent(self, path: str, data: bytes) -> bool:
        """Create `path` with exactly `data`, atomically and durably; False if the path exists.

        False also promises that the existing file is durable.

        Raises:
            OutcomeUnknownError: it may or may not have happened, or may still happen. Ask again with the same
            bytes.
            OSError: nothing was created.
        """

    def write(self, path: str, data: bytes) -> None:
        """Write a new file, durably. The name must be the caller's alone; a failure may leave part of a file.

        Raises:
            FileExistsError: the name was used before.
        """

    def read(self, path: str) -> bytes:
        """Return the whole file, or raise FileNotFoundError."""

    def list(self, folder: str) -> list[str]:
        """Return the names of the files in a folder, sorted; [] if there is no such folder."""

    def delete(self, path: str) -> None:
        """Delete a file; a missing one is fine."""

    def local_path(self, path: str) -> str | None:
        """Return the path under which this machine can open the file, None when it cannot."""

    def make_private(self, folder: str) -> None:
        """Create the folder if it is missing; let nobody but the owner look into or change a new one.

        Raises:
            PermissionError: the folder is there already and others may write to it.
        """

    def delete_leftovers(self, folder: str, older_than_s: float) -> int:
        """Delete what killed writers left half done at least so long ago; return how many files went."""


class LocalFileSystem:
    """A `FileSystem` on a POSIX file system with hard links: a local disk, or NFS.

    Files are 0600 and new folders 0700. A kill in the middle of a create leaves a file named `.tmp-…`, which
    no one lists or reads. Two instances are equal: they are the same storage.
    """

    def __eq__(self, other: object) -> bool:
        return type(other) is LocalFileSystem

    def __hash__(self) -> int:
        return hash(LocalFileSystem)

    def create_if_absent(self, path: str, data: bytes) -> bool:
        folder = os.path.dirname(path)
        _make_folders(folder)
        temporary = os.path.join(folder, _TEMPORARY + uuid.uuid4().hex)
        try:
            _write_new(temporary, data)
            created = _link(temporary, path)
        finally:
            with contextlib.suppress(OSError):  # a leftover; delete_leftovers takes it later
                os.unlink(temporary)
        try:
            _sync_folder(folder)
        except OSError as error:
            raise OutcomeUnknownError(error.errno, f"{path} may not be durable: {error.strerror}") from error
        return created

    def write(self, path: str, data: bytes) -> None:
        folder = os.path.dirname(path)
        _make_folders(folder)
        _write_new(path, data)
        _sync_folder(folder)

    def read(self, path: str) -> bytes:
        return Path(path).read_bytes()

    def list(self, folder: str) -> list[str]:
        try:
            with os.scandir(folder) as entries:
                return sorted(e.name for e in entries if not e.name.startswith(_TEMPORARY))
        except FileNotFoundError:
            return []

    def delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def local_path(self, path: str) -> str | None:
        return path

    def make_private(self, folder: str) -> None:
        if not os.path.isdir(folder):
            _make_folders(folder)
        elif not self.list(folder):
            os.chmod(folder, PRIVATE_FOLDER)
        elif mode := os.stat(folder).st_mode & 0o022:
            raise PermissionError(
                f"others may write to {folder} (mode bits {mode:03o}); if it is a checkpoint, run chmod 700 {folder}"
            )

    def delete_leftovers(self, folder: str, older_than_s: float) -> int:
        if not os.path.isdir(folder):
            return 0
        before = time.time() - older_than_s
        with os.scandir(folder) as entries:
            old = [e.path for e in entries if e.name.startswith(_TEMPORARY) and _modified(e) < before]
        for path in old:
            self.delete(path)
        return len(old)


def _modified(entry: os.DirEntry[str]) -> float:
    """Return when the entry was last written; one that has just gone counts as new."""
    try:
        return entry.stat().st_mtime
    except FileNotFoundError:
        return time.time()


def _write_new(path: str, data: bytes) -> None:
    """Write and fsync a file that must not exist; take it away again if that fails (a full disk)."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise
    except FileExistsError:
        raise
    except OSError as error:
        raise NotWrittenError(
            error.errno,
            f"cannot write {path}: {error.strerror}. Free space on that file system, or let this user write to the "
            "folder; the pipeline goes on from its checkpoint",
        ) from error


def _link(temporary: str, path: str) -> bool:
    """Give the file its name unless the name is taken.

    On NFS an answer can get lost and the repeated request then fails although the first one succeeded, so the
    file's number of links has the last word (open(2), O_EXCL).
    """
    try:
        os.link(temporary, path)
    except OSError as error:
        if os.stat(temporary).st_nlink == 2:
            return True
        if isinstance(error, FileExistsError):
            return False
        raise
    return True


def _make_folders(folder: str) -> None:
    """Create the folder and its parents, each durable in its parent."""
    if os.path.isdir(folder):
        return
    parent = os.path.dirname(folder)
    if parent and parent != folder:
        _make_folders(parent)
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, PRIVATE_FOLDER)
    _sync_folder(parent or ".")


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
