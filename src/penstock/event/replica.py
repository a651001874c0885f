"""Applies change events to the rows of a replica, a table with one row per primary key. Pure.

    for changes in fold(events).values():                  # one `TableChanges` per table: at most one change per key
        rows = load(changes.keys_to_read())                # rows of the target, tombstones included
        save(apply(changes, rows, truncated))              # only rows that differ from the target's

A target that can do more in its own language (SQL: one INSERT … ON CONFLICT) uses `fold` only.

Rules:

- **Version guard.** A change is applied if its version is higher than the row's. So a repeated batch changes
  nothing, and a READ row of a snapshot never replaces a newer row.
- **Tombstones.** A deleted row stays as a key with its version and `deleted`, so that an older change that comes late
  does not bring it back. Sinks delete tombstones after their `tombstone_seconds`.
- **A column that was not sent keeps its value**, also when the key of the row changes. A CREATE has a whole row: a
  column that it does not send becomes NULL.
- **A change of the key** is a tombstone of the old key and a row of the new one, with the same version.
- **TRUNCATE** removes the rows of the table that are older. The target stores the version of the newest one, because
  an older change of another shard may come later.

The events of a batch may come in any order: `fold` sorts the events of each table by their versions. Batches with
whole rows may come in any order too. Batches with partial rows (events with `unavailable` columns) must come in the
order of the versions of their table: an older change does not fill columns of a newer row, and a change of the key
takes values from the row of another key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from penstock.errors import UnwritableError
from penstock.event.keys import RowKey, changed_key, row_key
from penstock.event.model import NO_COLUMNS, ChangeEvent, Image, Op, Source, TableSchema, Version
from penstock.event.schema_changes import merged_schema


class NotReplicableError(UnwritableError):
    """An event that no replica can express. The message names the table and the fix, and shows no value."""


class RowChange(msgspec.Struct, frozen=True):
    """The effect of a batch on one row: the row after the newest of its events.

    - `key`: the primary key, columns in the order of the key. `version`, `timestamp`: of the newest event.
    - `deleted`: no row remains; `values` is empty and `base` is None.
    - `values`: the columns outside of the key that were sent, with their newest values.
    - `base`: the key of the row that has the values of all other columns, as the target holds it *before* the batch:
      its own key, or the old key after a change of the key. None: all other columns are NULL.
    """

    key: Image
    version: Version
    timestamp: int
    deleted: bool = False
    values: Image = {}
    base: Image | None = None


class ReplicaRow(msgspec.Struct, frozen=True):
    """A row of the target, or a tombstone. `values` are the columns outside of the key; an absent column is NULL."""

    key: Image
    version: Version
    timestamp: int
    deleted: bool = False
    values: Image = {}


@dataclass(slots=True)
class TableChanges:
    """The effect of a batch on one table: remove all rows older than `truncated`, then apply `rows` (one per key).

    `schema` has the columns of all events of the batch; where two differ, the later one counts. `newest` is the highest
    timestamp of the batch, in nanoseconds since the epoch.
    """

    source: Source
    schema: TableSchema = NO_COLUMNS
    truncated: Version | None = None
    rows: dict[RowKey, RowChange] = field(default_factory=dict)
    newest: int = 0

    def keys_to_read(self) -> dict[RowKey, Image]:
        """Return the keys of all rows that `apply` needs: those that change, and the bases of key changes."""
        keys = {key: change.key for key, change in self.rows.items()}
        for change in self.rows.values():
            if change.base is not None and change.base is not change.key:
                keys.setdefault(row_key(change.base), change.base)
        return keys

    def add(self, event: ChangeEvent) -> None:
        """Add the next event of the table, in the order of versions.

        Raises:
            NotReplicableError: the event has no primary key, or is of Bigtable.
        """
        if event.op is Op.MESSAGE:
            return
        if event.schema is not self.schema:
            self.schema = merged_schema(self.schema, event.schema)
        self.newest = max(self.newest, event.timestamp)
        if event.op is Op.TRUNCATE:
            self._truncate(event.version)
        elif event.op is not Op.SCHEMA:
            self._add_row(event)

    def _truncate(self, version: Version) -> None:
        if self.truncated is None or version > self.truncated:
            self.truncated = version
            self.rows = {key: change for key, change in self.rows.items() if change.version > version}

    def _add_row(self, event: ChangeEvent) -> None:
        key = replicable_key(event)
        old_key = changed_key(event)
        if self.truncated is not None and event.version <= self.truncated:
            return
        id_ = row_key(key)
        before = self.rows.get(id_ if old_key is None else row_key(old_key))
        if old_key is not None:
            self._put(row_key(old_key), RowChange(old_key, event.version, event.timestamp, deleted=True))
        if event.op is Op.DELETE:
            self._put(id_, RowChange(key, event.version, event.timestamp, deleted=True))
            return
        values = {name: value for name, value in (event.after or {}).items() if name not in key}
        base: Image | None = key if old_key is None else old_key
        if event.op is Op.CREATE:
            base = None
        # A row that moves away from a key that it does not have in this batch: another shard wrote the row, or it was
        # refused. The tombstone of an earlier move says nothing about its values.
        elif before is not None and not (before.deleted and old_key is not None):
            values, base = before.values | values, before.base
        self._put(id_, RowChange(key, event.version, event.timestamp, False, values, base))

    def _put(self, id_: RowKey, change: RowChange) -> None:
        before = self.rows.get(id_)
        if before is None or before.version < change.version:
            self.rows[id_] = change


def by_table(events: Iterable[ChangeEvent]) -> dict[tuple[str, str, str], list[ChangeEvent]]:
    """Return events by (database, schema, table), each table's in the order of their versions.

    Tables are in the order of their first event. Events with equal versions, which are rows of one snapshot, keep their
    order.
    """
    tables: dict[tuple[str, str, str], list[ChangeEvent]] = {}
    for event in events:
        source = event.source
        tables.setdefault((source.database, source.schema, source.table), []).append(event)
    for each in tables.values():
        # The events come from several shards, readers and tasks. A list that is in order is only looked through.
        each.sort(key=_version_of)
    return tables


def fold(events: Iterable[ChangeEvent]) -> dict[tuple[str, str, str], TableChanges]:
    """Return the changes of a batch by (database, schema, table), tables in the order of their first event.

    Events that belong to no table (MESSAGE) are left out.

    Raises:
        NotReplicableError: as `TableChanges.add`.
    """
    tables = {}
    for name, each in by_table(event for event in events if event.op is not Op.MESSAGE).items():
        changes = tables[name] = TableChanges(each[0].source)
        for event in each:
            changes.add(event)
    return tables


def _version_of(event: ChangeEvent) -> Version:
    return event.version


def apply(
    changes: TableChanges, current: Mapping[RowKey, ReplicaRow], truncated: Version | None = None
) -> dict[RowKey, ReplicaRow]:
    """Return the rows to write: those that `changes` makes different.

    `current` has the rows of `changes.keys_to_read()` that the target holds. `truncated` is the newest TRUNCATE that
    the target knows. The caller removes the rows older than `changes.truncated` first; rows of `current` that are older
    are treated as removed.
    """
    horizon = max((each for each in (truncated, changes.truncated) if each is not None), default=None)
    written = {}
    for id_, change in changes.rows.items():
        if horizon is not None and change.version <= horizon:
            continue
        row = current.get(id_)
        if row is not None and row.version >= change.version:
            continue
        written[id_] = _row_of(change, current, horizon)
    return written


def _row_of(change: RowChange, current: Mapping[RowKey, ReplicaRow], horizon: Version | None) -> ReplicaRow:
    base = None if change.base is None else current.get(row_key(change.base))
    known: Image = {}
    if base is not None and not base.deleted and (horizon is None or base.version > horizon):
        known = base.values
    return ReplicaRow(change.key, change.version, change.timestamp, change.deleted, known | change.values)


def replicable_key(event: ChangeEvent) -> Image:
    """Return the primary key of a change of a row.

    Raises:
        NotReplicableError: it has none, or is of Bigtable.
    """
    table = event.source.qualified_table
    if event.source.system == "bigtable":
        raise NotReplicableError(
            f"table {table}: a change of Bigtable has cells and not a row, so there is no current row to maintain: "
            "write the change log (mode='log'), or replicate into Bigtable with WriteToBigtable"
        )
    if not event.key:
        raise NotReplicableError(
            f"table {table}: the event has no primary key, so its row cannot be found in a replica: give the table a "
            "primary key, or write the change log (mode='log')"
        )
    return event.key


# --- versions as text ---------------------------------------------------------------------------------------------

_LOWEST = 0x22


def encode_version(version: Version) -> str:
    """Return a text that sorts by its code points (collation "C", binary) as versions sort.

    The parts are separated by a space, which is lower than any character of a part; `order` has 24 digits, so that the
    year 9999 in nanoseconds fits.
    """
    return f"{version.order:024d} {_escaped(version.transaction)} {_escaped(version.sequence)} {version.index:010d}"


def decode_version(text: str) -> Version:
    """Return the version of `encode_version`.

    Raises:
        ValueError: the text is not of `encode_version`.
    """
    order, transaction, sequence, index = text.split(" ")
    return Version(int(order), _unescaped(transaction), _unescaped(sequence), int(index))


def _escaped(part: str) -> str:
    # Ids of all sources are printable, so the loop is not needed for them. "!" marks a character up to "!" itself: the
    # mark is lower than all other characters, and the second character keeps the order among the marked ones.
    if part.isascii() and part.isalnum():
        return part
    return "".join(c if ord(c) >= _LOWEST else f"!{chr(ord(c) + _LOWEST)}" for c in part)


def _unescaped(part: str) -> str:
    characters = iter(part)
    return "".join(c if c != "!" else chr(ord(next(characters)) - _LOWEST) for c in characters)
