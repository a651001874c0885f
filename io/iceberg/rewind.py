"""Puts an Iceberg table back to an earlier snapshot, or deletes the end of a log. Needs the extra `iceberg`.

Marks are properties, of which a table keeps the newest one. So the snapshots of the sink have the mark that the table
had when they were made, in their summaries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from penstock.errors import UsageError
from penstock.io.iceberg.files import FilesOfIo
from penstock.io.staging.complete_marks import Mark, decode_mark
from penstock.object_stores.store import in_parallel
from penstock.rewind import CommitOfTable
from penstock.timestamps import EPOCH

COMPLETE = "penstock.complete."
"""The properties with marks: ``penstock.complete.<sink>/<job>/<record, 12 digits>``."""

KNOWN = "penstock.complete"
"""The entry of a snapshot's summary with the mark that the table had before the snapshot."""


def marks_of(properties: Mapping[str, str], writer: str) -> dict[str, str]:
    """Return the properties with the marks of a writer, the newest one last."""
    prefix = f"{COMPLETE}{writer}/"
    return {name: properties[name] for name in sorted(properties) if name.startswith(prefix)}


def newest_mark(properties: Mapping[str, str], writer: str) -> str | None:
    """Return the newest mark of a writer, encoded."""
    return next(reversed(marks_of(properties, writer).values()), None)


def with_mark(transaction: Any, properties: Mapping[str, str], mark: Mark) -> None:
    """Set the mark of a record in a transaction, and remove the marks of older records."""
    writer = f"{mark.sink}/{mark.job}"
    name = f"{COMPLETE}{writer}/{mark.record:012d}"
    transaction.set_properties({name: mark.encoded.decode()})
    # Only lower numbers: a driver that was paused removes no newer mark, and readers take the highest number.
    transaction.remove_properties(*[each for each in marks_of(properties, writer) if each < name])


def commits_of(table: Any, writer: str) -> list[CommitOfTable]:
    """Return the snapshots that led to the newest one of an open table, newest first."""
    marks = [(each, _known(each, writer)) for each in _line(table)]
    return [
        CommitOfTable(
            each.snapshot_id,
            each.timestamp_ms * 1000,
            None if mark is None else mark.until_us,
            mark is None and not _keeps_rows(each),
        )
        for each, mark in marks
    ]


def _line(table: Any) -> Iterator[Any]:
    snapshot = table.current_snapshot()
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.metadata.snapshot_by_id(parent)


def _known(snapshot: Any, writer: str) -> Mark | None:
    text = None if snapshot.summary is None else snapshot.summary.additional_properties.get(KNOWN)
    # The text belongs to whoever has committed, so it need not be a mark.
    try:
        mark = decode_mark(text or "")
    except msgspec.DecodeError:
        return None
    return mark if f"{mark.sink}/{mark.job}" == writer else None


def _keeps_rows(snapshot: Any) -> bool:
    return snapshot.summary is not None and snapshot.summary.operation.value == "replace"


def check_files(table: Any, version: int) -> None:
    """Check that the files of a snapshot of an open table exist.

    Raises:
        UsageError: they do not.
    """
    snapshot = table.metadata.snapshot_by_id(version)
    if snapshot is None:
        raise UsageError(f"its snapshot {version} has expired: by version_seconds, or by expire_snapshots")
    try:
        paths = [
            entry.data_file.file_path
            for manifest in snapshot.manifests(table.io)
            for entry in manifest.fetch_manifest_entry(table.io)
        ]
        missing = sum(each is None for each in in_parallel(FilesOfIo(table.io).length, paths))
    except FileNotFoundError:
        missing = 1
    if missing:
        raise UsageError(f"files of its snapshot {version} are deleted. Choose a later time")


def restore(table: Any, version: int, entries: Mapping[str, str], mark: Mark) -> None:
    """Make a snapshot the current one, with properties and a mark, in one commit. `table` has its whole metadata."""
    from pyiceberg.table.update.snapshot import ManageSnapshots

    with table.transaction() as transaction:
        with ManageSnapshots(transaction) as snapshots:
            snapshots.set_current_snapshot(version)
        transaction.set_properties(dict(entries))
        with_mark(transaction, table.metadata.properties, mark)


def delete_from(
    table: Any, time: str, summary: Mapping[str, str], entries: Mapping[str, str], mark: Mark
) -> None:
    """Delete the rows of a log from the time of a mark on, with properties and the mark, in one commit.

    `time` is the column with the commit time.
    """
    from pyiceberg.expressions import GreaterThanOrEqual

    since: datetime = EPOCH + timedelta(microseconds=mark.until_us)
    with table.transaction() as transaction:
        transaction.delete(GreaterThanOrEqual(time, since.isoformat()), snapshot_properties=dict(summary))
        transaction.set_properties(dict(entries))
        with_mark(transaction, table.metadata.properties, mark)
