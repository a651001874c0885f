"""The checkpoint folder: its content, and how it is created, opened and refused.

    <folder>/            0700 on a disk; on an object store a prefix
      FORMAT             version, job, key groups, time of creation (JSON); written once
      records/           000000000017.record, one per commit; the highest number is the current one
      state/             state runs, immutable (see `protocol.names`)
      side/              side files: lists of a state that are too long for its record, immutable
      requests/          requests to the driver (see `requests`)
      drivers/           notes of the drivers (see `drivers`)

`docs/protocol.md` says what may be deleted by hand (no file that the last record names).
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from penstock import __version__
from penstock.compat import UTC
from penstock.folders import check_creatable
from penstock.object_stores.errors import StoreError
from penstock.runner.protocol.coordinator import wall_clock_us
from penstock.runner.protocol.errors import CheckpointError
from penstock.runner.protocol.exactly_once_put import create_exactly_once
from penstock.runner.protocol.record import CommitRecord, StateRun
from penstock.runner.protocol.record_codec import decode_record, record_digest, with_side_file
from penstock.runner.protocol.record_store import StoredRecord
from penstock.runner.store.filesystem import FileSystem, LocalFileSystem
from penstock.runner.store.folders import open_folder
from penstock.runner.store.keys import KEY_GROUPS
from penstock.runner.store.runs import check_size, run_missing

VERSION = 3
"""Version of the folder's layout and of what state runs hold; any other is refused.

