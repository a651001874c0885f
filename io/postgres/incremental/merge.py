"""The snapshots of one log reader: its engine and its worker, and the records that they add to the log.

All methods are called by the thread that reads the log, except `stop`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any, NamedTuple

from penstock.errors import ChangeStreamError
from penstock.io.change_streams.incremental.answers import WorkerAnswers
from penstock.io.change_streams.incremental.channels import signal_of_row
from penstock.io.change_streams.incremental.engine import SnapshotEngine
from penstock.io.change_streams.incremental.options import SnapshotOptions, initial_request
from penstock.io.change_streams.incremental.progress import INITIAL, SnapshotProgress
from penstock.io.change_streams.incremental.worker import SnapshotWorker
from penstock.io.change_streams.status import UnreachableError
from penstock.io.postgres.incremental.chunks import SnapshotRow, key_name, key_places, parse_snapshot
from penstock.io.postgres.incremental.held_read_view import HeldReadView
from penstock.io.postgres.position import ReadView
from penstock.io.postgres.record import UNCHANGED, ChangeKind, LogRecord, LogTransaction, Table

_LOGGER = logging.getLogger(__name__)
_END_OF_TIME = 1 << 64
"""A position above every LSN: the log was read to the end of the read."""
Blocks = tuple[tuple[str, int, bool], ...]
"""What is to be read of tables; see `Position`."""
_PRUNE_FROM = 64
"""Transactions that are not known to be visible, from which on the server is asked. They are a part of the
checkpoint.
"""


class Added(NamedTuple):
    """Records that a snapshot adds to the log, and the progress after them."""

    records: Sequence[Any]
    progress: SnapshotProgress
    recent: tuple[int, ...]


class SnapshotMerge(WorkerAnswers):
    """Adds the rows of snapshots to the log.

    `progress` and `recent` are a part of the reader's position: the tables that remain to be read, and the emitted
    transactions that may not be visible to other sessions yet.
    """

    def __init__(
        self,
        worker: SnapshotWorker,
        options: SnapshotOptions,
        name: str,
        progress: SnapshotProgress,
        recent: Sequence[int],
        held: HeldReadView,
        initial: ReadView | None,
        *,
        notifications: bool,
        dead_letters: bool,
        visible: Callable[[], Any],
        blocks: Callable[[Sequence[str]], Blocks],
        close: Callable[[], None],
    ) -> None:
        """`name`: of the stream, for reports. `visible` asks which transactions are visible now, `blocks` how large
        tables are; `close` ends that.
        """
        engine = SnapshotEngine(
            progress, recent=recent, parallel_tables=options.parallel_tables, chunk_rows=options.chunk_rows
        )
        super().__init__(engine, worker, name, notifications=notifications, dead_letters=dead_letters)
        self._options, self._visible, self._blocks, self._close = options, visible, blocks, close
        self._held, self._initial = held, initial
        self._contained = None if initial is None else parse_snapshot(initial.visible)
        # Where the log was when the last row was read. It was before this reader began if the view has no name.
        self._scanned_at = -1 if initial is not None and not initial.name else None
        self._finishes_tables = self._scanned_at is not None
        self._prune_at = _PRUNE_FROM
        self._recent: tuple[int, ...] = tuple(recent)
        self._keys: dict[Table, list[int]] = {}
        self._place, self._numbers = (-1, -1), count(1)
        if options.takes_signals:
            worker.poll_channels({name: _thawed(at) for name, at in progress.channels})

    @property
    def progress(self) -> SnapshotProgress:
        return self._engine.progress

    @property
    def recent(self) -> tuple[int, ...]:
        # Asked for each record of the log, so the tuple is made again only if the list has changed.
        if len(self._engine.recent) != len(self._recent) or self._engine.recent[-1:] != list(
            self._recent[-1:]
        ):
            self._recent = tuple(self._engine.recent)
        return self._recent

    @property
    def initial(self) -> ReadView | None:
        """The snapshot of the database that an initial snapshot began with, until the log was read to its end and the
        server has released it."""
        return self._initial

    def begin_scan(self, stopped: Callable[[], bool]) -> bool:
        """Return whether rows are to be read at one snapshot of the database, before the log is read.

        `plan` then says which. Other readers read them: this one waits until it is stopped.
        """
        if not self._wants_initial:
            self._end_scan()
            return False
        scans = self._engine.progress.snapshots[0].tables or ()
        is_begun = any(scan.cursor or scan.rows or scan.scanned for scan in scans)
        if self._initial is None:
            # Rows were emitted without a held snapshot, or after it was lost: the rest continues between the changes.
            if is_begun:
                return False
            try:
                self._initial = self._held.begin(stopped)
            except ChangeStreamError as error:
                self._give_up(str(error))
                return False
            self._contained = parse_snapshot(self._initial.visible)
        elif self._initial.name and is_begun:
            self._give_up("an earlier version of Penstock has begun it")
        elif self._initial.name and not self._held.resume(self._initial):
            self._give_up("the server does not hold it any more")
        return self.is_scanning

    @property
    def _wants_initial(self) -> bool:
        return self._has_initial and not self._engine.progress.paused

    @property
    def _has_initial(self) -> bool:
        current = self._engine.progress.current
        return current is not None and current.kind == INITIAL

    def plan(self) -> Blocks:
        """Return what is to be read; empty while the tables are not known, or if the server refuses to say it.

        Raises:
            UnreachableError: `begin_scan` again later.
        """
        current = self._engine.progress.current
        if not self.is_scanning or current is None or not current.names:
            return ()
        try:
            return self._blocks(current.names)
        except UnreachableError:
            raise
        except ChangeStreamError as error:
            self._give_up(str(error))
            return ()

    def _ask(self) -> None:
        # Only for the list of tables: the rows at the held snapshot are read in ranges, by others.
        if self._held.name:
            self._ask_for_tables()
        else:
            super()._ask()

    @property
    def is_scanning(self) -> bool:
        """Whether rows remain that are read before the log."""
        return bool(self._held.name) and self._wants_initial

    def _give_up(self, reason: str) -> None:
        _LOGGER.warning(
            "%s: the rest of the initial snapshot is not read at its first snapshot of the database: %s. "
            "They are read as they are now, between the changes, and may follow changes of the same row",
            self._name,
            reason,
        )
        self._held.release()
        self._end_scan()
        self._engine.restart()

    def _end_scan(self) -> None:
        # The server holds the snapshot on: another worker may have to repeat the last rows; see `acknowledged`.
        self._held.name = ""
        if self._initial is not None and self._initial.name:
            self._initial = self._initial._replace(name="")

    def acknowledged(self, lsn: int) -> None:
        """Note that a checkpoint has a position from `lsn` on."""
        if self._scanned_at is not None and lsn > self._scanned_at:
            self._scanned_at = None
            self._held.release()

    @property
    def is_unfinished(self) -> bool:
        """Whether rows are still to be read, and not paused."""
        progress = self._engine.progress
        return bool(progress.snapshots) and not progress.paused

    @property
    def waits_for_log(self) -> bool:
        """Whether rows wait for the log to reach a position."""
        return self._engine.waits_for_stream

    def reopened(self) -> None:
        """Drop what was read: the server may have crashed, and lost commits that were not yet in its log."""
        self._engine.restart()

    def begin_again(self) -> None:
        """Begin with a snapshot of all tables: changes were lost."""
        self._engine.progress = self._engine.progress.with_initial(initial_request())
        self._engine.recent, self._asked = [], ""
        self._held.release()
        self._initial = self._contained = self._scanned_at = None
        self._engine.restart()

    def note(self, record: LogRecord, timestamp: int, lsn: int) -> list[Any] | None:
        """Note a record that is about to be emitted; return what to emit before it. None: the record is not emitted.

        It is a signal, or a change that the rows of an initial snapshot contain.
        """
        engine, transaction, table = self._engine, record.transaction, record.table
        if transaction is None or table is None:
            return []
        contained = self._contains(transaction)
        # The records of a transaction are neighbours, so the last id tells whether it was noted.
        if not contained and (not engine.recent or engine.recent[-1] != transaction.id):
            self.note_transactions((transaction.id,))
        if str(table) == self._options.signal_table:
            signal = signal_of_row(record.new) if record.kind is ChangeKind.INSERT and record.new else None
            reports = engine.receive(signal) if signal is not None else ()
            return self._reports(reports, timestamp) or None
        if contained:
            return None
        if engine.is_idle:
            return []
        if record.kind is ChangeKind.TRUNCATE:
            engine.truncated(transaction.id, str(table))
            return []
        return self._rows(self._change(record, transaction.id, table), timestamp, lsn, self._is_incremental)

    def passes(self, table: Table | None) -> bool:
        """Return whether records of a table need no `note` if their transactions are noted: no rows are read."""
        if self._initial is not None or not self._engine.is_idle:
            return False
        return not self._options.signal_table or str(table) != self._options.signal_table

    def note_transactions(self, ids: Iterable[int]) -> None:
        """Note that changes of transactions are about to be emitted."""
        engine = self._engine
        for id_ in ids:
            engine.emitted(id_)
        if len(engine.recent) >= self._prune_at:
            engine.prune(self._visible().sees)
            # A transaction may stay invisible for long: do not ask again for each new one.
            self._prune_at = max(_PRUNE_FROM, 2 * len(engine.recent))

    def _contains(self, transaction: LogTransaction) -> bool:
        # A server that crashed may use the ids of transactions again that it has lost. They have later timestamps.
        return (
            self._initial is not None
            and self._contained is not None
            and self._contained.sees(transaction.id)
            and transaction.commit_timestamp <= self._initial.timestamp
        )

    def _change(self, record: LogRecord, transaction: int, table: Table) -> list[SnapshotRow]:
        places = self._keys.get(table)
        if places is None:
            places = self._keys[table] = key_places(table)
        if not places:
            return []
        keys = []
        # An update may move a row to another key, and a chunk may have it under either key.
        for row in (record.old, record.new):
            if row is not None:
                key = tuple([row[place] for place in places])
                if key not in keys:
                    keys.append(key)
        whole = record.new is None or record.old_is_full or UNCHANGED not in record.new
        name = "" if whole else key_name(keys[-1])
        return self._engine.change(transaction, str(table), keys, whole=whole, name=name, moved=len(keys) > 1)

    def advance(self, lsn: int, timestamp: int, *, at_end: bool = False) -> list[Added]:
        """Return what is to be emitted here: the log was read to `lsn`, a place between two transactions.

        `at_end`: no change follows.
        """
        added: list[Added] = []
        reports = self._take_answers()
        if self._finishes_tables:
            self._finishes_tables = False
            reports += self._engine.finish_scanned()
        if self._held.name:
            self._watch_scan()
        if self._initial is not None and not self._initial.name:
            # Kept until it is released: another reader may continue here, and has to release it then.
            if self._held.is_held:
                self._scanned_at = lsn if self._scanned_at is None else self._scanned_at
            # A snapshot that is not finished stays the one that has begun: after a restart no other one begins, whose
            # rows would contain deletes of rows that were emitted.
            elif lsn >= self._initial.lsn and not self._has_initial:
                self._initial = self._contained = None
        if reports or self._failed:
            records = self._reports(reports, timestamp) + self._failures(timestamp)
            added.append(Added(records, self._engine.progress, self.recent))
        # Asked before each emission: after the last one of a snapshot, the next snapshot is the current one.
        incremental = self._is_incremental
        for emission in self._engine.reached(_END_OF_TIME if at_end else lsn):
            rows = self._rows(emission.rows, timestamp, lsn, incremental)
            records = [*rows, *self._reports(emission.notifications, timestamp)]
            added.append(Added(records, emission.progress, self.recent))
            incremental = self._is_incremental
        self._ask()
        return added

    def _watch_scan(self) -> None:
        self._held.keep()
        progress = self._engine.progress
        if progress.paused:
            self._give_up("it was paused")
        elif not self._wants_initial:
            self._end_scan()

    @property
    def _is_incremental(self) -> bool:
        current = self._engine.progress.current
        return current is not None and current.kind != INITIAL

    def _rows(
        self, rows: Sequence[SnapshotRow], timestamp: int, lsn: int, incremental: bool
    ) -> list[LogRecord]:
        # Chunks that are emitted at one place share their numbers: nothing else tells rows without a key apart.
        if (timestamp, lsn) != self._place:
            self._place, self._numbers = (timestamp, lsn), count(1)
        return [
            LogRecord(
                ChangeKind.READ,
                timestamp,
                None,
                next(self._numbers),
                lsn,
                True,
                table,
                row,
                incremental=incremental,
            )
            for table, row in rows
        ]

    def stop(self) -> None:
        """End the threads."""
        self._worker.stop()
        self._close()
        self._held.close()


def _thawed(value: Any) -> Any:
    return [_thawed(each) for each in value] if isinstance(value, tuple) else value
