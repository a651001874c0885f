"""Forgets old snapshots of an Iceberg table, with the files that no other snapshot needs. Needs the extra `iceberg`.

pyiceberg 0.12 removes snapshots from the metadata, and no files. Files are deleted first: data, then manifests, then
lists of manifests. So a process that is killed leaves snapshots whose files are missing in part, which the next run
forgets in the same way, and no file without a name. Those snapshots are older than readers may ask for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from penstock.io.columnar.old_versions import OldVersion, forgotten_versions, warn_of_kept_versions
from penstock.io.iceberg.files import FilesOfIo
from penstock.io.iceberg.snapshot_files import SnapshotFiles
from penstock.object_stores.store import in_parallel

AT_ONCE = 100
"""So many snapshots are forgotten after one publication, which waits for it."""

_MAIN = "main"


def forget_snapshots(name: str, table: Any, before_ms: int) -> bool:
    """Forget snapshots that newer ones had replaced before (not at) a time, in milliseconds since the epoch.

    Returns whether there are more of them. `table` is open with its whole metadata.
    """
    line = _line(name, table)
    old = forgotten_versions([OldVersion(each.snapshot_id, each.timestamp_ms) for each in line], before_ms)
    count = min(len(old), AT_ONCE)
    if not count:
        return False
    _delete_files(table, line[:count], line[count])
    table.maintenance.expire_snapshots().by_ids([each.snapshot_id for each in line[:count]]).commit()
    return len(old) > count


def _line(name: str, table: Any) -> Sequence[Any]:
    """Return all snapshots, oldest first; none if they are not one line to the newest."""
    metadata = table.metadata
    if set(metadata.refs) - {_MAIN}:
        warn_of_kept_versions(name, "it has branches or tags. Run expire_snapshots with another program")
        return ()
    line = []
    snapshot = table.current_snapshot()
    while snapshot is not None:
        line.append(snapshot)
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else metadata.snapshot_by_id(parent)
    if len(line) != len(metadata.snapshots):
        warn_of_kept_versions(
            name, "some are no ancestors of the newest one. Run expire_snapshots with another program"
        )
        return ()
    return line[::-1]


def _delete_files(table: Any, old: Sequence[Any], kept: Any) -> None:
    """Delete the files that only the snapshots `old` need; `kept` is the next one."""
    io = table.io
    lists = in_parallel(lambda each: _manifests(each, io), [*old, kept])
    # A file that a snapshot removes is needed by the snapshots before it only.
    removing = [
        manifest
        for snapshot, manifests in zip([*old, kept], lists, strict=True)
        for manifest in manifests
        if manifest.added_snapshot_id == snapshot.snapshot_id
    ]
    removed = {path for paths in in_parallel(lambda each: _removed(each, io), removing) for path in paths}
    # Another program may have added a file again.
    current = SnapshotFiles(table).manifests
    removed -= {entry.data_file.file_path for manifest in current for entry in manifest.entries}
    held = {each.manifest_path for each in lists[-1]}
    manifests = {each.manifest_path for some in lists[:-1] for each in some} - held
    for paths in (removed, manifests, {each.manifest_list for each in old}):
        _delete(io, paths)


def _manifests(snapshot: Any, io: Any) -> list[Any]:
    # An earlier run has deleted the list, which is the last file of a snapshot.
    with suppress(FileNotFoundError):
        found: list[Any] = snapshot.manifests(io)
        return found
    return []


def _removed(manifest: Any, io: Any) -> list[str]:
    """Return the files that the snapshot of a manifest removes."""
    from pyiceberg.manifest import ManifestEntryStatus

    # An earlier run has deleted the manifest, after the files.
    with suppress(FileNotFoundError):
        return [
            entry.data_file.file_path
            for entry in manifest.fetch_manifest_entry(io, discard_deleted=False)
            if entry.status == ManifestEntryStatus.DELETED and entry.snapshot_id == manifest.added_snapshot_id
        ]
    return []


def _delete(io: Any, paths: Iterable[str]) -> None:
    files = FilesOfIo(io)
    in_parallel(lambda path: files.delete([path]), sorted(paths))
