"""Merges chunks of tables with the changes of one ordered stream, by the visibility rule. Pure.

    engine = SnapshotEngine(progress)
    for request in engine.requests(): …           # the source reads the chunk, in another thread
    engine.arrived(chunk)
    engine.change(version, table, keys, …)        # each change of the stream, before it is emitted: rows to emit first
    engine.truncated(version, table)
    for emission in engine.reached(position): …   # rows to emit here, with the progress after them

**The visibility rule.** A chunk comes with the database's own statement of which transactions it sees. A change that
a chunk sees happened before the chunk's rows, so the rows are emitted after it. A change that the chunk does not see
happened after them. If such a change has all columns, it replaces the row, which is dropped. If it lacks columns (a
large value that did not change), the row is emitted before it. A truncated table has none of the rows. The other rows
are emitted where the stream has reached a position that was taken after the chunk was read: every change that the
chunk sees was emitted by then.

**Order.** No row follows a change of its key that the chunk does not see. Every change comes in its place; none is
delayed, dropped or repeated.

**Changes that are emitted before their chunk arrives.** The engine remembers the keys that changed between the
request of a chunk and its arrival. A row with such a change is dropped if the change has all columns. Otherwise it is
read by its key (a *repair*), so that every column is delivered. A chunk must also see every transaction that was
emitted before its request: a transaction can be in the log a moment before others see it. `ChunkRequest.after` names
those that the engine does not know to be visible.

**After a crash** the engine begins with the progress of the checkpoint: chunks that were not emitted are read again.

Growth: the chunks that were read ahead, the keys that changed while a chunk is read, the keys that wait for a repair,
and the transactions that are not known to be visible.

Compare "DBLog: A Watermark Based Change-Data-Capture Framework" (Netflix) and Debezium: they drop each row whose key
appears between two marks that they write to the log. `tests/property/change_streams/window.py` shows where that fails.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

from penstock.errors import SetupError
from penstock.io.change_streams.incremental.notifications import NotificationType, ScanStatus
from penstock.io.change_streams.incremental.progress import Notifications, SnapshotProgress, Tables
from penstock.io.change_streams.incremental.signals import Signal

Key = Hashable
Version = Any
"""Identifies the transaction of a change, such as a transaction id. Compared with `==`."""

MAX_READ_AHEAD = 2
"""Maximum number of chunks of one table that wait for the stream."""
MAX_ROWS_IN_EMISSION = 64
"""Maximum number of rows in one emission, except if rows share a cursor."""
MAX_REPAIRS = 100_000
"""Maximum number of rows of a table that wait for a repair: they are a part of every position. If more wait, the table
is read again from its beginning, which repairs all of them."""
MAX_TOUCHED = 100_000
"""Maximum number of changed keys that are remembered while a chunk is read. If more change, it is read again."""


class ChunkRequest(NamedTuple):
    """Rows of a table to read.

    Args:
        cursor: read the rows after it.
        keys: read the rows with these keys instead (repairs).
        after: versions that the chunk must see.
        number: identifies the request.
    """

    number: int
    table: str
    condition: str
    surrogate_key: tuple[str, ...]
    size: int
    cursor: str = ""
    keys: tuple[str, ...] = ()
    after: tuple[Version, ...] = ()


class ChunkRow(NamedTuple):
    """One row. `key`: as in `change`; None if the table has no key. `cursor`: rows with one cursor are emitted at once.

    `name`: the key in the form of `TableScan.repairs`.
    """

    key: Key | None
    cursor: str
    name: str
    value: Any


class Chunk(NamedTuple):
    """An answer. `sees`: whether the rows contain the changes of a version. `position`: of the stream, after the read.

    `is_last`: no row follows. `restarted`: the rows are the first ones of the table, because the cursor was of no use
    any more.
    """

    request: ChunkRequest
    rows: Sequence[ChunkRow]
    sees: Callable[[Version], bool]
    position: Any
    is_last: bool
    restarted: bool = False


class TableGoneError(SetupError):
    """The table does not exist any more, or the change stream does not have its changes any more."""


class FailedChunk(NamedTuple):
    """The source refused a request, also when it was repeated."""

    request: ChunkRequest
    status: ScanStatus
    problem: str


class Emission(NamedTuple):
    """Rows and reports to emit, and the progress after them."""

    rows: Sequence[Any]
    progress: SnapshotProgress
    notifications: Notifications = ()


@dataclass(slots=True)
class _Buffered:
    """A chunk that waits for the stream. A row that was dropped, or emitted before its turn, is None."""

    chunk: Chunk
    rows: list[ChunkRow | None]
    places: Mapping[Key, Sequence[int]]


@dataclass(slots=True)
class _Reading:
    """The state of one table that is being read.

    - `touched`: by key, the changes since the request of the chunk that is being read: pairs of a version and whether
      the change has all columns.
    - `truncated`: versions of truncates since then.
    - `buffered`: chunks that wait for the stream.
    - `repairing`: a chunk of repairs was requested and is not emitted yet.
    - `again`: keys that need a repair after that one.
    - `names`: all keys that wait for a repair.
    """

    cursor: str
    scanned: bool
    request: ChunkRequest | None = None
    touched: dict[Key, list[tuple[Version, bool]]] = field(default_factory=dict)
    truncated: list[Version] = field(default_factory=list)
    buffered: deque[_Buffered] = field(default_factory=deque)
    repairing: bool = False
    again: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)

    def forget_changes(self) -> None:
        self.touched, self.truncated = {}, []


class SnapshotEngine:
    """The snapshots of one stream. Not thread-safe: one thread passes changes and chunks in the order of its stream."""

    def __init__(
        self,
        progress: SnapshotProgress,
        *,
        recent: Iterable[Version] = (),
        parallel_tables: int = 2,
        chunk_rows: int = 10_240,
    ) -> None:
        """`recent`: versions that were emitted and are not known to be visible. `chunk_rows`: unless a signal says
        it.
        """
        self.progress = progress
        self.recent: list[Version] = list(recent)
        self._parallel_tables, self._chunk_rows = parallel_tables, chunk_rows
        self._tables: dict[str, _Reading] = {}
        self._snapshot_id = ""
        self._requests = 0
        self._open_tables()

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to read."""
        return not self.progress.snapshots

    @property
    def waits_for_stream(self) -> bool:
        """Whether rows wait for the stream to reach a position."""
        return any(reading.buffered for reading in self._tables.values())

    def waiting_requests(self) -> set[int]:
        """Return the numbers of the requests whose rows were not emitted yet."""
        asked = [each.request.number for each in self._tables.values() if each.request is not None]
        read = [chunk.chunk.request.number for each in self._tables.values() for chunk in each.buffered]
        return {*asked, *read}

    # Signals.

    def receive(self, signal: Signal) -> Notifications:
        """Apply a signal; return its reports, to be emitted with `progress`."""
        self.progress, reports = self.progress.receive(signal)
        self._open_tables()
        return reports

    def follow(self, joined: Mapping[str, str], left: Sequence[str], id_: str) -> Notifications:
        """Read the rows of tables that joined, and none of those that left; see `SnapshotProgress.followed`."""
        self.progress, reports = self.progress.followed(joined, left, id_)
        self._open_tables()
        return reports

    def resolve(
        self, snapshot_id: str, tables: Tables, problems: Mapping[str, tuple[ScanStatus, str]]
    ) -> Notifications:
        """Set the tables of the current snapshot; see `SnapshotProgress.resolved`."""
        self.progress, reports = self.progress.resolved(snapshot_id, tables, problems)
        self._open_tables()
        return reports

    def finish_scanned(self) -> Notifications:
        """Finish the tables that others have read; return their reports. For an engine that has requested nothing."""
        self.progress, reports = self.progress.finished_by_scan()
        # The engine has requested nothing, so it knows no more of its tables than the progress does.
        self._tables = {}
        self._open_tables()
        return reports

    def restart(self) -> None:
        """Drop all chunks: they are requested again. For a database that may have lost what a chunk has seen."""
        self._tables = {}
        self._open_tables()

    # Chunks.

    def requests(self) -> list[ChunkRequest]:
        """Return the chunks to read now. Each is returned once, until `arrived` has its answer."""
        self._open_tables()
        current = self.progress.current
        if current is None or current.tables is None or self.progress.paused:
            return []
        wanted = []
        for scan in current.tables[: self._parallel_tables]:
            reading = self._tables[scan.table]
            if reading.request is not None or len(reading.buffered) >= MAX_READ_AHEAD:
                continue
            keys: tuple[str, ...] = ()
            if scan.repairs and not reading.repairing:
                keys = scan.repairs[0]
            elif reading.scanned:
                continue
            self._requests += 1
            size = current.request.chunk_rows or self._chunk_rows
            reading.request = ChunkRequest(
                self._requests,
                scan.table,
                scan.condition,
                current.request.surrogate_key,
                size,
                reading.cursor,
                keys,
                tuple(self.recent),
            )
            reading.repairing = reading.repairing or bool(keys)
            # The chunk is read after this moment, so it sees every earlier change. `after` demands this also for
            # transactions that other sessions may not see yet.
            reading.forget_changes()
            wanted.append(reading.request)
        return wanted

    def arrived(self, answer: Chunk | FailedChunk) -> Notifications:
        """Take an answer; return its reports, to be emitted with `progress`. An answer to an old request is dropped."""
        request = answer.request
        reading = self._tables.get(request.table)
        if reading is None or reading.request != request:
            return ()
        reading.request = None
        if isinstance(answer, FailedChunk):
            # The table leaves the progress, so a later answer for it has no entry to go to.
            del self._tables[request.table]
            self.progress, reports = self.progress.finished(request.table, answer.status, answer.problem)
            return reports
        # Before `after` is checked: versions that this chunk sees need not be demanded of the next one.
        self.prune(answer.sees)
        # The chunk lacks a change that was emitted before its request, or too many keys changed to remember them all.
        if not all(map(answer.sees, request.after)) or len(reading.touched) > MAX_TOUCHED:
            reading.repairing = reading.repairing and not request.keys
            return ()  # it is requested again
        if answer.restarted:
            self.progress = self.progress.restarted(request.table)
        self._buffer(reading, answer)
        return ()

    def _buffer(self, reading: _Reading, chunk: Chunk) -> None:
        # Invariant: after this, a row is in `rows` only if no change that the chunk does not see was emitted already.
        # Rows are replaced by None and not removed, because groups and cursors refer to their indexes.
        rows: list[ChunkRow | None] = list(chunk.rows)
        # A truncate that the chunk does not see came after its rows and has removed all of them.
        if not all(map(chunk.sees, reading.truncated)):
            rows = [None] * len(rows)
        repairs = []
        places: dict[Key, list[int]] = {}
        for place, row in enumerate(chunk.rows):
            if row.key is None:
                continue
            # Changes that the chunk sees happened before its rows, so they do not matter.
            unseen = [whole for version, whole in reading.touched.get(row.key, ()) if not chunk.sees(version)]
            if not unseen:
                places.setdefault(row.key, []).append(place)
                continue
            # The changes that followed the row all lack columns: only another read of the row has the whole of it.
            if rows[place] is not None and not any(unseen):
                repairs.append(row.name)
            rows[place] = None
        if repairs:
            self._repair(chunk.request.table, reading, repairs)
        reading.forget_changes()
        # From here on `change` looks into the buffered rows, so the touched keys are no longer needed.
        reading.buffered.append(_Buffered(chunk, rows, places))
        if chunk.request.keys:
            return
        reading.scanned = chunk.is_last
        if chunk.rows:
            reading.cursor = chunk.rows[-1].cursor

    # The stream.

    def emitted(self, version: Version) -> None:
        """Note that changes of a version are emitted from now on."""
        if not self.recent or self.recent[-1] != version:
            self.recent.append(version)

    def prune(self, sees: Callable[[Version], bool]) -> None:
        """Forget the versions that are known to be visible, for every later read too."""
        self.recent = [version for version in self.recent if not sees(version)]

    def change(
        self,
        version: Version,
        table: str,
        keys: Sequence[Key],
        *,
        whole: bool,
        name: str = "",
        moved: bool = False,
    ) -> list[Any]:
        """Note a change that is about to be emitted; return the rows to emit before it.

        Args:
            keys: the key before and after the change.
            whole: the change has all columns of the row, or removes it.
            name: the new key, in the form of `TableScan.repairs`.
            moved: the row had another key.
        """
        reading = self._tables.get(table)
        if reading is None:
            return []
        first = []
        for buffered in reading.buffered:
            for key in keys:
                places = buffered.places.get(key)
                if not places or buffered.chunk.sees(version):
                    continue
                for place in places:
                    # Taken out in either case: a whole change replaces the row, and a partial one follows it, so the
                    # row goes first.
                    row, buffered.rows[place] = buffered.rows[place], None
                    if row is not None and not whole:
                        first.append(row.value)
        # One key more than the limit is remembered, so that `arrived` sees that the limit was passed.
        if reading.request is not None and len(reading.touched) <= MAX_TOUCHED:
            for key in keys:
                reading.touched.setdefault(key, []).append((version, whole))
        # A row that is emitted now has all columns, so the change after it needs no repair.
        if first:
            self.progress = self.progress.emitted(table, len(first))
        elif not whole and (moved or self._has_surrogate_key):
            # The row may have moved from rows that are still to be read to rows that were read: then no chunk has it.
            self._repair(table, reading, [name])
        return first

    @property
    def _has_surrogate_key(self) -> bool:
        return self.progress.current is not None and bool(self.progress.current.request.surrogate_key)

    def _repair(self, table: str, reading: _Reading, names: Sequence[str]) -> None:
        if reading.repairing:
            reading.again.update(names)
        # `names` keeps each key once: the blocks of the progress must not have a key twice.
        new = [name for name in dict.fromkeys(names) if name not in reading.names]
        reading.names.update(new)
        self.progress = self.progress.with_repairs(table, new)
        if len(reading.names) > MAX_REPAIRS:
            # Chunks that were read or requested go with the old `_Reading`. A chunk that was read before this change
            # may lack a moved row, and the new scan would not read its key again.
            self.progress = self.progress.restarted(table).without_repairs(table)
            self._tables[table] = _Reading("", False)

    def truncated(self, version: Version, table: str) -> None:
        """Note that all rows of a table were removed."""
        reading = self._tables.get(table)
        if reading is None:
            return
        for buffered in reading.buffered:
            if not buffered.chunk.sees(version):
                buffered.rows = [None] * len(buffered.rows)
        if reading.request is not None:
            reading.truncated.append(version)

    def reached(self, position: Any) -> Iterator[Emission]:
        """Yield what is to be emitted at this position of the stream; `progress` is advanced with each emission."""
        for table in list(self._tables):
            reading = self._tables[table]
            while reading.buffered and reading.buffered[0].chunk.position <= position:
                yield from self._emit(table, reading, reading.buffered.popleft())
                if table not in self._tables:
                    break

    def _emit(self, table: str, reading: _Reading, buffered: _Buffered) -> Iterator[Emission]:
        chunk = buffered.chunk
        if chunk.request.keys:
            found = [row.value for row in buffered.rows if row is not None]
            # Keys that changed again while the repair was read are repaired once more.
            done = set(chunk.request.keys) - reading.again
            reading.repairing, reading.again = False, set()
            reading.names -= done
            self.progress = self.progress.repaired(table, done, len(found))
            yield Emission(found, *self._settled(table, reading))
            return
        # The progress advances with each group, so that a crash between two emissions repeats neither.
        for start, end in _groups(chunk.rows):
            group = [row.value for row in buffered.rows[start:end] if row is not None]
            self.progress = self.progress.advanced(table, chunk.rows[end - 1].cursor, len(group))
            if end < len(chunk.rows):
                yield Emission(group, self.progress)
        last = group if chunk.rows else []
        if chunk.is_last:
            self.progress = self.progress.scanned(table)
        yield Emission(last, *self._settled(table, reading))

    def _settled(self, table: str, reading: _Reading) -> tuple[SnapshotProgress, Notifications]:
        """Return the progress and the reports after a chunk; the table is finished if nothing of it remains."""
        current, scan = self.progress.current, self.progress.scan(table)
        if current is None or scan is None:
            return self.progress, ()
        reports: Notifications = (
            current.notification(NotificationType.IN_PROGRESS, table=table, rows=scan.rows),
        )
        if scan.scanned and not scan.repairs and not reading.buffered and reading.request is None:
            del self._tables[table]
            self.progress, ended = self.progress.finished(table, ScanStatus.SUCCEEDED)
            reports += ended
        return self.progress, reports

    def _open_tables(self) -> None:
        """Follow the progress: forget tables that are not read any more, and open those that are read next.

        A table that was begun before a restart is open too: its changes must be noted from the first one on.
        """
        current = self.progress.current
        if current is None or current.id != self._snapshot_id:
            self._tables = {}
        self._snapshot_id = current.id if current else ""
        scans = current.tables or () if current else ()
        # A stopped table: its buffered rows must not be emitted after the report that says so.
        for table in self._tables.keys() - {scan.table for scan in scans}:
            del self._tables[table]
        for place, scan in enumerate(scans):
            begun = scan.cursor or scan.scanned or scan.repairs
            if scan.table not in self._tables and (place < self._parallel_tables or begun):
                names = set(chain(*scan.repairs))
                self._tables[scan.table] = _Reading(scan.cursor, scan.scanned, names=names)


def _groups(rows: Sequence[ChunkRow]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last place (exclusive) of groups. Rows with one cursor are never divided."""
    start = 0
    while start < len(rows):
        end = min(start + MAX_ROWS_IN_EMISSION, len(rows))
        while end < len(rows) and rows[end].cursor == rows[end - 1].cursor:
            end += 1
        yield start, end
        start = end
