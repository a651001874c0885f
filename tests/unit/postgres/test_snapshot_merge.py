"""The merge of rows with the log: which changes have all columns."""

from __future__ import annotations

import queue
from types import SimpleNamespace
from typing import Any

from penstock.io.change_streams.snapshots.engine import Chunk
from penstock.io.change_streams.snapshots.options import SnapshotOptions
from penstock.io.change_streams.snapshots.progress import SnapshotProgress
from penstock.io.change_streams.snapshots.signals import ExecuteSnapshot
from penstock.io.postgres.record import UNCHANGED, ChangeKind, LogRecord, LogTransaction
from penstock.io.postgres.snapshots.chunks import SnapshotRow
from penstock.io.postgres.snapshots.merge import SnapshotMerge
from tests.unit.postgres.test_snapshot_chunks import statement, table

TABLE = table("a")


def emitted_before(change: LogRecord) -> list[Any]:
    """Return what is emitted before a change of a row that waits."""
    progress, _ = SnapshotProgress().receive(ExecuteSnapshot("1", ("public.t",)))
    progress, _ = progress.resolved("1", ["public.t"])
    asked: list[Any] = []
    worker: Any = SimpleNamespace(answers=queue.SimpleQueue(), ask=asked.append)
    merge = SnapshotMerge(
        worker,
        SnapshotOptions(),
        "",
        progress,
        (),
        notifications=False,
        dead_letters=False,
        visible=lambda: None,
        close=lambda: None,
    )
    merge.advance(10, 10)
    rows = statement(TABLE).chunk_rows([("1", "b", "large", "1")], lambda row: SnapshotRow(TABLE, row))
    worker.answers.put(Chunk(asked[0], rows, lambda transaction: False, 100, False))
    merge.advance(11, 11)
    return merge.note(change, 12, 12) or []


def update(new: tuple[Any, ...], **more: Any) -> LogRecord:
    return LogRecord(ChangeKind.UPDATE, 12, LogTransaction(7, 12, 12), 1, 12, True, TABLE, new, **more)


def test_a_row_precedes_a_change_without_its_large_value():
    (row,) = emitted_before(update(("1", "new", UNCHANGED)))
    assert (row.kind, row.new) == (ChangeKind.READ, ("1", "b", "large"))


def test_a_change_with_all_columns_replaces_the_row():
    assert emitted_before(update(("1", "new", "other"))) == []
    full = update(("1", "new", UNCHANGED), old=("1", "b", "large"), old_is_full=True)
    assert emitted_before(full) == []
