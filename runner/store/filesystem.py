"""The storage of a checkpoint: the few operations that the protocol needs, and their implementation on local disks.

The most important operation is `create_if_absent`: if several drivers create one path, exactly one of them succeeds,
and its content is complete and durable. A local file system does that with an exclusive hard link, an object store with
a conditional put (`object_filesystem`). All other files have names that no other attempt uses, so writing them need not
be atomic.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import time
import uuid
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import IO, Protocol

from penstock.runner.protocol.errors import NotWrittenError, OutcomeUnknownError

PRIVATE_FOLDER = 0o700
PRIVATE_FILE = 0o600
_TEMPORARY = ".tmp-"
_COPY_BYTES = 1 << 20


class FileSystem(Protocol):
    """Storage of one checkpoint. Paths are strings; a folder is created with its first file."""

    def create_if_absent(self, path: str, data: bytes) -> bool:
        """Create `path` with exactly `data`, atomically and durably; False if the path exists.

        False also promises that the existing file is durable.

        Raises:
            OutcomeUnknownError: the file may exist, or may still be created. Call again with the same bytes.
            OSError: nothing was created.
        """

    def may_reappear(self, path: str) -> bool:
        """Return whether the file may be created again after its deletion, by a request of this process.

        An object store may carry out a request long after the client has stopped waiting for the answer.
        """

    def write(self, path: str, data: bytes) -> None:
        """Write a new file, durably. Only the caller may use the name. A failure may leave part of a file.

        Raises:
            FileExistsError: the name was used before.
        """

    def write_file(self, path: str, local: str) -> None:
        """Write a new file with the content of a file on this machine, which may be larger than memory; as `write`."""

    def read(self, path: str) -> bytes:
        """Return the whole file, or raise FileNotFoundError."""

    def list(self, folder: str) -> list[str]:
        """Return the names of the files in a folder, sorted; [] if there is no such folder."""

    def exists(self, path: str) -> bool:
        """Return whether there is such a file."""

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the names of the files in a folder, with their sizes in bytes."""

    @property
    def lists_cheaply(self) -> bool:
        """Whether `list` costs no more than `exists`."""

    def delete(self, path: str) -> None:
        """Delete a file. A missing file is not an error."""

    def delete_all(self, paths: Iterable[str]) -> None:
        """Delete files in any order. Missing ones are not an error."""

    def local_path(self, path: str) -> str | None:
        """Return the path under which this machine can open the file or a copy of it; None if it cannot.

        Only for files that never change. Raises FileNotFoundError if there is no such file; a local disk need not.
        """

    def discard_copy(self, path: str) -> bool:
        """Delete this machine's copy of a file, because it is damaged; False if `local_path` is the file itself."""

    def forget_copies(self, folder: str, alive: Collection[str], before: tuple[int, int]) -> None:
        """Delete this machine's copies of dead state runs; see `RunCache.forget_dead`."""

    def location_of(self, path: str) -> str:
        """Return the text from which `open_folder` finds this folder in another process."""

    def check_guarantees(self) -> None:
        """Try out whether the storage can do what a checkpoint needs. For a new checkpoint.

        Raises:
            OSError, UsageError: it cannot.
        """

    def make_private(self, folder: str) -> None:
        """Create the folder if it is missing. Only the owner may read or change a new or empty folder.

        Raises:
            PermissionError: the folder contains files and others may write to it.
        """

    def delete_leftovers(self, folder: str, older_than_s: float) -> int:
        """Delete partly written files of at least this age; return their number."""


class LocalFileSystem:
    """A `FileSystem` on a POSIX file system with hard links: a local disk, or NFS.

    Files have mode 0600, new folders 0700. A writer that is killed during a create leaves a file named `.tmp-…`. It
    is never listed or read. All instances are equal, because they are the same storage.
    """

    def __eq__(self, other: object) -> bool:
        # The cache of runs uses file systems as keys, and every task makes its own instance.
        return type(other) is LocalFileSystem

    def __hash__(self) -> int:
        return hash(LocalFileSystem)

    def create_if_absent(self, path: str, data: bytes) -> bool:
        folder = os.path.dirname(path)
        _make_folders(folder)
        # Write under a temporary name and link it: O_EXCL on the final name would make a partly written file visible.
        temporary = os.path.join(folder, _TEMPORARY + uuid.uuid4().hex)
        try:
            _write_new(temporary, io.BytesIO(data))
            created = _link(temporary, path)
        finally:
            with contextlib.suppress(OSError):  # delete_leftovers deletes it later
                os.unlink(temporary)
        # Sync the folder also if the file existed: the driver that created it may not have synced the folder yet.
        try:
            _sync_folder(folder)
        except OSError as error:
            raise OutcomeUnknownError(error.errno, f"{path} may not be durable: {error.strerror}") from error
        return created

    def may_reappear(self, path: str) -> bool:
        return False

    def write(self, path: str, data: bytes) -> None:
        self._write(path, io.BytesIO(data))

    def write_file(self, path: str, local: str) -> None:
        with open(local, "rb") as content:
            self._write(path, content)

    def _write(self, path: str, content: IO[bytes]) -> None:
        folder = os.path.dirname(path)
        _make_folders(folder)
        _write_new(path, content)
        _sync_folder(folder)

    def read(self, path: str) -> bytes:
        return Path(path).read_bytes()

    def list(self, folder: str) -> list[str]:
        try:
            with os.scandir(folder) as entries:
                return sorted(e.name for e in entries if not e.name.startswith(_TEMPORARY))
        except FileNotFoundError:
            return []

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def sizes(self, folder: str) -> dict[str, int]:
        return {name: os.stat(f"{folder}/{name}").st_size for name in self.list(folder)}

    @property
    def lists_cheaply(self) -> bool:
        return True

    def delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def delete_all(self, paths: Iterable[str]) -> None:
        for path in paths:
            self.delete(path)

    def local_path(self, path: str) -> str | None:
        return path

    def discard_copy(self, path: str) -> bool:
        return False

    def forget_copies(self, folder: str, alive: Collection[str], before: tuple[int, int]) -> None:
        """There are no copies."""

    def location_of(self, path: str) -> str:
        return path

    def check_guarantees(self) -> None:
        """Nothing to try: the first `create_if_absent` fails if the file system has no hard links."""

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
    """Return when the entry was last written; a file that was just deleted counts as new."""
    try:
        return entry.stat().st_mtime
    except FileNotFoundError:
        return time.time()


def _write_new(path: str, content: IO[bytes]) -> None:
    """Write and fsync a file that must not exist; delete it again if that fails (for example: the disk is full)."""
    try:
        # O_EXCL: two attempts must never write one file. If a name occurs twice, this is an error and not a file.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
        try:
            with open(descriptor, "wb") as file:
                shutil.copyfileobj(content, file, _COPY_BYTES)
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
            "folder; the pipeline continues from its checkpoint",
        ) from error


def _link(temporary: str, path: str) -> bool:
    """Give the file its name unless the name is taken.

    On NFS an answer can be lost. The request is repeated and then fails, although the first one succeeded. So the
    number of links of the file decides (open(2), O_EXCL).
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
    # Two tasks may create the same folder at the same time.
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, PRIVATE_FOLDER)
    _sync_folder(parent or ".")


def _sync_folder(folder: str) -> None:
    # POSIX makes a new directory entry durable only with an fsync of the directory itself.
    descriptor = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