2: elements keep microseconds (`harness/elements.py`). 3: windows know the shape of their trigger (`windows/panes.py`).
When you raise it, replace the golden checkpoints (`tests/golden/checkpoints/record.py`).
"""

MAX_KEY_GROUPS = 32768
"""A run key has two bytes for the key group, and its bounds need one value above the highest."""
LEFTOVER_AGE_S = 3600.0
"""Age at which a partly written file is deleted. No writer takes that long."""

_RECORD = re.compile(r"(\d{12,})\.record")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One job's folder, opened: a `RecordStore` with the commit records, and the folder of the job's state runs.

    `folder` is a path, or a URL without options.
    """

    folder: str
    job: str
    key_groups: int
    filesystem: FileSystem

    @classmethod
    def open(
        cls,
        folder: str,
        *,
        fresh: bool = False,
        key_groups: int | None = None,
        filesystem: FileSystem | None = None,
        clock: Callable[[], int] = wall_clock_us,
        nonces: Callable[[], str] = lambda: uuid.uuid4().hex[:8],
        pause: Callable[[float], None] = time.sleep,
    ) -> Checkpoint:
        """Open the checkpoint in `folder`, or create one if the folder is empty or missing.

        `folder` is a path, or a URL of an object store with its options; with `filesystem` it is a path of that.
        `key_groups` is for a new checkpoint (None: 128); an existing one keeps its number. With `fresh` the folder
        must be empty or missing. Two drivers may open one checkpoint; `Coordinator` decides between them.

        Raises:
            CheckpointError: the folder cannot be used as asked; the message says what to do.
        """
        storage, folder = (filesystem, folder) if filesystem else open_folder(folder)
        # The time comes first, so that names of jobs sort by creation time (see `penstock.attempt.Attempt`).
        job = f"{datetime.fromtimestamp(clock() // 10**6, UTC):%Y%m%dT%H%M%S}-{nonces()}"
        new = _new_format(job, key_groups, clock())
        try:
            storage.make_private(folder)
            format_file = _read_or_create(storage, folder, fresh, new, pause)
        except StoreError as error:
            raise CheckpointError(f"cannot use {folder} for checkpoints: {error}") from error
        except OSError as error:
            raise _cannot_use(folder, error) from error
        return _open_format(folder, format_file, key_groups, storage)

    @classmethod
    def existing(cls, folder: str) -> Checkpoint:
        """Open the checkpoint in `folder`, and create nothing.

        Raises:
            CheckpointError: there is none, or it cannot be read.
        """
        storage, path = open_folder(folder)
        try:
            data = storage.read(f"{path}/FORMAT")
        except FileNotFoundError:
            raise CheckpointError(
                f"there is no checkpoint in {path}: it has no FORMAT file. Give the folder that the "
                "pipeline has as its checkpoint_dir"
            ) from None
        except (OSError, StoreError) as error:
            raise CheckpointError(f"cannot read the checkpoint in {path}: {error}") from error
        return _open_format(path, data, None, storage)

    @classmethod
    def below(cls, folder: str) -> list[str]:
        """Return `folder` if it has a checkpoint, otherwise the folders directly in it that have one, sorted.

        Raises:
            OSError, StoreError: the folder cannot be listed.
        """
        storage, path = open_folder(folder)
        names = storage.list(path)
        if "FORMAT" in names:
            return [storage.location_of(path)]
        children = [f"{path.rstrip('/')}/{name}" for name in names]
        return [storage.location_of(each) for each in children if storage.exists(f"{each}/FORMAT")]

    @classmethod
    def is_empty(cls, folder: str) -> bool:
        """Return whether there is nothing in a folder, or no such folder. Changes nothing.

        Raises:
            CheckpointError: the folder cannot be listed.
        """
        storage, path = open_folder(folder)
        try:
            return not storage.list(path)
        except OSError as error:
            raise _cannot_use(path, error) from error

    @classmethod
    def check_new(cls, folder: str) -> None:
        """Check that a checkpoint can be created in an empty or missing folder. No folder is left behind.

        Raises:
            CheckpointError: it cannot; the message says what to do.
        """
        storage, path = open_folder(folder)
        try:
            if isinstance(storage, LocalFileSystem):
                check_creatable(path)
            storage.check_guarantees()
        except StoreError as error:
            raise CheckpointError(f"cannot use {path} for checkpoints: {error}") from error
        except OSError as error:
            raise _cannot_use(path, error) from error

    @property
    def state_folder(self) -> str:
        """The folder of the job's state runs."""
        return f"{self.folder}/state"

    @property
    def state_location(self) -> str:
        """The folder of the job's state runs as a text from which other processes open it (`open_folder`)."""
        return self.filesystem.location_of(self.state_folder)

    @property
    def staging_location(self) -> str:
        """The folder that sinks are offered for staged files, as a text from which other processes open it."""
        return self.filesystem.location_of(f"{self.folder}/staging")

    @property
    def _records(self) -> str:
        return f"{self.folder}/records"

    @property
    def _side_files(self) -> str:
        return f"{self.folder}/side"

    def _record_path(self, number: int) -> str:
        return f"{self._records}/{number:012d}.record"

    def last_record(self) -> CommitRecord | None:
        """Return the last commit record, None in a new checkpoint. Reading changes nothing."""
        last = self.last()
        return last.record if last else None

    def last(self) -> StoredRecord | None:
        """Return the record with the highest number and its digest, None in a new checkpoint.

        Raises:
            CheckpointError: the record cannot be read, or the folder has disappeared since it was opened.
        """
        while numbers := self.record_numbers():
            path = self._record_path(numbers[-1])
            try:
                data = self.filesystem.read(path)
            except FileNotFoundError:  # a driver with newer records has deleted it: list again
                continue
            stored = StoredRecord(decode_record(data, source=path), record_digest(data, source=path))
            try:
                return StoredRecord(self.with_lists(stored.record), stored.digest)
            except FileNotFoundError as error:
                # A driver with a newer record has deleted the side file: list again.
                if self.record_above(stored.record.number, stored) is None:
                    raise CheckpointError(
                        f"the side file {error} of record {stored.record.number} is missing. Restore the checkpoint "
                        "folder from a backup, or start with an empty --checkpoint_dir"
                    ) from error
        # There are no records. A new checkpoint still has its FORMAT file; a folder that is not mounted is empty.
        if "FORMAT" not in self.filesystem.list(self.folder):
            raise CheckpointError(
                f"the checkpoint {self.folder} no longer exists: it was moved or emptied, or is not mounted. Put it "
                "back and start the pipeline again: it continues from there"
            )
        return None

    def with_lists(self, record: CommitRecord) -> CommitRecord:
        """Return a decoded record with the lists of its side file, if it has one.

        Raises:
            FileNotFoundError: the side file is missing, because the record was replaced.
            CheckpointError: the side file is damaged.
        """
        if record.side_file is None:
            return record
        path = f"{self._side_files}/{record.side_file.name}"
        return with_side_file(record, self.filesystem.read(path), source=path)

    def record_numbers(self) -> list[int]:
        """Return the numbers of all records, ascending."""
        matches = (_RECORD.fullmatch(name) for name in self.filesystem.list(self._records))
        return sorted(int(match[1]) for match in matches if match)

    @property
    def lists_cheaply(self) -> bool:
        """Whether `record_numbers` costs no more than a look at one file."""
        return self.filesystem.lists_cheaply

    def record_above(self, number: int, known: StoredRecord | None) -> int | None:
        """Return the number of a record above `number`, None if there is none; see `RecordStore`.

        On storage without cheap listings two requests decide it. First: does `number + 1` exist? Second: does `known`
        still exist, unchanged? If both answers say "no newer driver", this is proof: record numbers have no gaps, so if
        there ever was a record above, there was `number + 1`. If that one is missing now, a sweep has deleted it. A
        sweep deletes the lowest record first, so it had deleted `known` before. Therefore the second request must not
        start before the first one has ended.
        """
        if (
            self.filesystem.lists_cheaply
            or known is None
            or self.filesystem.may_reappear(self._record_path(known.record.number))
        ):
            return self._highest_above(number)
        if self.filesystem.exists(self._record_path(number + 1)):
            return number + 1
        # Compare the bytes too: a driver that was paused for long may have created this number again.
        if self._is_unchanged(known):
            return None
        if (highest := self._highest_above(number)) is None:
            raise CheckpointError(
                f"{self.folder} no longer contains record {known.record.number}: the checkpoint was emptied or moved. "
                "Put it back and start the pipeline again: it continues from there"
            )
        return highest

    def _highest_above(self, number: int) -> int | None:
        return max((each for each in self.record_numbers() if each > number), default=None)

    def _is_unchanged(self, known: StoredRecord) -> bool:
        try:
            return record_digest(self.read_record(known.record.number)) == known.digest
        except FileNotFoundError:
            return False

    def create_record(self, number: int, data: bytes) -> bool:
        """Create record `number` if it is absent; see `FileSystem.create_if_absent`."""
        return self.filesystem.create_if_absent(self._record_path(number), data)

    def read_record(self, number: int) -> bytes:
        """Return a record's bytes, or raise FileNotFoundError."""
        return self.filesystem.read(self._record_path(number))

    def delete_record(self, number: int) -> None:
        """Delete a record. A missing record is not an error."""
        self.filesystem.delete(self._record_path(number))

    def run_names(self) -> list[str]:
        """Return the names of all state runs."""
        return self.filesystem.list(self.state_folder)

    def check_runs(self, runs: Iterable[StateRun]) -> None:
        """Check that state runs exist and have their sizes; their content is checked when they are opened.

        A run may be opened only hours after the start, when a timer fires. A pipeline that cannot finish should not
        publish until then.

        Raises:
            CheckpointError: a run is missing or has another size.
        """
        sizes = self.filesystem.sizes(self.state_folder)
        for run in runs:
            path = f"{self.state_folder}/{run.name}"
            if run.name not in sizes:
                raise run_missing(path, run)
            check_size(path, run, sizes[run.name])

    def delete_runs(self, names: Sequence[str]) -> None:
        """Delete state runs, in any order. Missing files are not an error."""
        self.filesystem.delete_all(f"{self.state_folder}/{name}" for name in names)

    def write_side_file(self, name: str, data: bytes) -> None:
        """Write a side file, durably, under a name that was never used."""
        self.filesystem.write(f"{self._side_files}/{name}", data)

    def side_file_names(self) -> list[str]:
        """Return the names of all side files."""
        return self.filesystem.list(self._side_files)

    def delete_side_files(self, names: Sequence[str]) -> None:
        """Delete side files, in any order. Missing files are not an error."""
        self.filesystem.delete_all(f"{self._side_files}/{name}" for name in names)

    def delete_leftovers(self) -> int:
        """Delete partly written files that are older than an hour; return their number."""
        # Only `create_if_absent` leaves them, and it writes only FORMAT and records. State runs and side files are
        # written under their names, and the sweep deletes those that no record names.
        folders = (self.folder, self._records)
        return sum(self.filesystem.delete_leftovers(folder, LEFTOVER_AGE_S) for folder in folders)


