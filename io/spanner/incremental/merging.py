"""The rules about Spanner's records that the merge of incremental snapshots needs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from penstock.io.change_streams.incremental.merge import RowChange
from penstock.io.spanner.frontier import Frontier
from penstock.io.spanner.incremental import chunks
from penstock.io.spanner.record import DataChangeRecord

_WHOLE_ROWS = frozenset(("NEW_ROW", "NEW_ROW_AND_OLD_VALUES"))
"""Capture types whose updates have all watched columns."""


class SpannerRecords:
    """Commit timestamps are versions: Spanner's transactions are ordered by them, and reads are exact."""

    def identity(self, record: Any) -> tuple[int, str, str] | None:
        if not isinstance(record, DataChangeRecord):
            return None
        return record.commit_timestamp, record.server_transaction_id, record.record_sequence

    def time(self, record: DataChangeRecord) -> int:
        return record.commit_timestamp

    def changes(self, record: DataChangeRecord) -> Iterator[RowChange]:
        # A new row has all columns, and a deleted one has none. A primary key never changes.
        whole = record.mod_type != "UPDATE" or record.value_capture_type in _WHOLE_ROWS
        table = record.table_name
        for mod in record.mods:
            yield RowChange(table, chunks.key_of(mod.keys), mod.keys, whole)

    def records(self, rows: Sequence[chunks.SnapshotRow]) -> list[DataChangeRecord]:
        return chunks.records(rows)

    def latest(self, stream: Frontier) -> int:
        times = [position.timestamp for position in stream.open.values()]
        return max([*times, *(child.start for child in stream.waiting.values())], default=0)
