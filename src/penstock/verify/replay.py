"""Computes the row of a key from its changes, in any order. Pure.

Within a file the changes of a key are in order. Files of two hours, or of two versions of the columns, may be read in
the wrong order. So if the newest change did not send a column, the row remembers the version of the change that did.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from penstock.event.model import Image, Op


class Change(NamedTuple):
    """A change of a file.

    - `op`: see `Op`. `version`: `penstock.event.replica.encode_version`.
    - `key`: None: it is of no row. `old_key`: of the row before an UPDATE; None: it has the same key.
    - `after`: None: the change has no such image.
    - `not_sent`: the columns of `after` that have a value which the source did not send.
    """

    op: str
    version: str
    key: Image | None
    old_key: Image | None
    after: Image | None
    not_sent: Sequence[str] | None


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


def row_changes(change: Change, key_text: Callable[[Image], str]) -> list[tuple[str, ReplayedRow]]:
    """Return what a change of a row does to the rows of its keys; an UPDATE that changes the key has two.

    `key_text`: returns the text of a key.
    """
    version, key = change.version, change.key or {}
    changes, text = [], key_text(key)
    if change.old_key is not None and (old_text := key_text(change.old_key)) != text:
        changes.append((old_text, ReplayedRow(version, True, {}, {})))
    if change.op == Op.DELETE:
        return [*changes, (text, ReplayedRow(version, True, {}, {}))]
    not_sent = dict.fromkeys(change.not_sent or (), "")
    # The key has its canonical form, and the image has the source's.
    image = {**(change.after or {}), **key}
    values = {name: value for name, value in image.items() if name not in not_sent}
    return [*changes, (text, ReplayedRow(version, False, values, not_sent))]
