"""Converts the events of an epoch to rows of a table: one per key, or one for each period in which a row had a value.

    current   one row per primary key; a deleted row stays as a tombstone (`DELETED`)
    history   one row for each version of a row, valid from `TIMESTAMP` until `VALID_TO`

The values are plain (`penstock.event.plain_types`), with times in nanoseconds. Rules: see
`penstock.event.replica`. Pure: the caller loads the rows that the table has, and writes those that are returned.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec

from penstock.event.column_types import ColumnType, Interval, Kind
from penstock.event.feed_rows import Layout
from penstock.event.keys import changed_key
from penstock.event.model import ChangeEvent, Column, Image, Op, TableSchema, Version
from penstock.event.plain_types import plain_images, plain_schema
from penstock.event.replica import (
    ReplicaRow,
    RowChange,
    TableChanges,
    apply,
    decode_version,
    encode_version,
    replicable_key,
)
from penstock.event.schema_changes import merged_schema

Mode = Literal["log", "current", "history"]

LOG_TIMES: Mapping[Layout, str] = {"events": "timestamp", "table": "_commit_timestamp"}
"""The column of a log with the commit time."""

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

# A hundredth: with tombstones of a week the table is read for it about every 100 minutes.
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
    # Where the writer compares versions (MERGE of Delta), a row is loaded only for values that were not sent.
    if guarded is not None:
        partial = {id_: each for id_, each in changes.rows.items() if _takes_values(each, guarded)}
        keys = replace(changes, rows=partial).keys_to_read()
    by_text = {key_text(key): (id_, key) for id_, key in keys.items()}
    stored = load(list(by_text)) if keys else []
    # Only rows that a change names are loaded, so a table of any size costs the memory of one epoch.
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
    # Tombstones younger than this may still be needed: a late change would create the row again.
    due = newest - age
    return due if due > 0 and (last is None or due - last >= age // _FORGET_PART) else None


def _takes_values(change: RowChange, columns: frozenset[str]) -> bool:
    # `base` is the row that the change takes values from. A change with all columns needs none.
    return change.base is not None and bool(columns - change.values.keys() - change.key.keys())


def _stored(row: ReplicaRow, key: Image) -> StoredRow:
    return {
        **row.values,
        **key,
        KEY: key_text(row.key),
        VERSION: encode_version(row.version),
        TIMESTAMP: _whole_us(row.timestamp),
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

    @property
    def is_deletion(self) -> bool:
        """Whether this only says that there is no row."""
        return self.ended_by == self.version


@dataclass(slots=True)
class History:
    """The history of one table through an epoch. `schema` has the columns of its events.

    A change that is older than the newest one of its row, such as a dead letter that is replayed, becomes a version
    between its neighbours. So that it cannot become the valid one, a deletion of a row that the table does not have is
    a version too, which ends when it begins.
    """

    load: Load
    load_open: Callable[[], list[StoredRow]]
    """Returns all rows that are valid now; only a TRUNCATE needs it."""
    load_versions: Load
    """Returns all versions of rows; only a late change needs it."""
    schema: TableSchema = field(default_factory=lambda: TableSchema(()))
    _last: dict[str, _Row] = field(default_factory=dict)
    _written: dict[tuple[str, Version], _Row] = field(default_factory=dict)
    _versions: dict[str, list[_Row]] = field(default_factory=dict)
    """All versions of the rows that have late changes, in their order."""

    def add(self, events: Iterable[ChangeEvent]) -> list[StoredRow]:
        """Apply the events of the epoch, in the order of their versions; return the rows that are new or changed.

        Raises:
            NotReplicableError: an event has no primary key.
        """
        # Filtered once, because two passes over the events follow.
        events = [event for event in events if event.op not in (Op.MESSAGE, Op.SCHEMA)]
        for event in events:
            self.schema = merged_schema(self.schema, event.schema)
        # One read for all keys of the epoch.
        self._remember(self.load(sorted({key_text(key) for event in events for key in _keys(event)})))
        late = []
        for event in events:
            # A TRUNCATE ends every row that is valid, also rows that this epoch does not name.
            if event.op is Op.TRUNCATE:
                self._remember(self.load_open())
                for row in list(self._last.values()):
                    self._end(row, event, deleted=True)
            # A late change needs all versions of its row, and such changes are rare, so they are read only now.
            elif not self._add(event):
                late.append(event)
        if late:
            self._load_versions(sorted({key_text(key) for event in late for key in _keys(event)}))
            for event in late:
                self._add_late(event)
        return [self._stored(row) for row in self._written.values()]

    def _add(self, event: ChangeEvent) -> bool:
        """Add a change that is newer than all others of its row; return False if it is not."""
        key, old_key = event.key or {}, changed_key(event)
        places = [key_text(each) for each in ([key] if old_key is None else [key, old_key])]
        known = [self._last.get(each) for each in places]
        # An equal version is a repeat. It goes the way of late changes too, which finds the version and does
        # nothing.
        if any(row is not None and row.newest >= event.version for row in known):
            return False
        # The old key is the last: a change of the key takes its values from there.
        last = known[-1]
        valid = last if last is not None and last.ended_by is None else None
        gone = event.op is Op.DELETE or old_key is not None
        if valid is not None:
            self._end(valid, event, deleted=gone)
        # The row is unknown here, but a later change that is older than this deletion must not become valid.
        elif gone:
            gone_key = key if old_key is None else old_key
            self._write(_deletion(places[-1], gone_key, event, event.version, event.timestamp))
        if event.op is not Op.DELETE:
            # The new key had a row that was not deleted before: it ends where the moved row begins.
            if old_key is not None and known[0] is not None:
                self._end(known[0], event, deleted=False)
            self._write(_version(places[0], event, valid))
        return True

    def _add_late(self, event: ChangeEvent) -> None:
        """Add a change between the versions of its row that are older and newer. A repeated one changes nothing."""
        key, old_key = event.key or {}, changed_key(event)
        base = None
        if event.op is Op.DELETE or old_key is not None:
            base = self._delete_late(key if old_key is None else old_key, event)
        if event.op is Op.DELETE:
            return
        text = key_text(key)
        versions = self._versions.get(text, [])
        # The version is written already: this is a repeat.
        if any(row.version == event.version for row in versions):
            return
        before = self._valid_at(text, event)
        row = _version(text, event, before if old_key is None else base)
        # The late version takes over the end of the version that it divides.
        if before is not None:
            row.ended_at, row.ended_by, row.deleted = before.ended_at, before.ended_by, before.deleted
            self._cut(before, event, deleted=False)
        # Nothing was valid at that time, so the version ends where the next one begins.
        elif after := next((each for each in versions if each.version > event.version), None):
            row.ended_at, row.ended_by, row.deleted = after.timestamp, after.version, after.is_deletion
        self._write(row)

    def _delete_late(self, key: Image, event: ChangeEvent) -> _Row | None:
        """End the version that is valid at the moment of a late change, and return it as it was; None: there is none.

        If a later deletion ended it, that deletion becomes a version: it still ends what comes between the two.
        """
        text = key_text(key)
        before = self._valid_at(text, event)
        if before is not None:
            later = replace(before)
            self._cut(before, event, deleted=True)
            # The later deletion still has to end what comes between.
            if later.ended_by is not None and later.ended_at is not None and later.deleted:
                self._write(_deletion(text, key, event, later.ended_by, later.ended_at))
            return later
        # A repeated deletion finds that its version has ended the row.
        if not any(row.ended_by == event.version for row in self._versions.get(text, ())):
            self._write(_deletion(text, key, event, event.version, event.timestamp))
        return None

    def _valid_at(self, text: str, event: ChangeEvent) -> _Row | None:
        """Return the version that is valid when a late change comes."""
        older = (row for row in reversed(self._versions.get(text, ())) if row.version < event.version)
        # `ended_by` is exclusive: at that version the next one begins.
        row = next(older, None)
        return None if row is None or (row.ended_by is not None and row.ended_by <= event.version) else row

    def _cut(self, row: _Row, event: ChangeEvent, *, deleted: bool) -> None:
        row.ended_at, row.ended_by, row.deleted = event.timestamp, event.version, deleted
        self._written[row.text, row.version] = row

    def _end(self, row: _Row, event: ChangeEvent, *, deleted: bool) -> None:
        # A TRUNCATE meets rows that are newer: they stay.
        if row.ended_by is None and row.version < event.version:
            row.ended_at, row.ended_by, row.deleted = event.timestamp, event.version, deleted
            self._written[row.text, row.version] = row

    def _write(self, row: _Row) -> None:
        self._written[row.text, row.version] = row
        last = self._last.get(row.text)
        # The version before it ends when it begins, so both may be equally new.
        if last is None or last.newest <= row.newest:
            self._last[row.text] = row
        if row.text in self._versions:
            insort(self._versions[row.text], row, key=_version_of)

    def _load_versions(self, texts: list[str]) -> None:
        versions = {(each[KEY], each[VERSION]): _row_of(each) for each in self.load_versions(texts)}
        # Versions of this epoch replace what was loaded: the table does not have them yet.
        for row in self._written.values():
            if row.text in texts:
                versions[row.text, encode_version(row.version)] = row
        self._versions = {text: [] for text in texts}
        for row in sorted(versions.values(), key=_version_of):
            self._versions[row.text].append(row)

    def _remember(self, stored: Iterable[StoredRow]) -> None:
        for each in stored:
            row, known = _row_of(each), self._last.get(each[KEY])
            # A row may be loaded twice, as a valid one and as a deletion; the newer one counts.
            if known is None or known.newest < row.newest:
                self._last[each[KEY]] = row

    def _stored(self, row: _Row) -> StoredRow:
        return {
            **row.values,
            KEY: row.text,
            VERSION: encode_version(row.version),
            TIMESTAMP: _whole_us(row.timestamp),
            DELETED: row.deleted,
            VALID_TO: None if row.ended_at is None else _whole_us(row.ended_at),
            ENDED_BY: None if row.ended_by is None else encode_version(row.ended_by),
        }


def _row_of(stored: StoredRow) -> _Row:
    ended = stored[ENDED_BY]
    return _Row(
        stored[KEY],
        decode_version(stored[VERSION]),
        {name: value for name, value in stored.items() if not name.startswith(PREFIX)},
        stored[TIMESTAMP],
        stored[VALID_TO],
        None if ended is None else decode_version(ended),
        stored[DELETED],
    )


def _version(text: str, event: ChangeEvent, valid: _Row | None) -> _Row:
    """Return the version that an event makes of its row; `valid` has the values of columns that were not sent."""
    plain = plain_images(event.schema)(event.after) or {}
    # A CREATE has all of its columns; columns that it does not send are NULL and not the old values.
    values = plain if valid is None or event.op is Op.CREATE else valid.values | plain
    return _Row(text, event.version, values, event.timestamp)


def _deletion(text: str, key: Image, event: ChangeEvent, version: Version, timestamp: int) -> _Row:
    """Return the version of a row that is gone: it ends when it begins, and has the key only."""
    values = plain_images(event.schema)(key) or {}
    return _Row(text, version, values, timestamp, timestamp, version, deleted=True)


def _whole_us(nanoseconds: int) -> int:
    """Round the time of a change down to microseconds, as tables have them; its version has all digits."""
    return nanoseconds // 1000 * 1000


def _version_of(row: _Row) -> Version:
    return row.version


def _keys(event: ChangeEvent) -> list[Image]:
    if event.op is Op.TRUNCATE:
        return []
    key, old = replicable_key(event), changed_key(event)
    return [key] if old is None else [key, old]


def _enc_hook(value: object) -> object:
    if isinstance(value, Interval):
        return value.parts()
    raise NotImplementedError(f"a key holds a {type(value).__name__}")


_encode = msgspec.json.Encoder(enc_hook=_enc_hook, decimal_format="string").encode
