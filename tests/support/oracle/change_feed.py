"""Reads the rows of a change feed that a query or a pipeline has written, and replays them. No code of Penstock."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet

Rows = list[dict[str, Any]]


class NotCompleteError(AssertionError):
    """The rows are not what the promises say; the message shows no value."""


def complete_batches(folder: Path) -> list[Path]:
    """Return the folders of batches that Spark has written to the end."""
    return [mark.parent for mark in sorted(folder.glob("batch=*/_SUCCESS"))]


def rows_of(folder: Path) -> Rows:
    """Return the rows of all batches.

    Raises:
        NotCompleteError: a batch was not written to its end.
    """
    if len(complete_batches(folder)) != len(list(folder.glob("batch=*"))):
        raise NotCompleteError(f"a batch below {folder} is not complete")
    files = [file for batch in complete_batches(folder) for file in batch.glob("*.parquet")]
    return [row for file in files for row in pyarrow.parquet.ParquetFile(file).read().to_pylist()]


def written(rows: Rows) -> int:
    """Return how many rows were inserted or updated, as a writer counts them."""
    return sum(row["_change_type"] in ("insert", "update_postimage") for row in rows)


def consumed(records: Iterable[tuple[bytes | None, bytes]], key: str) -> dict[Any, dict[str, Any]]:
    """Return the rows by key that a consumer has at the end, which reads records with keys as they come.

    It keeps the last record of each key. A key whose last record is an old row has moved.

    Raises:
        NotCompleteError: a record has another key than its row, or the records of a key are out of order.
    """
    last: dict[Any, dict[str, Any]] = {}
    for record_key, value in records:
        row = json.loads(value)
        if record_key is None or json.loads(record_key) != {key: row[key]}:
            raise NotCompleteError(f"the record at {row['_commit_version']} has another key than its row")
        before = last.get(row[key])
        if before is not None and _place(before) >= _place(row):
            raise NotCompleteError(
                f"the record at {row['_commit_version']} comes after a later one of its key"
            )
        last[row[key]] = row
    gone = ("delete", "update_preimage")
    return {
        at: {name: value for name, value in row.items() if not name.startswith("_") and name != key}
        for at, row in last.items()
        if row["_change_type"] not in gone
    }


def _place(row: dict[str, Any]) -> tuple[str, bool]:
    return row["_commit_version"], row["_change_type"] != "update_preimage"


def replay(rows: Rows, key: str, value: str) -> dict[Any, Any]:
    """Return the table of one value for each key that the changes make, in the order of their versions.

    Raises:
        NotCompleteError: a change does not follow the one before it, so one is missing, repeated or out of order.
    """
    table: dict[Any, Any] = {}
    for row in sorted(rows, key=_place):
        kind, at = row["_change_type"], row[key]
        follows = {
            "insert": at not in table,
            "update_preimage": at in table and table[at] == row[value],
            "update_postimage": at in table,
            "delete": at in table,
        }[kind]
        if not follows:
            raise NotCompleteError(f"{kind} at {row['_commit_version']} does not follow the change before it")
        if kind == "delete":
            del table[at]
        elif kind != "update_preimage":
            table[at] = row[value]
    return table
