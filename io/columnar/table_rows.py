"""Converts the events of an epoch to rows of a table: one per key, or one for each period in which a row had a value.

    current   one row per primary key; a deleted row stays as a tombstone (`DELETED`)
    history   one row for each version of a row, valid from `TIMESTAMP` until `VALID_TO`

The values are plain (`penstock.event.plain_types`), with times in nanoseconds. The rules are those of
`penstock.event.replica`. Pure: the caller loads the rows that the table has, and writes those that are returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec

from penstock.event.column_types import ColumnType, Interval, Kind
from penstock.event.model import ChangeEvent, Column, Image, Op, TableSchema, Version
from penstock.event.plain_types import plain_images, plain_schema
from penstock.event.replica import (
    NotReplicableError,
    ReplicaRow,
    RowChange,
    TableChanges,
    apply,
    changed_key,
    decode_version,
    encode_version,
)
from penstock.event.schema_changes import merged_schema

Mode = Literal["log", "current", "history"]

PREFIX = "_penstock_"
KEY, VERSION, TIMESTAMP, DELETED = (f"{PREFIX}{name}" for name in ("key", "version", "timestamp", "deleted"))
VALID_TO, ENDED_BY = f"{PREFIX}valid_to", f"{PREFIX}ended_by"

_TEXT, _TIME = ColumnType(Kind.STRING), ColumnType(Kind.TIMESTAMP)
_ROW_COLUMNS = (
    Column(KEY, _TEXT),
    Column(VERSION, _TEXT),
    Column(TIMESTAMP, _TIME),
    Column(DELETED, ColumnType(Kind.BOOL)),
)
_HISTORY_COLUMNS = (*_ROW_COLUMNS, Column(VALID_TO, _TIME), Column(ENDED_BY, _TEXT))

TOMBSTONE_SECONDS = 7 * 86_400.0
"""How long tombstones stay, unless the user says otherwise."""

_FORGET_PART = 100
"""Tombstones are removed whenever the newest change is this part of their age further, because that reads the table."""

StoredRow = Image
"""A row of the table: its columns, and those that begin with `PREFIX`."""

Load = Callable[[list[str]], list[StoredRow]]
"""Returns the rows of the table with these key texts. In the mode *history* those that can change."""


def table_schema(schema: TableSchema, mode: Mode) -> TableSchema:
    """Return the plain columns of a table in the mode *current* or *history*."""
    return TableSchema(
        (*plain_schema(schema).columns, *(_ROW_COLUMNS if mode == "current" else _HISTORY_COLUMNS))
    )


def key_text(key: Image) -> str:
    """Return a text that equal keys share, NULL and NaN included: a JSON array of the values of the key."""
    return _encode(list(key.values())).decode()


def current_rows(
    changes: TableChanges, load: Load, truncated: Version | None, guarded: frozenset[str] | None = None
) -> list[StoredRow]:
    """Return the rows that an epoch makes different. Rows older than `changes.truncated` are removed by the caller.

    `truncated` is the newest TRUNCATE of earlier epochs. `guarded`: the caller compares versions when it writes, and
    its table has these columns; then only rows are loaded from which a change takes values that were not sent.
    """
    to_plain = plain_images(changes.schema)
    keys = changes.keys_to_read()
    if guarded is not None:
        partial = {id_: each for id_, each in changes.rows.items() if _takes_values(each, guarded)}
        keys = replace(changes, rows=partial).keys_to_read()
    by_text = {key_text(key): (id_, key) for id_, key in keys.items()}
    stored = load(list(by_text)) if keys else []
    current = {}
    for row in stored:
        id_, key = by_text[row[KEY]]
        values = {
            name: value for name, value in row.items() if not name.startswith(PREFIX) and name not in key
        }
        current[id_] = ReplicaRow(key, decode_version(row[VERSION]), row[TIMESTAMP], row[DELETED], values)
    plain = replace(
        changes,
        rows={
            id_: msgspec.structs.replace(change, values=to_plain(change.values) or {})
            for id_, change in changes.rows.items()
        },
    )
    return [_stored(row, to_plain(row.key) or {}) for row in apply(plain, current, truncated).values()]


def forget_before(newest: int, last: int | None, tombstone_seconds: float) -> int | None:
    """Return the time before which tombstones are to be removed; None if it is too soon after the `last` time.

    `newest` is the timestamp of the newest change of the epoch. All times are in nanoseconds since the epoch.
    """
    age = int(tombstone_seconds * 1_000_000_000)
    due = newest - age
    return due if due > 0 and (last is None or due - last >= age // _FORGET_PART) else None


def _takes_values(change: RowChange, columns: frozenset[str]) -> bool:
    return change.base is not None and bool(columns - change.values.keys() - change.key.keys())


def _stored(row: ReplicaRow, key: Image) -> StoredRow:
    return {
        **row.values,
        **key,
        KEY: key_text(row.key),
        VERSION: encode_version(row.version),
        TIMESTAMP: row.timestamp,
        DELETED: row.deleted,
    }


@dataclass(slots=True)
class _Row:
    """The last version of a row of a history, key columns among its values.

    `ended_at` and `ended_by` are None while it is valid.
    """

    text: str
    version: Version
    values: Image
    timestamp: int
    ended_at: int | None = None
    ended_by: Version | None = None
    deleted: bool = False

    @property
    def newest(self) -> Version:
        return self.version if self.ended_by is None else self.ended_by


@dataclass(slots=True)
class History:
    """The history of one table through an epoch. `schema` has the columns of its events."""

    load: Load
    load_open: Callable[[], list[StoredRow]]
    """Returns all rows that are valid now; only a TRUNCATE needs it."""
    schema: TableSchema = field(default_factory=lambda: TableSchema(()))
    _last: dict[str, _Row] = field(default_factory=dict)
    _written: dict[tuple[str, Version], _Row] = field(default_factory=dict)

    def add(self, events: Iterable[ChangeEvent]) -> list[StoredRow]:
        """Apply the events of the epoch, in their order for each key; return the rows that are new or changed.

        Raises:
            NotReplicableError: an event has no primary key.
        """
        events = [event for event in events if event.op not in (Op.MESSAGE, Op.SCHEMA)]
        for event in events:
            self.schema = merged_schema(self.schema, event.schema)
        keys = {key_text(key) for event in events for key in _keys(event)}
        self._remember(self.load(sorted(keys)))
        for event in events:
            if event.op is Op.TRUNCATE:
                self._remember(self.load_open())
                for row in list(self._last.values()):
                    self._end(row, event, deleted=True)
            else:
                self._add(event)
        return [self._stored(row) for row in self._written.values()]

    def _add(self, event: ChangeEvent) -> None:
        key, old_key = event.key or {}, changed_key(event)
        last = self._last.get(key_text(key if old_key is None else old_key))
        if last is not None and last.newest >= event.version:
            return
        valid = last if last is not None and last.ended_by is None else None
        if valid is not None:
            self._end(valid, event, deleted=event.op is Op.DELETE or old_key is not None)
        text = key_text(key)
        known = self._last.get(text)
        if event.op is Op.DELETE or (known is not None and known.newest > event.version):
            return
        if old_key is not None and known is not None and known.ended_by is None:
            self._end(known, event, deleted=False)
        plain = plain_images(event.schema)(event.after) or {}
        values = plain if valid is None or event.op is Op.CREATE else valid.values | plain
        row = self._last[text] = _Row(text, event.version, values, event.timestamp)
        self._written[text, row.version] = row

    def _end(self, row: _Row, event: ChangeEvent, *, deleted: bool) -> None:
        if row.ended_by is None and row.version < event.version:
            row.ended_at, row.ended_by, row.deleted = event.timestamp, event.version, deleted
            self._written[row.text, row.version] = row

    def _remember(self, stored: Iterable[StoredRow]) -> None:
        for each in stored:
            ended = each[ENDED_BY]
            values = {name: value for name, value in each.items() if not name.startswith(PREFIX)}
            row = _Row(
                each[KEY],
                decode_version(each[VERSION]),
                values,
                each[TIMESTAMP],
                each[VALID_TO],
                None if ended is None else decode_version(ended),
                each[DELETED],
            )
            known = self._last.get(each[KEY])
            if known is None or known.newest < row.newest:
                self._last[each[KEY]] = row

    def _stored(self, row: _Row) -> StoredRow:
        return {
            **row.values,
            KEY: row.text,
            VERSION: encode_version(row.version),
            TIMESTAMP: row.timestamp,
            DELETED: row.deleted,
            VALID_TO: row.ended_at,
            ENDED_BY: None if row.ended_by is None else encode_version(row.ended_by),
        }


def _keys(event: ChangeEvent) -> list[Image]:
    if event.op is Op.TRUNCATE:
        return []
    if not event.key or event.source.system == "bigtable":
        raise NotReplicableError(
            f"table {event.source.table}: a change without a primary key, or of Bigtable, has no row in a history: "
            "write the change log (mode='log')"
        )
    old = changed_key(event)
    return [event.key] if old is None else [event.key, old]


def _enc_hook(value: object) -> object:
    if isinstance(value, Interval):
        return value.parts()
    raise NotImplementedError(f"a key holds a {type(value).__name__}")


_encode = msgspec.json.Encoder(enc_hook=_enc_hook, decimal_format="string").encode


def by_table(events: Iterable[ChangeEvent]) -> Mapping[tuple[str, str, str], list[ChangeEvent]]:
    """Return events by (database, schema, table), in their order."""
    tables: dict[tuple[str, str, str], list[ChangeEvent]] = {}
    for event in events:
        source = event.source
        tables.setdefault((source.database, source.schema, source.table), []).append(event)
    return tables
