"""Puts a Delta table back to an earlier version, as a new one. Needs the extra `delta`.

`restore` of delta-rs 1.6 knows no deletion vectors, so the entry of the log is written here. It has the files that the
version has and the newest one has not, and removes the others. The columns stay as they are: old files lack the newer
ones, which is NULL.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any
from urllib.parse import unquote

import msgspec

from penstock.errors import UsageError
from penstock.io.columnar.log_parts import Folder
from penstock.io.delta.commit import is_plain
from penstock.io.delta.folder import DeltaFolder
from penstock.io.delta.marks import USER_METADATA
from penstock.io.delta.table_log import (
    Action,
    AddedFile,
    RemovedFile,
    decoded,
    entry_name,
    state_at,
)
from penstock.io.staging.complete_marks import decode_mark
from penstock.object_stores.store import in_parallel
from penstock.rewind import CommitOfTable

REWOUND = "penstockRewound"
"""Metadata of the commit of a rewind: the version that the table went back to."""

_KNOWN = 3
"""So many different times, known to commits from before the wanted one, are enough: for a version, for the one that is
known to be complete before it, and for the commit that knows it."""

_AT_ONCE = 100
"""So many entries of the log are read at once, the newest ones first."""


def commits_before(folder: DeltaFolder, newest: int, writer: str, to_us: int) -> list[CommitOfTable]:
    """Return the commits that led to version `newest`, the newest first.

    They end when those from before `to_us` know enough different times, or where the log begins. Commits that an
    earlier rewind has undone are left out.
    """
    commits: list[CommitOfTable] = []
    known: set[int] = set()
    following = newest
    for number, entry in _entries(folder, newest):
        # Invariant: `following` is the next older version that counts. A rewind skips what it has undone.
        if number > following:
            continue
        actions = decoded(entry)
        commit = _commit_of(number, actions, writer)
        commits.append(commit)
        following = _rewound_to(actions, number - 1)
        if commit.known_us is not None and max(commit.known_us, commit.committed_us) <= to_us:
            known.add(commit.known_us)
        if len(known) == _KNOWN:
            break
    return commits


def _entries(folder: DeltaFolder, newest: int) -> Iterator[tuple[int, bytes]]:
    """Yield the entries of the log from version `newest` to the first one that is there."""
    for last in range(newest, -1, -_AT_ONCE):
        numbers = range(last, max(last - _AT_ONCE, -1), -1)
        found = in_parallel(lambda number: _entry(folder, number), numbers)
        # The log is cleaned up from its beginning, so there is nothing before an entry that is missing.
        yield from takewhile(lambda each: each[1], zip(numbers, found, strict=True))
        if not all(found):
            return


def _entry(folder: DeltaFolder, number: int) -> bytes:
    try:
        return folder.read_entry(entry_name(number))
    except FileNotFoundError:
        return b""


def _commit_of(number: int, actions: Sequence[Action], writer: str) -> CommitOfTable:
    info = _info(actions)
    changes_rows = any(
        each.data_change for action in actions for each in (action.add, action.remove) if each is not None
    )
    is_own = any(action.txn is not None and action.txn.get("appId") == writer for action in actions)
    committed_us = int(info.get("timestamp", 0)) * 1000
    return CommitOfTable(number, committed_us, _known_us(info, writer), changes_rows and not is_own)


def _info(actions: Sequence[Action]) -> dict[str, Any]:
    return next((each.commit_info for each in actions if each.commit_info is not None), {})


def _known_us(info: Mapping[str, Any], writer: str) -> int | None:
    # The text belongs to whoever has committed, so it need not be a mark.
    try:
        mark = decode_mark(info.get(USER_METADATA) or b"")
    except (msgspec.DecodeError, TypeError):
        return None
    return mark.until_us if f"{mark.sink}/{mark.job}" == writer else None


def _rewound_to(actions: Sequence[Action], otherwise: int) -> int:
    return int(_info(actions).get(REWOUND, otherwise))


def restored(folder: DeltaFolder, table: Any, version: int) -> list[Action]:
    """Return what a commit does that gives an open table the files of an older version.

    Raises:
        UsageError: files of the version are deleted, or the table has rules that the sink does not know.
    """
    if not is_plain(table):
        raise UsageError(
            "its protocol has features that the sink cannot write. RESTORE it with another program"
        )
    table_id = str(table.metadata().id)
    then = state_at(folder, table_id, version)
    now = state_at(folder, table_id, int(table.version()))
    added = [file for key, file in then.files.items() if key not in now.files]
    _check_files(folder, added, version)
    now_ms = time.time_ns() // 1_000_000
    return [
        *[
            Action(remove=RemovedFile.of(file, now_ms, data_change=True))
            for key, file in now.files.items()
            if key not in then.files
        ],
        *[Action(add=msgspec.structs.replace(file, data_change=True)) for file in added],
    ]


def _check_files(folder: Folder, files: Iterable[AddedFile], version: int) -> None:
    names = {unquote(file.path) for file in files}
    vectors = {file.deletion_vector.path for file in files if file.deletion_vector is not None}
    needed = sorted(names | {path for path in vectors if path is not None})
    lengths = in_parallel(folder.length, needed)
    if missing := sum(length is None for length in lengths):
        raise UsageError(
            f"{missing} files of its version {version} are deleted: by version_seconds, or by VACUUM. Choose a later "
            "time"
        )
