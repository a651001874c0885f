"""The output folder on a local file system: the only file of the sink that touches one.

This is the seam for object stores: another kind of output has these same methods. `stage`, `keep_staged`,
`publish`, `keep_published` and `clean_up` are what the DoFns ask for, and each says what it survives.

A rename is what makes publishing exact: a consumer who takes a published file away never gets it again,
because the staged file is gone too. (A hard link or a copy leaves the staged file behind for a moment, and a
crash in that moment publishes twice: so neither is used.)
"""

from __future__ import annotations

import errno
import os
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from penstock.errors import ServiceError
from penstock.io.files.naming import STAGING, made_in, since_name, staged_in, staging_folder
from penstock.io.files.publication import Publication

_REMEDY = {
    errno.ENOSPC: "Free space on that file system; the pipeline goes on from its checkpoint",
    errno.EDQUOT: "Raise the quota or free space; the pipeline goes on from its checkpoint",
    errno.EFBIG: "Lower roll_bytes, or raise the limit on file sizes (ulimit -f)",
    errno.EACCES: "Give the user that runs the pipeline write access, or choose another output",
    errno.EPERM: "Give the user that runs the pipeline write access, or choose another output",
    errno.EROFS: "Remount the file system for writing, or choose another output",
    errno.ENOTDIR: "Choose an output that is a folder, below folders",
    errno.ENOENT: "Mount it if it is not mounted, or choose an output where a folder can be made",
    errno.EEXIST: "Something else has that name: move it away, or choose another output",
    errno.ENAMETOOLONG: "Choose a shorter output path",
    errno.EXDEV: "A folder below the output is on another file system, which a rename cannot cross: "
    "mount the output as a whole",
}


class OutputError(ServiceError):
    """The output folder refused something; the message says what, where and what to do about it."""


@contextmanager
def _explained(doing: str, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        remedy = _REMEDY.get(
            error.errno or 0, "Repair the output folder; the pipeline goes on from its checkpoint"
        )
        raise OutputError(f"cannot {doing} {path}: {os.strerror(error.errno or 0)}. {remedy}.") from error


@dataclass(frozen=True, slots=True)
class Staged:
    """What was staged: bytes, the CRC-32 of all of them, and newlines."""

    length: int
    crc32: int
    lines: int


@dataclass(frozen=True, slots=True)
class LocalFolder:
    """An output folder, by its absolute path. Names given to the methods are relative to it."""

    path: str

    def check_location(self) -> None:
        """Check that the folder is there, or can be created, and may be written; create and change nothing.

        A full disk or a file system that takes no folders is found by `check_writable` only.

        Raises:
            OutputError: a part of the path is a file, or the nearest existing folder may not be written.
        """
        with _explained("write to the output", self.path):
            existing = self.path
            while not os.path.lexists(existing):
                existing = os.path.dirname(existing)
            if not os.path.isdir(existing):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), existing)
            if not os.access(existing, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), existing)

    def check_writable(self) -> None:
        """Create the folder and its staging folder if need be, and write a file there for a moment.

        Raises:
            OutputError: that is not possible.
        """
        with _explained("write to the output", self.path):
            _make_folder(self._absolute(STAGING))
            with tempfile.TemporaryFile(dir=self._absolute(STAGING)) as probe:
                probe.write(b"penstock")
                probe.flush()

    def stage(self, name: str, blocks: Iterable[bytes]) -> Staged:
        """Write one whole file of `blocks` under the staged `name` and wait until its content is durable.

        Its *name* is durable only after `keep_staged`. A failure leaves no file behind.

        Raises:
            OutputError: it could not be written, or the name is taken.
        """
        target = self._absolute(name)
        with _explained("stage", target):
            _make_staging(os.path.dirname(target), since_name(name))
            descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            try:
                with open(descriptor, "wb") as file:
                    staged = _write(file.write, blocks)
                    file.flush()
                    os.fsync(descriptor)
            except BaseException:
                _unlink(target)
                raise
        return staged

    def keep_staged(self, names: Collection[str]) -> None:
        """Make the names of staged files durable: from here on they survive a loss of power."""
        self._sync(names)

    def publish(self, publication: Publication) -> bool:
        """Move a staged file to its final name; return whether this call moved it.

        False means that an earlier try moved it: also a final file that is not there any more was taken
        away by a consumer and does not come again. The move is durable only after `keep_published`, which
        is due whether this call moved the file or not.

        Raises:
            OutputError: the staged file has another length; the final name is taken by a file that we did
                not write; neither the file nor the job's staging folder is there; the move was refused.
        """
        staged, final = self._absolute(publication.staged), self._absolute(publication.final)
        with _explained("publish", final):
            while (length := _length(staged)) is not None:
                if length != publication.length:
                    raise OutputError(
                        f"the staged file {staged} has {length} bytes, its publication says "
                        f"{publication.length}: something else changed it. "
                        "Restore the file, then resume the pipeline."
                    )
                if _move(staged, final):
                    return True
        self._check_staging_is_there(publication)
        return False

    def keep_published(self, publications: Collection[Publication]) -> None:
        """Make the moves of `publications` durable, by whichever try they were made."""
        self._sync(name for each in publications for name in (each.staged, each.final))

    def clean_up(self, job: str, sink: str, upto: tuple[int, int], keep: Collection[str]) -> int:
        """Delete what `sink` staged in `job` at or before (generation, epoch) `upto`, but nothing in `keep`.

        Files of other sinks, other jobs and later epochs stay. Returns how many were deleted. The folders
        stay too: while a job lives they tell `publish` that this is the output which the job staged in, and
        a clean-up may run so late that it cannot know whether the job still has something to publish.
        """
        folder = staging_folder(job, sink)
        with _explained("clean up", self._absolute(folder)):
            doomed = [name for name in self._staged(folder) if name not in keep and _is_upto(name, upto)]
            for name in doomed:
                _unlink(self._absolute(name))
        return len(doomed)

    def _staged(self, folder: str) -> list[str]:
        try:
            return sorted(f"{folder}/{name}" for name in os.listdir(self._absolute(folder)))
        except FileNotFoundError:
            return []

    def _check_staging_is_there(self, publication: Publication) -> None:
        """A staged file that is missing was published, if it was staged in the folder that is there; else who knows.

        A folder that was made after the file was staged is another one: that of a moved output, or of a disk
        that is not mounted, in whose place a later epoch has staged something.
        """
        folder, staged = os.path.split(self._absolute(publication.staged))
        try:
            made, origin = made_in(os.listdir(folder)), staged_in(staged)
        except FileNotFoundError:
            fault = "is gone"
        else:
            if made is None or origin is None or made <= origin:
                return
            fault = "was made after the file was staged"
        raise OutputError(
            f"cannot tell whether {publication.final} was published: the staging folder {folder} {fault}. If the "
            "output's file system is not mounted, mount it, or put a folder that was moved back; then resume the "
            "pipeline."
        )

    def _sync(self, names: Iterable[str]) -> None:
        """fsync every folder above `names`: another process may have created one a moment ago."""
        with _explained("make names durable in", self.path):
            for folder in sorted({folder for name in names for folder in _folders_above(name)}):
                _sync_folder(self._absolute(folder))

    def _absolute(self, name: str) -> str:
        return os.path.join(self.path, name)


