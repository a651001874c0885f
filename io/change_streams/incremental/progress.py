"""The remaining work of snapshots, as one value. It is a part of the source's checkpoint. Pure.

    progress, reports = SnapshotProgress().receive(signal)
    progress, reports = progress.resolved("1", ["public.orders"])
    progress = progress.advanced("public.orders", cursor, rows=10)
    progress, reports = progress.finished("public.orders", ScanStatus.SUCCEEDED)

Only the first snapshot is read; the others wait for it. Each method changes nothing that it does not name, and a signal
for a snapshot that does not exist changes nothing.

Growth: one entry for each table that is not finished, and the keys of rows that must be read again. The engine limits
their number (`engine.MAX_REPAIRS`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Any, NamedTuple

from penstock.io.change_streams.frontier import Scan
from penstock.io.change_streams.incremental.notifications import Notification, NotificationType, ScanStatus
from penstock.io.change_streams.incremental.signals import (
    ExecuteSnapshot,
    PauseSnapshot,
    ResumeSnapshot,
    Signal,
    StopSnapshot,
    matches,
)

INITIAL, INCREMENTAL = "initial", "incremental"

REPAIRS_IN_BLOCK = 500
"""Maximum number of keys in one block of `TableScan.repairs`."""

Notifications = tuple[Notification, ...]

Tables = Sequence[str] | Mapping[str, int]
"""Names of tables, or an estimate of the number of rows of each; 0: unknown."""


@dataclass(frozen=True, slots=True)
class TableScan:
    """A table that is not finished.

    Args:
        cursor: the last emitted row, in the form of the source; the empty text is the beginning.
        rows: how many rows were emitted.
        scanned: all chunks were read.
        repairs: keys of rows, in the form of the source, that must be read by their key: a change of them was
            emitted that lacks columns. The keys are in blocks: each change has a position with all of them, and
            positions share their full blocks.
        estimate: about how many rows the table has; 0: unknown.
    """

    table: str
    condition: str = ""
    cursor: str = ""
    rows: int = 0
    scanned: bool = False
    repairs: tuple[tuple[str, ...], ...] = ()
    estimate: int = 0

    @property
    def is_read(self) -> bool:
        """Whether nothing remains to be read."""
        return self.scanned and not self.repairs


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One snapshot. `tables` None: the source has not yet said which tables the signal means."""

    request: ExecuteSnapshot
    kind: str = INCREMENTAL
    tables: tuple[TableScan, ...] | None = None

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def names(self) -> tuple[str, ...]:
        """The tables that are not finished."""
        return tuple(scan.table for scan in self.tables or ())

    def notification(self, type_: NotificationType, **more: Any) -> Notification:
        return Notification(type_, self.id, self.kind, self.names, **more)


class ScanResult(NamedTuple):
    """What other readers have read of a table: `rows` rows.

    `unread`: rows remain, those that satisfy `condition` or, without one, all: they are read again.
    """

    rows: int
    unread: bool = False
    condition: str = ""

    def applied(self, scan: TableScan) -> TableScan:
        """Return the scan of the table afterwards."""
        condition = self.condition if self.unread else scan.condition
        return replace(scan, rows=scan.rows + self.rows, scanned=not self.unread, condition=condition)


