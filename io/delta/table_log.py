"""The log of a Delta table: its data files at a version, and the entry of a commit. Needs pyarrow.

delta-rs 1.6 tells no vector of a data file, and writes no entry with one, so the sink reads and writes the log itself
where a table has deletion vectors. Source: Delta's protocol, "Delta Log Entries", "Checkpoints" and "Action
Reconciliation".
"""

from __future__ import annotations

import io
import re
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow.parquet

from penstock.errors import UsageError
from penstock.io.delta.deletion_vectors import Vector
from penstock.io.delta.folder import DeltaFolder
from penstock.io.staging.delivery import TargetUnavailableError
from penstock.object_stores.store import in_parallel

_LOG = "_delta_log"
_LAST_CHECKPOINT = f"{_LOG}/_last_checkpoint"
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(\.\d{10}\.\d{10})?\.parquet")

Key = tuple[str, str]
"""A data file with its vector: path, and the vector's id or "". An entry that removes a file names both."""


class AddedFile(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An `add` of the log. `path` is relative to the table, with the escapes of a URL; times are in milliseconds."""

    path: str
    partition_values: dict[str, str | None]
    size: int
    modification_time: int
    data_change: bool
    stats: str | None = None
    tags: dict[str, str | None] | None = None
    deletion_vector: Vector | None = None

    @property
    def key(self) -> Key:
        return self.path, "" if self.deletion_vector is None else self.deletion_vector.id


class RemovedFile(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A `remove` of the log."""

    path: str
    data_change: bool
    deletion_timestamp: int | None = None
    extended_file_metadata: bool | None = None
    partition_values: dict[str, str | None] | None = None
    size: int | None = None
    deletion_vector: Vector | None = None

    @property
    def key(self) -> Key:
        return self.path, "" if self.deletion_vector is None else self.deletion_vector.id

    @classmethod
    def of(cls, file: AddedFile, now_ms: int, *, data_change: bool) -> RemovedFile:
        values, vector = file.partition_values, file.deletion_vector
        return cls(file.path, data_change, now_ms, True, values, file.size, vector)


class Action(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A line of the log, which has one of these. Lines of other kinds have none."""

    add: AddedFile | None = None
    remove: RemovedFile | None = None
    txn: dict[str, Any] | None = None
    protocol: dict[str, Any] | None = None
    meta_data: dict[str, Any] | None = None
    commit_info: dict[str, Any] | None = None


_decode = msgspec.json.Decoder(Action).decode
_encode = msgspec.json.Encoder().encode


def encoded(actions: Iterable[Action]) -> bytes:
    """Return the content of an entry of the log."""
    return b"\n".join(map(_encode, actions)) + b"\n"


def decoded(content: bytes) -> list[Action]:
    """Return the actions of an entry of the log."""
    return [_decode(line) for line in content.splitlines() if line.strip()]


def entry_name(version: int) -> str:
    """Return the name of the entry of a version, relative to the table."""
    return f"{_LOG}/{version:020d}.json"


def put_commit(
    folder: DeltaFolder, version: int, operation: str, actions: Sequence[Action], info: Mapping[str, Any]
) -> bool:
    """Write the entry of a version, with more `info` about the commit; False: another writer has made this version."""
    found = {
        "timestamp": time.time_ns() // 1_000_000,
        "operation": operation,
        "operationParameters": {},
        "engineInfo": "penstock",
        "txnId": str(uuid.uuid4()),
        **info,
    }
    return folder.put_entry(entry_name(version), encoded([Action(commit_info=found), *actions]))


def transactions_of(versions: Mapping[str, int]) -> list[Action]:
    """Return application transactions by their names as actions of a commit."""
    now_ms = time.time_ns() // 1_000_000
    return [
        Action(txn={"appId": name, "version": version, "lastUpdated": now_ms})
        for name, version in versions.items()
    ]


@dataclass(frozen=True, slots=True)
class LogState:
    """The data files of a table at a version. `table` is its id, which another table in the same folder has not."""

    table: str
    version: int
    files: Mapping[Key, AddedFile] = field(default_factory=dict)

    def after(self, entries: Sequence[bytes]) -> LogState:
        """Return the state after the entries of the next versions."""
        files = dict(self.files)
        for entry in entries:
            actions = decoded(entry)
            # The order within an entry means nothing. A file with another vector is removed and added in one entry.
            for action in actions:
                if action.remove is not None:
                    files.pop(action.remove.key, None)
            for action in actions:
                if action.add is not None:
                    files[action.add.key] = action.add
        return LogState(self.table, self.version + len(entries), files)


_known: dict[str, LogState] = {}
"""By URI: so an epoch reads only the entries of the log since the last epoch. An entry for each table of the driver."""


def files_at(uri: str, folder: DeltaFolder, table: str, version: int) -> LogState:
    """Return the data files of a table at a version, which is one of its newest.

    Raises:
        TargetUnavailableError: other writers have removed entries of the log in the meantime.
    """
    state = _known.get(uri)
    if state is None or state.table != table or state.version > version:
        state = _at_checkpoint(folder, table, version)
    try:
        found = _forward(folder, state, version)
    except FileNotFoundError:
        # Entries since the state that this process knows were cleaned up after a checkpoint.
        found = _forward_again(uri, folder, table, version)
    _known[uri] = found
    return found


def state_at(folder: DeltaFolder, table: str, version: int) -> LogState:
    """Return the data files of a table at any version that its log still has.

    Raises:
        UsageError: it has not.
    """
    checkpoints = [found for name in folder.log_names() if (found := _CHECKPOINT.fullmatch(name))]
    newest = max((int(each[1]) for each in checkpoints if int(each[1]) <= version), default=-1)
    # A large checkpoint has several parts.
    names = sorted(f"{_LOG}/{each[0]}" for each in checkpoints if int(each[1]) == newest)
    try:
        state = _with_files(table, newest, in_parallel(folder.read_entry, names))
        return _forward(folder, state, version)
    except FileNotFoundError:
        raise UsageError(
            f"its log does not have version {version} any more (delta.logRetentionDuration). Choose a later time"
        ) from None


def live_and_removed(folder: DeltaFolder, table: str, version: int) -> tuple[list[str], list[RemovedFile]]:
    """Return the paths of the data files at a version, one of the newest, and the removed files that the log has.

    Raises:
        TargetUnavailableError: other writers have removed entries of the log in the meantime.
    """
    state, removed = _at_checkpoint(folder, table, version), []
    if state.version >= 0:
        removed += [file for content in checkpoint_contents(folder)[1] for file in _removed_in(content)]
    names = [entry_name(number) for number in range(state.version + 1, version + 1)]
    try:
        entries = in_parallel(folder.read_entry, names)
    except FileNotFoundError:
        raise TargetUnavailableError("the log of the table was cleaned up while it was read") from None
    removed += [action.remove for entry in entries for action in decoded(entry) if action.remove is not None]
    return [path for path, _ in state.after(entries).files], removed


def _forward_again(uri: str, folder: DeltaFolder, table: str, version: int) -> LogState:
    try:
        return _forward(folder, _at_checkpoint(folder, table, version), version)
    except FileNotFoundError:
        raise TargetUnavailableError(f"the log of {uri} was cleaned up while it was read") from None


def _forward(folder: DeltaFolder, state: LogState, version: int) -> LogState:
    names = [entry_name(number) for number in range(state.version + 1, version + 1)]
    return state.after(in_parallel(folder.read_entry, names))


def _at_checkpoint(folder: DeltaFolder, table: str, version: int) -> LogState:
    """Return the state at the newest checkpoint that is not newer than a version; before version 0 without one."""
    try:
        number, contents = checkpoint_contents(folder)
    except FileNotFoundError:
        return LogState(table, -1)
    # Another writer has committed since the table was opened, so the commit would fail anyway.
    if number > version:
        raise TargetUnavailableError("another writer has made a checkpoint of the table")
    return _with_files(table, number, contents)


def _with_files(table: str, version: int, checkpoint: Sequence[bytes]) -> LogState:
    added = [file for content in checkpoint for file in _added_in(content)]
    return LogState(table, version, {file.key: file for file in added})


def checkpoint_contents(folder: DeltaFolder) -> tuple[int, list[bytes]]:
    """Return the version of the newest checkpoint, and its files.

    Raises:
        FileNotFoundError: there is none.
    """
    last = msgspec.json.decode(folder.read_entry(_LAST_CHECKPOINT))
    number, parts = last["version"], last.get("parts")
    stem = f"{_LOG}/{number:020d}.checkpoint"
    names = [f"{stem}.parquet"]
    if parts:
        names = [f"{stem}.{part:010d}.{parts:010d}.parquet" for part in range(1, parts + 1)]
    return number, in_parallel(folder.read_entry, names)


def _added_in(checkpoint: bytes) -> list[AddedFile]:
    rows = pyarrow.parquet.ParquetFile(io.BytesIO(checkpoint)).read(columns=["add"]).column("add").drop_null()
    return [_added(each) for each in rows.to_pylist()]


def _removed_in(checkpoint: bytes) -> list[RemovedFile]:
    columns = ["remove.path", "remove.deletionTimestamp", "remove.dataChange"]
    rows = pyarrow.parquet.ParquetFile(io.BytesIO(checkpoint)).read(columns=columns).column("remove")
    return [
        RemovedFile(each["path"], each["dataChange"], each["deletionTimestamp"])
        for each in rows.drop_null().to_pylist()
    ]


def _added(row: Mapping[str, Any]) -> AddedFile:
    # Maps are lists of pairs in Arrow. Times and counts may be missing in checkpoints of other writers.
    vector = row.get("deletionVector")
    tags = row.get("tags")
    return AddedFile(
        row["path"],
        dict(row["partitionValues"] or ()),
        row["size"],
        row["modificationTime"],
        row["dataChange"],
        row.get("stats"),
        None if tags is None else dict(tags),
        None if vector is None else msgspec.convert(vector, Vector),
    )