def _write(write: Callable[[bytes], object], blocks: Iterable[bytes]) -> Staged:
    length = crc = lines = 0
    for block in blocks:
        write(block)
        length, crc, lines = length + len(block), zlib.crc32(block, crc), lines + block.count(b"\n")
    return Staged(length, crc, lines)


def _move(staged: str, final: str) -> bool:
    """Rename `staged` to the new name `final`; False when a folder or `staged` itself went away meanwhile."""
    _make_folder(os.path.dirname(final))
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


def _length(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return None


def _make_folder(path: str, tries: int = 10) -> None:
    """Create a folder and those above it; the names that this call creates are durable when it returns.

    A consumer may remove an empty folder at any moment, so it is tried again; not for ever, because there are
    places where nothing can be created (/proc).
    """
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    _make_folder(parent)
    try:
        os.mkdir(path)
    except FileExistsError:
        if not os.path.isdir(path):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from None
    except FileNotFoundError:  # somebody removed the parent again
        if tries == 1:
            raise
        _make_folder(path, tries - 1)
        return
    _sync_folder(parent)


def _make_staging(path: str, since: str | None) -> None:
    """Create a staging folder, with a folder in it that says since when it is there."""
    if os.path.isdir(path):
        return
    _make_folder(os.path.dirname(path))
    with suppress(FileExistsError):  # another task is quicker, and says so itself
        os.mkdir(path)
        if since is not None:
            os.mkdir(os.path.join(path, since))
        _sync_folder(path)
    _make_folder(path)
    _sync_folder(os.path.dirname(path))


def _sync_folder(path: str) -> None:
    """fsync a folder; one that is gone has no names to keep."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _folders_above(name: str) -> Iterator[str]:
    """The folders that hold `name`, from its own up to the output (which is "")."""
    while name:
        name = os.path.dirname(name)
        yield name


def _is_upto(name: str, upto: tuple[int, int]) -> bool:
    origin = staged_in(name)
    return origin is not None and origin <= upto


def _unlink(path: str) -> None:
    with suppress(FileNotFoundError):  # another clean-up was first
        os.unlink(path)
