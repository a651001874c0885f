"""The mutations that the sink writes for one event; see `penstock.io.staging.preview`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.event.model import ChangeEvent
from penstock.event.replica import fold
from penstock.io.spanner.sink.sender import refuse_truncate, write_row
from penstock.io.spanner.sink.target import SpannerTarget, table_of
from penstock.io.staging.preview import Written


class _Recorder:
    """Takes the calls of a transaction, and keeps them as mutations."""

    def __init__(self) -> None:
        self.written: list[Written] = []

    def insert_or_update(self, table: str, columns: Sequence[str], values: Sequence[Sequence[Any]]) -> None:
        self.written += [
            {"table": table, "insert_or_update": dict(zip(columns, row, strict=True))} for row in values
        ]

    def delete(self, table: str, keyset: Any) -> None:
        self.written += [{"table": table, "delete": key} for key in keyset.keys]


def mutations_of_event(event: ChangeEvent, target: SpannerTarget) -> list[Written]:
    """Return the mutations of an event, without the rows of the ledger and of the table of versions.

    Raises:
        ValueError: Spanner has no type for a value, or the event is none of a replica.
    """
    # A recorder in place of a transaction: the preview uses the function that writes.
    recorder = _Recorder()
    for changes in fold([event]).values():
        refuse_truncate(changes)
        names = [column.name for column in changes.schema.key_columns]
        for change in changes.rows.values():
            write_row(recorder, table_of(changes.source), change, changes.schema, names)
    return recorder.written
