"""Computes the row of a key from its changes, in any order. Pure.

Within a file the changes of a key are in order. Files of two hours, or of two versions of the columns, may be read in
the wrong order. So if the newest change did not send a column, the row remembers the version of the change that did.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class ReplayedRow(NamedTuple):
    """A row, or one change of it.

    - `version`: `penstock.event.replica.encode_version` of the newest change.
    - `values`: of the columns that are known. A deleted row has none.
    - `not_sent`: columns that the newest change did not send, each with the version of the change that did; "" if no
      such change has come yet.
    """

    version: str
    deleted: bool
    values: dict[str, Any]
    not_sent: dict[str, str]


def folded(row: ReplayedRow | None, change: ReplayedRow) -> ReplayedRow:
    """Return the row with one more change."""
    if row is None or row.version == change.version:
        return row or change
    older, newer = sorted((row, change), key=lambda each: each.version)
    # A row that was deleted has no value for a later change.
    if newer.deleted or older.deleted or not newer.not_sent:
        return newer
    values, not_sent = dict(newer.values), dict(newer.not_sent)
    for column, version in newer.not_sent.items():
        sent = older.not_sent.get(column, older.version)
        if column in older.values and sent > version:
            values[column], not_sent[column] = older.values[column], sent
    return ReplayedRow(newer.version, False, values, not_sent)