def _cannot_use(folder: str, error: OSError) -> CheckpointError:
    return CheckpointError(
        f"cannot use {folder} for checkpoints: {error}. Give --checkpoint_dir a folder that nothing else uses and this "
        "user can write to, on a file system with hard links"
    )


def _new_format(job: str, key_groups: int | None, now_us: int) -> bytes:
    groups = KEY_GROUPS if key_groups is None else key_groups
    if not 1 <= groups <= MAX_KEY_GROUPS:
        raise CheckpointError(f"key_groups is {groups}; a job has 1 to {MAX_KEY_GROUPS}")
    content = {
        "version": VERSION,
        "job": job,
        "key_groups": groups,
        "created_us": now_us,
        # Used only in the message of a version that cannot read the folder.
        "written_by": __version__,
    }
    return json.dumps({"penstock-checkpoint": content}, sort_keys=True).encode("ascii") + b"\n"


def _read_or_create(
    storage: FileSystem, folder: str, fresh: bool, new: bytes, pause: Callable[[float], None]
) -> bytes:
    names = storage.list(folder)
    if fresh and names:
        raise CheckpointError(
            f"{folder} is not empty, and --fresh never overwrites. Leave --fresh out to continue from the "
            "checkpoint, or give --checkpoint_dir another folder"
        )
    if names and "FORMAT" not in names:
        raise CheckpointError(
            f"{folder} is not a checkpoint: it contains {len(names)} files or folders, but no FORMAT file. Give "
            "--checkpoint_dir an empty folder, or the checkpoint folder of a pipeline"
        )
    # Two drivers may start in an empty folder at once. One creates the file; the other reads its job name.
    path = f"{folder}/FORMAT"
    # Before the first file: on a store that ignores conditions, both drivers would create one.
    if not names:
        storage.check_guarantees()
    if not names and create_exactly_once(
        lambda: storage.create_if_absent(path, new), lambda: storage.read(path), new, path, pause
    ):
        return new
    if fresh:
        raise CheckpointError(
            f"another driver has just created a checkpoint in {folder}; start without --fresh to take it over"
        )
    return storage.read(path)