@dataclass(frozen=True, slots=True)
class SnapshotProgress:
    """All snapshots that are not finished, in order. `channels`: how far each channel of signals was read."""

    snapshots: tuple[Snapshot, ...] = ()
    paused: bool = False
    channels: tuple[tuple[str, Any], ...] = ()

    @property
    def current(self) -> Snapshot | None:
        """The snapshot that is read."""
        return self.snapshots[0] if self.snapshots else None

    @property
    def scans(self) -> tuple[Scan, ...]:
        """The tables of the current snapshot that are not finished, for progress."""
        tables = (self.current.tables if self.current else None) or ()
        return tuple(Scan(each.table, each.rows, each.estimate) for each in tables)

    @property
    def unresolved(self) -> Snapshot | None:
        """The current snapshot, if the source has not yet said which tables it has."""
        current = self.current
        return current if current is not None and current.tables is None else None

    def has_finished(self, id_: str, channel: str, item: str) -> bool:
        """Whether a request was taken from a channel whose position has `item`, and all its rows are emitted."""
        return item in (self.channel(channel) or ()) and all(each.id != id_ for each in self.snapshots)

    def scan(self, table: str) -> TableScan | None:
        """Return the scan of a table in the current snapshot."""
        scans = (self.current.tables if self.current else None) or ()
        return next((scan for scan in scans if scan.table == table), None)

    def channel(self, name: str) -> Any:
        """Return how far a channel was read; None: not at all."""
        return dict(self.channels).get(name)

    def with_channel(self, name: str, position: Any) -> SnapshotProgress:
        """Return the progress after a channel was read up to `position`, a JSON value."""
        return replace(self, channels=tuple(sorted({**dict(self.channels), name: _frozen(position)}.items())))

    def with_initial(self, request: ExecuteSnapshot) -> SnapshotProgress:
        """Return the progress with one initial snapshot, which replaces all other snapshots."""
        return replace(self, snapshots=(Snapshot(request, INITIAL),), paused=False)

    def followed(
        self, joined: Mapping[str, str], left: Sequence[str], id_: str
    ) -> tuple[SnapshotProgress, Notifications]:
        """Return the progress after tables have joined, whose rows are to be read, and others have left.

        Args:
            joined: by table, the SQL condition of its rows, empty for all rows.
            id_: of their snapshot. If another one that is not finished has it, it gets a number.
        """
        progress, reports = self._stopped([re.escape(name) for name in left]) if left else (self, ())
        if not joined:
            return progress, reports
        taken = {snapshot.id for snapshot in progress.snapshots}
        ids = chain([id_], (f"{id_}-{number}" for number in count(2)))
        request = ExecuteSnapshot(
            next(each for each in ids if each not in taken),
            # A request has patterns, so names are escaped.
            tuple(re.escape(name) for name in joined),
            tuple((re.escape(name), condition) for name, condition in joined.items() if condition),
        )
        return replace(progress, snapshots=(*progress.snapshots, Snapshot(request))), reports

    def receive(self, signal: Signal) -> tuple[SnapshotProgress, Notifications]:
        """Return the progress after a signal."""
        match signal:
            case ExecuteSnapshot():
                if any(snapshot.id == signal.id for snapshot in self.snapshots):
                    return self, ()  # the same request through two channels
                return replace(self, snapshots=(*self.snapshots, Snapshot(signal))), ()
            case StopSnapshot():
                return self._stopped(signal.tables)
            case PauseSnapshot():
                return self._set_paused(True, NotificationType.PAUSED)
            case ResumeSnapshot():
                return self._set_paused(False, NotificationType.RESUMED)

    def _set_paused(self, paused: bool, type_: NotificationType) -> tuple[SnapshotProgress, Notifications]:
        if self.current is None or self.paused == paused:
            return self, ()
        return replace(self, paused=paused), (self.current.notification(type_),)

    def _stopped(self, patterns: Sequence[str]) -> tuple[SnapshotProgress, Notifications]:
        remaining: list[Snapshot] = []
        reports: list[Notification] = []
        for snapshot in self.snapshots:
            if snapshot.tables is None and not patterns:
                reports.append(snapshot.notification(NotificationType.ABORTED))
                continue
            if snapshot.tables is None:
                # The tables are not known yet, so only the same patterns can be taken out.
                kept_patterns = tuple(name for name in snapshot.request.tables if name not in patterns)
                if kept_patterns:
                    remaining.append(
                        replace(snapshot, request=replace(snapshot.request, tables=kept_patterns))
                    )
                else:
                    reports.append(snapshot.notification(NotificationType.ABORTED))
                continue
            stopped = [scan for scan in snapshot.tables if not patterns or matches(patterns, scan.table)]
            kept = replace(snapshot, tables=tuple(scan for scan in snapshot.tables if scan not in stopped))
            reports += [_scan_ended(kept, scan, ScanStatus.STOPPED) for scan in stopped]
            if kept.tables:
                remaining.append(kept)
            elif stopped:
                reports.append(kept.notification(NotificationType.ABORTED))
        return self._with_snapshots(remaining), tuple(reports)

    def resolved(
        self,
        snapshot_id: str,
        tables: Tables,
        problems: Mapping[str, tuple[ScanStatus, str]] | None = None,
    ) -> tuple[SnapshotProgress, Notifications]:
        """Return the progress after the source has said which tables the current snapshot has.

        `problems`: why a table, or a name that the signal has, cannot be read.
        """
        current = self.unresolved
        if current is None or current.id != snapshot_id:
            return self, ()
        estimates, keys = tables if isinstance(tables, Mapping) else {}, current.request.keys
        scans = tuple(
            TableScan(
                table,
                _condition(current.request, table),
                # Rows that are read by their keys are repairs of a table of which nothing else is read.
                scanned=bool(keys),
                repairs=_appended((), keys),
                estimate=len(keys) or estimates.get(table, 0),
            )
            for table in dict.fromkeys(tables)
        )
        # The scans have the keys now. A second copy of them would be a part of every position.
        started = replace(current, tables=scans, request=replace(current.request, keys=()))
        reports = [started.notification(NotificationType.STARTED)]
        for name, (status, problem) in (problems or {}).items():
            reports.append(
                started.notification(
                    NotificationType.TABLE_SCAN_COMPLETED, table=name, rows=0, status=status, problem=problem
                )
            )
        if not scans:
            reports.append(started.notification(NotificationType.COMPLETED))
            return self._with_snapshots(self.snapshots[1:]), tuple(reports)
        return self._with_snapshots((started, *self.snapshots[1:])), tuple(reports)

    def advanced(self, table: str, cursor: str, rows: int) -> SnapshotProgress:
        """Return the progress after `rows` rows of a table up to `cursor` were emitted."""
        return self._with_scan(table, lambda scan: replace(scan, cursor=cursor, rows=scan.rows + rows))

    def emitted(self, table: str, rows: int) -> SnapshotProgress:
        """Return the progress after `rows` rows of a table were emitted before their turn."""
        return self._with_scan(table, lambda scan: replace(scan, rows=scan.rows + rows))

    def scanned(self, table: str) -> SnapshotProgress:
        """Return the progress after the last chunk of a table."""
        return self._with_scan(table, lambda scan: replace(scan, scanned=True))

    def read_by_scan(self, results: Mapping[str, ScanResult]) -> SnapshotProgress:
        """Return the progress after other readers have emitted rows of tables, in no order."""
        current = self.current
        if current is None or current.tables is None:
            return self
        tables = tuple(
            scan if (result := results.get(scan.table)) is None else result.applied(scan)
            for scan in current.tables
        )
        return replace(self, snapshots=(replace(current, tables=tables), *self.snapshots[1:]))

    def restarted(self, table: str) -> SnapshotProgress:
        """Return the progress with a table at its beginning."""
        return self._with_scan(table, lambda scan: replace(scan, cursor="", scanned=False))

    def without_repairs(self, table: str) -> SnapshotProgress:
        """Return the progress with no rows of a table that must be read by their key."""
        return self._with_scan(table, lambda scan: replace(scan, repairs=()))

    def with_repairs(self, table: str, keys: Sequence[str]) -> SnapshotProgress:
        """Return the progress with further rows that must be read by their key. No key in `keys` may wait already."""
        return self._with_scan(table, lambda scan: replace(scan, repairs=_appended(scan.repairs, keys)))

    def repaired(self, table: str, keys: Collection[str], rows: int) -> SnapshotProgress:
        """Return the progress after rows of the first block were read; `rows` of them exist and were emitted."""
        return self._with_scan(
            table,
            lambda scan: replace(scan, repairs=_without(scan.repairs, keys), rows=scan.rows + rows),
        )

    def finished(
        self, table: str, status: ScanStatus, problem: str = ""
    ) -> tuple[SnapshotProgress, Notifications]:
        """Return the progress without a table of the current snapshot."""
        current, scan = self.current, self.scan(table)
        if current is None or current.tables is None or scan is None:
            return self, ()
        rest = replace(current, tables=tuple(each for each in current.tables if each.table != table))
        return self._with_rest(rest, [_scan_ended(rest, scan, status, problem)])

    def finished_by_scan(self) -> tuple[SnapshotProgress, Notifications]:
        """Return the progress without the tables that other readers have read to their end."""
        current = self.current
        if current is None or current.tables is None:
            return self, ()
        names, reports, nameless = list(current.names), [], replace(current, tables=())
        for scan in current.tables:
            if scan.is_read:
                names.remove(scan.table)
                # All at once: a progress for each table would take time with the square of their number.
                report = _scan_ended(nameless, scan, ScanStatus.SUCCEEDED)
                reports.append(replace(report, tables=tuple(names)))
        rest = replace(current, tables=tuple(scan for scan in current.tables if not scan.is_read))
        return self._with_rest(rest, reports) if reports else (self, ())

    def _with_rest(
        self, rest: Snapshot, reports: list[Notification]
    ) -> tuple[SnapshotProgress, Notifications]:
        """Return the progress with the rest of the current snapshot, and its report if that is empty."""
        if rest.tables:
            return self._with_snapshots((rest, *self.snapshots[1:])), tuple(reports)
        reports.append(rest.notification(NotificationType.COMPLETED))
        return self._with_snapshots(self.snapshots[1:]), tuple(reports)

    def _with_snapshots(self, snapshots: Iterable[Snapshot]) -> SnapshotProgress:
        remaining = tuple(snapshots)
        # A pause ends with the last snapshot: otherwise the next request would wait without a visible reason.
        return replace(self, snapshots=remaining, paused=self.paused and bool(remaining))

    def _with_scan(self, table: str, change: Any) -> SnapshotProgress:
        current = self.current
        if current is None or current.tables is None:
            return self
        tables = tuple(change(scan) if scan.table == table else scan for scan in current.tables)
        return replace(self, snapshots=(replace(current, tables=tables), *self.snapshots[1:]))

    def document(self) -> list[Any]:
        """Return the progress as JSON values."""
        return [
            [_snapshot_document(snapshot) for snapshot in self.snapshots],
            self.paused,
            [list(channel) for channel in self.channels],
        ]

    @staticmethod
    def from_document(document: Sequence[Any]) -> SnapshotProgress:
        """Return the progress of which `document` gave this list."""
        snapshots, paused, channels = document
        return SnapshotProgress(
            tuple(_snapshot(each) for each in snapshots),
            paused,
            tuple((name, _frozen(position)) for name, position in channels),
        )


