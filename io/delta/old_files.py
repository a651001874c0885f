"""Deletes data files of a Delta table that were removed some time ago, so that old versions need no space.

The rule is the one of VACUUM, for files that the log names as removed: the folder is not listed, so files without a
commit, which other programs may be writing, stay. Needs the extra `delta`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote

from penstock.io.columnar.old_versions import warn_of_kept_versions
from penstock.io.delta.folder import DeltaFolder
from penstock.io.delta.table_log import RemovedFile, live_and_removed
from penstock.io.delta.vector_cleanup import retention_ms_of

_OTHER_CHECKPOINTS = "v2Checkpoint"


def delete_removed_files(
    name: str, table: Any, folder: DeltaFolder, before_ms: int, since_ms: int, now_ms: int
) -> None:
    """Delete the files of an open table that were removed before (not at) a time, and not before `since_ms`."""
    retention_ms = retention_ms_of(table.metadata().configuration)
    # Checkpoints forget removed files after this time, so they would never be found.
    if retention_ms is None or now_ms - before_ms > retention_ms:
        warn_of_kept_versions(
            name, "set delta.deletedFileRetentionDuration of the table to an interval that is not shorter"
        )
        return
    if _OTHER_CHECKPOINTS in (table.protocol().writer_features or ()):
        warn_of_kept_versions(name, "it has checkpoints of version 2. Run VACUUM with another program")
        return
    live, removed = live_and_removed(folder, str(table.metadata().id), int(table.version()))
    folder.delete(sorted(files_to_delete(live, removed, before_ms, since_ms)))


def files_to_delete(
    live: Iterable[str], removed: Iterable[RemovedFile], before_ms: int, since_ms: int
) -> set[str]:
    """Return the names of removed files that no version from `before_ms` on needs.

    A file that is live was removed with an older deletion vector only. Files outside of the folder of the table stay.
    """
    last: dict[str, int] = {}
    for each in removed:
        # An unknown time is as good as now. A file with several deletion vectors was removed several times.
        removed_ms = before_ms if each.deletion_timestamp is None else each.deletion_timestamp
        last[each.path] = max(removed_ms, last.get(each.path, removed_ms))
    old = {path for path, removed_ms in last.items() if since_ms <= removed_ms < before_ms}
    own = {path for path in old - set(live) if "://" not in path and not path.startswith("/")}
    return {unquote(path) for path in own}
