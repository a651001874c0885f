"""Applies the records of a change stream in the given order, and returns the resulting table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.io.bigtable import (
    AddToCell,
    ChangeStreamMutation,
    DeleteCells,
    DeleteFamily,
    MergeToCell,
    SetCell,
)

Cells = dict[bytes, dict[tuple[str, bytes, int], bytes]]
"""Values by row key, and in each row by (family, qualifier, timestamp in microseconds)."""


KINDS: set[type] = {SetCell, DeleteCells, DeleteFamily, AddToCell, MergeToCell}
"""Every kind of entry that a change stream has."""


def kinds_of(records: Iterable[ChangeStreamMutation]) -> set[type]:
    return {type(entry) for record in records for entry in record.entries}


def mutations_of(records: Iterable[ChangeStreamMutation]) -> int:
    return sum(len(record.entries) for record in records)


def replayed(records: Iterable[ChangeStreamMutation]) -> Cells:
    table: Cells = {}
    for record in records:
        row = table.setdefault(record.row_key, {})
        for entry in record.entries:
            apply(row, entry)
        if not row:
            del table[record.row_key]
    return table


def apply(row: dict[tuple[str, bytes, int], bytes], entry: object) -> None:
    match entry:
        case SetCell(family, qualifier, timestamp, value):
            row[family, qualifier, timestamp] = value
        case DeleteCells(family, qualifier, start, end):
            for cell in [c for c in row if c[:2] == (family, qualifier) and start <= c[2]]:
                if end is None or cell[2] < end:
                    del row[cell]
        case DeleteFamily(family):
            for cell in [c for c in row if c[0] == family]:
                del row[cell]
        case AddToCell(family, qualifier, timestamp, amount):
            _add(row, (family, qualifier, timestamp), int(amount))
        case MergeToCell(family, qualifier, timestamp, state):
            _add(row, (family, qualifier, timestamp), int.from_bytes(bytes(state), "big", signed=True))
        case _:
            raise AssertionError(f"an entry of unknown kind: {type(entry).__name__}")


def _add(row: dict[tuple[str, bytes, int], bytes], cell: tuple[str, bytes, int], amount: int) -> None:
    total = int.from_bytes(row.get(cell, b""), "big", signed=True) + amount
    row[cell] = total.to_bytes(8, "big", signed=True)


def assert_order_of_each_row(records: Sequence[ChangeStreamMutation]) -> None:
    last: dict[bytes, int] = {}
    for record in records:
        assert last.get(record.row_key, 0) <= record.commit_timestamp, "changes of a row out of commit order"
        last[record.row_key] = record.commit_timestamp


def assert_no_duplicates(records: Sequence[ChangeStreamMutation]) -> None:
    """Fail if a change occurs twice: the writers of these tests put a unique number into each change."""
    identities = [(r.row_key, r.commit_timestamp, r.entries) for r in records]
    assert len(set(identities)) == len(identities), "a record came twice"