def _appended(blocks: tuple[tuple[str, ...], ...], keys: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    *full, last = blocks or ((),)
    keys = (*last, *keys)
    return (*full, *(keys[at : at + REPAIRS_IN_BLOCK] for at in range(0, len(keys), REPAIRS_IN_BLOCK)))


def _without(blocks: tuple[tuple[str, ...], ...], keys: Collection[str]) -> tuple[tuple[str, ...], ...]:
    first = tuple(key for key in blocks[0] if key not in keys) if blocks else ()
    return (first, *blocks[1:]) if first else blocks[1:]


def _frozen(value: Any) -> Any:
    """Return a JSON value with tuples in place of lists, so that equal positions compare equal."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _condition(request: ExecuteSnapshot, table: str) -> str:
    return next((condition for name, condition in request.conditions if matches([name], table)), "")


def _scan_ended(snapshot: Snapshot, scan: TableScan, status: ScanStatus, problem: str = "") -> Notification:
    if status is ScanStatus.SUCCEEDED and not scan.rows:
        status = ScanStatus.EMPTY
    return snapshot.notification(
        NotificationType.TABLE_SCAN_COMPLETED,
        table=scan.table,
        rows=scan.rows,
        status=status,
        problem=problem,
    )


def _scan_document(scan: TableScan) -> list[Any]:
    repairs = list(chain(*scan.repairs))
    document = [scan.table, scan.condition, scan.cursor, scan.rows, scan.scanned, repairs]
    # Earlier versions of Penstock wrote no estimate.
    return [*document, scan.estimate] if scan.estimate else document


def _snapshot_document(snapshot: Snapshot) -> list[Any]:
    request = snapshot.request
    tables = None
    if snapshot.tables is not None:
        tables = [_scan_document(each) for each in snapshot.tables]
    document = [
        request.id,
        list(request.tables),
        [list(pair) for pair in request.conditions],
        list(request.surrogate_key),
        request.chunk_rows,
        snapshot.kind,
        tables,
    ]
    # Earlier versions of Penstock knew no keys.
    return [*document, list(request.keys)] if request.keys else document


def _snapshot(document: Sequence[Any]) -> Snapshot:
    id_, patterns, conditions, surrogate_key, chunk_rows, kind, tables, *keys = document
    request = ExecuteSnapshot(
        id_,
        tuple(patterns),
        tuple((name, text) for name, text in conditions),
        tuple(surrogate_key),
        chunk_rows,
        *map(tuple, keys),
    )
    scans = None
    if tables is not None:
        scans = tuple(
            TableScan(table, condition, cursor, rows, scanned, _appended((), repairs), *estimate)
            for table, condition, cursor, rows, scanned, repairs, *estimate in tables
        )
    return Snapshot(request, kind, scans)