def _version_remedy(version: int, writer: str) -> str:
    if version > VERSION:
        return f"Install penstock {writer or 'of the version that wrote it'} or a newer version"
    # A drain emits what the state holds and publishes it. A drained pipeline needs its old checkpoint only to know
    # where its source continues.
    wanted = f"penstock {writer}" if writer else "the version of penstock that wrote it"
    return (
        f"Drain the pipeline with {wanted}, then start it with another --checkpoint_dir and with a source that begins "
        "where the drain ended"
    )


def _open_format(folder: str, data: bytes, key_groups: int | None, storage: FileSystem) -> Checkpoint:
    try:
        content = json.loads(data)["penstock-checkpoint"]
        version, job, groups = int(content["version"]), str(content["job"]), int(content["key_groups"])
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{folder}/FORMAT was not written by penstock. Restore it from a backup, or give another --checkpoint_dir"
        ) from error
    if version != VERSION:
        raise CheckpointError(
            f"{folder} has layout version {version}, and penstock {__version__} reads version {VERSION}. "
            f"{_version_remedy(version, str(content.get('written_by', '')))}"
        )
    # The number decides in which group the state of each key is.
    if key_groups not in (None, groups):
        raise CheckpointError(
            f"the checkpoint in {folder} was created with {groups} key groups, which cannot change to {key_groups}; "
            "leave the setting out, or use an empty folder"
        )
    return Checkpoint(folder, job, groups, storage)
