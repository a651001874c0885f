"""A folder of a local file system as a store. The only module of staging that touches a disk.

`move` is a rename, and that makes publishing exact: after a consumer has taken a published file away, nothing can
publish it again, because the staged file no longer exists either. A hard link or a copy would leave the staged file in
place for a moment, and a crash in that moment would publish the file twice. So neither is used.
"""

from __future__ import annotations

import errno
import os
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from penstock.io.staging.errors import OutputError
from penstock.io.staging.names import created_in, marker_name, staged_in

_REMEDY = {
    errno.ENOSPC: "Free space on that file system, then start the same command again",
    errno.EDQUOT: "Raise the quota or free space, then start the same command again",
    errno.EFBIG: "Lower roll_bytes, or raise the limit on file sizes (ulimit -f)",
    errno.EACCES: "Give the user that runs the pipeline write access, or choose another output",
    errno.EPERM: "Give the user that runs the pipeline write access, or choose another output",
    errno.EROFS: "Remount the file system for writing, or choose another output",
    errno.ENOTDIR: "Choose an output that is a folder, below folders",
    errno.ENOENT: "Mount it if it is not mounted, or choose an output where a folder can be created",
    errno.EEXIST: "Something else has that name: move it away, or choose another output",
    errno.ENAMETOOLONG: "Choose a shorter output path",
    errno.EXDEV: "A folder below the output is on another file system, which a rename cannot cross: "
    "mount the output as a whole",
}

_NOTE = b"Penstock created this folder. See docs/files.md before you delete it.\n"


@contextmanager
def _explained(doing: str, path: str) -> Iterator[None]:
    """Turn an error of the file system into an `OutputError` that says what to do."""
    try:
        yield
    except OSError as error:
        remedy = _REMEDY.get(error.errno or 0, "Repair the output folder, then start the same command again")
        raise OutputError(f"cannot {doing} {path}: {os.strerror(error.errno or 0)}. {remedy}.") from error


@dataclass(frozen=True, slots=True)
class LocalStore:
    """See `penstock.io.staging.store.FileStore`. `output` is an absolute path."""

    output: str

    @property
    def answers_late(self) -> bool:
        return False

    def check_location(self) -> None:
        """Check that the nearest folder that exists may be written. A full disk is found only by `check_writable`."""
        with _explained("write to the output", self.output):
            existing = self.output
            # Only a folder that exists can be asked for its rights.
            while not os.path.lexists(existing):
                existing = os.path.dirname(existing)
            if not os.path.isdir(existing):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), existing)
            if not os.access(existing, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), existing)

    def check_writable(self) -> None:
        with _explained("write to the output", self.output):
            _create_folder(self.output)
            # A real write: a full disk and a read-only mount are found by nothing else.
            with tempfile.TemporaryFile(dir=self.output) as probe:
                probe.write(b"penstock")
                probe.flush()

    def create(self, name: str, content: Iterable[bytes]) -> None:
        target = self._absolute(name)
        with _explained("stage", target):
            # Before the file: a folder without its marker could not prove later that a file was published.
            folder, marker = os.path.dirname(target), marker_name(name)
            if marker is None:
                _create_folder(folder)
            else:
                _create_staging_folder(folder, marker)
            _create_file(target, content)

    def sync(self, names: Iterable[str]) -> None:
        """fsync all folders above the names, up to the output: another process may just have created one of them."""
        with _explained("make names durable in", self.output):
            # Sorted, so that parents come first.
            for folder in sorted({folder for name in names for folder in _folders_above(name)}):
                _sync_folder(self._absolute(folder))

    def read(self, name: str) -> bytes:
        path = self._absolute(name)
        with _explained("read", path), open(path, "rb") as file:
            return file.read()

    def length(self, name: str) -> int | None:
        path = self._absolute(name)
        with _explained("read", path):
            try:
                return os.stat(path).st_size
            except FileNotFoundError:
                return None

    def move(self, source: str, target: str) -> bool:
        staged, final = self._absolute(source), self._absolute(target)
        with _explained("publish", final):
            _create_folder(os.path.dirname(final))
            # os.rename silently replaces an existing target, and Python has no rename that does not. The attempt is in
            # the name, so only a file of another program can have it. The order of the two calls matters: if another
            # driver publishes the same file between them, `staged` is gone, and the target is no foreign file.
            if os.path.lexists(final) and os.path.lexists(staged):
                raise OutputError(
                    f"will not overwrite {final}, which this pipeline did not write: "
                    "move it away, then resume the pipeline."
                )
            try:
                os.rename(staged, final)
            except FileNotFoundError:
                return False
            return True

    def check_moved(self, source: str, target: str) -> None:
        """Raise unless the staging folder exists and is older than the staged file.

        A folder that was created after the file was staged is another folder: the output was moved, or its disk is
        not mounted, and a later epoch has staged something in its place.
        """
        folder, staged = os.path.split(self._absolute(source))
        with _explained("read", folder):
            try:
                # The marker names the epoch that created the folder, the staged file the epoch that staged it.
                created, origin = created_in(os.listdir(folder)), staged_in(staged)
            except FileNotFoundError:
                fault = "is gone"
            else:
                if created is not None and origin is not None and created <= origin:
                    return
                fault = "was created after the file was staged"
        raise OutputError(
            f"cannot tell whether {target} was published: the staging folder {folder} {fault}. If the output's "
            "file system is not mounted, mount it; if the folder was moved, move it back; if it was deleted, see "
            "'A deleted staging folder' in docs/files.md. Then resume the pipeline."
        )

    def delete(self, names: Iterable[str]) -> None:
        with _explained("clean up", self.output):
            for name in names:
                _unlink(self._absolute(name))

    def names_in(self, folder: str) -> list[str]:
        path = self._absolute(folder)
        with _explained("list", path):
            try:
                return sorted(f"{folder}/{name}" for name in os.listdir(path))
            except FileNotFoundError:
                return []

    def _absolute(self, name: str) -> str:
        return os.path.join(self.output, name)


