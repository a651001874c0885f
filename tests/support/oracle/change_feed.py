"""Reads what a Spark query has written from a data source, and replays it. No code of Penstock, no Spark."""

from __future__ import annotations

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


def replay(rows: Rows, key: str, value: str) -> dict[Any, Any]:
    """Return the table of one value for each key that the changes make, in the order of their versions.

    Raises:
        NotCompleteError: a change does not follow the one before it, so one is missing, repeated or out of order.
    """
    table: dict[Any, Any] = {}
    for row in sorted(
        rows, key=lambda row: (row["_commit_version"], row["_change_type"] != "update_preimage")
    ):
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