def _create_folder(path: str, tries: int = 10) -> None:
    """Create a folder and those above it. The names that this call creates are durable when it returns.

    A consumer may remove an empty folder at any moment, so the creation is tried again. The tries are limited, because
    in some places (/proc) nothing can be created.
    """
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    _create_folder(parent)
    try:
        os.mkdir(path)
    except FileExistsError:
        if not os.path.isdir(path):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from None
    except FileNotFoundError:  # a consumer removed the parent
        if tries == 1:
            raise
        _create_folder(path, tries - 1)
        return
    _sync_folder(parent)


def _create_file(path: str, content: Iterable[bytes]) -> None:
    """Create a file with durable content; a failure leaves no file."""
    # O_EXCL: no other attempt has this name, so an existing file means a broken rule. 0o666 as in open(): the umask
    # decides who may read published files.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    # fsync before the name is durable: a name without content would be published empty.
    try:
        with open(descriptor, "wb") as file:
            for part in content:
                file.write(part)
            file.flush()
            os.fsync(descriptor)
    except BaseException:
        _unlink(path)
        raise


def _create_staging_folder(path: str, marker: str) -> None:
    """Create a staging folder together with its marker, which tells which epoch created it.

    Both appear by one rename, so a crash leaves no staging folder without a marker. The marker is a file with content,
    because consumers may remove empty folders, and some remove empty files with them. A rename also replaces an empty
    folder, so a folder in which another task is about to create its file must have a marker.
    """
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    _create_folder(parent)
    # Under another name first: the rename makes folder and marker appear together.
    new = f"{path}.new-{uuid.uuid4().hex}"
    os.mkdir(new)
    _create_file(os.path.join(new, marker), [_NOTE])
    _sync_folder(new)
    try:
        os.rename(new, path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        # Another task was first; its folder has its marker.
        for name in os.listdir(new):
            os.unlink(os.path.join(new, name))
        os.rmdir(new)
    _sync_folder(parent)


def _sync_folder(path: str) -> None:
    """fsync a folder. A folder that was removed has no names to keep."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _folders_above(name: str) -> Iterator[str]:
    """Yield the folders that contain `name`, from its own up to the output, which is ""."""
    while name:
        name = os.path.dirname(name)
        yield name


def _unlink(path: str) -> None:
    with suppress(FileNotFoundError):  # another clean-up deleted it first
        os.unlink(path)
