"""Turns what a connection sends into steps to claim: positions, repeats, the end, and rows of snapshots. Pure.

Steps come in the order of the log, which is the order of commits. A transaction of any size passes through in parts: a
position inside of a transaction is the number of its records that were claimed. Snapshots (`incremental.merge`) add
rows of tables: initial ones before the log is opened, others between the changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from penstock.errors import PositionLostError
from penstock.io.change_streams.flat import Ended, FlatPosition
from penstock.io.change_streams.incremental.progress import SnapshotProgress
from penstock.io.change_streams.partition_stream import PendingStep
from penstock.io.postgres.log_decoder import UnknownPrepared
from penstock.io.postgres.logged_rows import LoggedRows
from penstock.io.postgres.position import Position, ReadView
from penstock.io.postgres.record import LogRecord, LogTransaction, Table, format_lsn
from penstock.io.postgres.schema_watch import Look
from penstock.io.postgres.transactions import Step, TransactionEnd

MAX_IN_STEP = 8
"""Records of a transaction that are claimed together at most."""
_STEP_BYTES = 600
"""What a queued record costs in memory besides its message, about: measured with CPython 3.11 and one column."""
_ROW_BYTES = 130
"""The same for a row of `LoggedRows`."""

Wanted = Callable[[LogTransaction | None, Table | None], bool]
"""Whether the records of a transaction (None: a message outside of one) and a table (None: messages) are emitted."""


class CaughtUp(NamedTuple):
    """No transaction that was committed before `timestamp`, in nanoseconds, is unread; the log ends at `lsn`.

    `prepared`: see `TransactionEnd`.
    """

    lsn: int
    timestamp: int
    prepared: int = 0


class Merge(Protocol):
    """The snapshots of a reader; see `incremental.merge`."""

    @property
    def progress(self) -> SnapshotProgress: ...
    @property
    def recent(self) -> tuple[int, ...]: ...
    @property
    def waits_for_log(self) -> bool: ...
    @property
    def initial(self) -> ReadView | None: ...
    def begin_scan(self, stopped: Callable[[], bool]) -> bool: ...
    @property
    def is_scanning(self) -> bool: ...
    def plan(self) -> tuple[tuple[str, int, bool], ...]: ...
    def wait(self, seconds: float) -> None: ...
    def acknowledged(self, lsn: int) -> None: ...
    def reopened(self) -> None: ...
    def begin_again(self) -> None: ...
    def note(self, record: LogRecord, timestamp: int, lsn: int) -> list[Any] | None: ...
    def passes(self, table: Table | None) -> bool: ...
    def note_transactions(self, ids: Iterable[int]) -> None: ...
    def follow_tables(self, joined: Mapping[str, str], left: Sequence[str], id_: str) -> None: ...
    @property
    def is_unfinished(self) -> bool: ...
    def advance(self, lsn: int, timestamp: int, *, at_end: bool) -> Sequence[Any]: ...
    def stop(self) -> None: ...


class LogSteps:
    """The steps of reading a slot; `position` and `watermark` are those after the last step that was returned.

    A step is (bytes in memory, records to emit, mark): a mark is the `FlatPosition` after the step, or `Ended`. It has
    one record or a few of one transaction, and perhaps its end.
    """

    merge: Merge | None = None
    """The snapshots; None: there are none."""

    def __init__(self, slot: str, at: FlatPosition, wanted: Wanted, end: int | None) -> None:
        """`wanted`: the position passes the records that it leaves out. `end`: nanoseconds, inclusive."""
        self.position: Position = at.position
        self.watermark = at.watermark
        self._slot, self._wanted, self._end = slot, wanted, end
        self._has_ended = False

    def steps(self, arrived: Iterable[tuple[Step | CaughtUp | UnknownPrepared, int]]) -> list[PendingStep]:
        """Return the steps of what has arrived, without what was read before.

        Raises:
            PositionLostError: the server did not send changes that were committed.
        """
        steps: list[PendingStep] = []
        joined, transaction, records, memory = 0, None, [], 0
        for item, size in self._apart(arrived):
            # A step costs as much as the decoding of its record, so neighbours of one transaction share one. They have
            # one timestamp and come in order: if the first was not read before and is not past the end, the others are
            # not either, and only the number of claimed records changes.
            if (
                0 < joined < MAX_IN_STEP
                and type(item) is LogRecord
                and item.transaction is transaction
                and (self.merge is None or self.merge.passes(item.table))
            ):
                joined += 1
                memory += size + _STEP_BYTES
                if self._wanted(item.transaction, item.table):
                    records.append(item)
                self.position = Position(self.position.lsn, item.sequence, *self.position[2:])
                continue
            if joined and type(item) is TransactionEnd:
                # It is the end of their transaction, and belongs to their step.
                self.position = _after(self.position, item)
                steps[-1] = memory + size + _STEP_BYTES, records, FlatPosition(self.position, self.watermark)
                joined = 0
                continue
            if joined > 1:
                steps[-1] = memory, records, FlatPosition(self.position, self.watermark)
            joined = 0
            step = self._rows(item, size) if isinstance(item, LoggedRows) else self._step(item, size)
            if step is None:
                continue
            steps.append(step)
            # While rows are read, each record may have some that precede it, so it is a step of its own.
            if (
                type(item) is LogRecord
                and not self._has_ended
                and (self.merge is None or self.merge.passes(item.table))
            ):
                joined, transaction = int(item.transaction is not None), item.transaction
                memory, records = step[0], list(step[1])
        if joined > 1:
            steps[-1] = memory, records, FlatPosition(self.position, self.watermark)
        return steps

    def _apart(
        self, arrived: Iterable[tuple[Step | CaughtUp | UnknownPrepared, int]]
    ) -> Iterator[tuple[Step | CaughtUp | UnknownPrepared, int]]:
        """Yield what has arrived, without `LoggedRows` that were read before.

        While rows of a snapshot may have to precede records, their records come one by one.
        """
        for item, size in arrived:
            if type(item) is not LoggedRows:
                yield item, size
                continue
            # Invariant: whoever takes an item has moved `position` behind it before the next one is asked for.
            rows = item.after(self.position.lsn, self.position.claimed)
            if rows is None:
                continue
            if self._pass(rows):
                for part in self._up_to_end(rows):
                    yield part, size if part is item else part.size
                continue
            before: LoggedRows | None = None
            for own in rows.by_transaction():
                # Only the last transaction of a batch comes with its end. Each one names the end of the one before.
                if before is not None:
                    yield TransactionEnd(own.transactions[0].previous_end_lsn, before.newest), 0
                if self._pass(own):
                    yield own, own.size
                else:
                    for record, (_, payload) in zip(own, own.messages, strict=True):
                        yield record, len(payload)
                before = own

    def _pass(self, rows: LoggedRows) -> bool:
        """Whether no record of `rows` is a signal, or may have rows of a snapshot before it."""
        return self.merge is None or all(map(self.merge.passes, rows.tables_of_rows().values()))

    def _up_to_end(self, rows: LoggedRows) -> Iterable[LoggedRows]:
        """Return rows in two parts if the read ends between them."""
        end, first = self._end, 0
        if end is None or rows.newest <= end:
            return (rows,)
        # Times never fall, so all rows after the first later one are after the end too.
        while first < len(rows) and rows.timestamps[first] <= end:
            first += 1
        return (rows[:first], rows[first:]) if first else (rows,)

    def _rows(self, rows: LoggedRows, size: int) -> PendingStep | None:
        """Return the step of rows."""
        watermark = max(self.watermark, rows.newest)
        if self._has_ended:
            return None
        # All rows are on one side of the end: `_up_to_end` has divided them, or they are one transaction.
        if self._end is not None and watermark > self._end:
            return self._end_here()
        position, last = self.position, rows.transactions[-1]
        # The end has no prepared transaction: the decoder makes a batch of transactions only while none is prepared.
        if rows.transactions[0] is not last:
            position = _after(position, TransactionEnd(last.previous_end_lsn, watermark))
        position = Position(position.lsn, rows.sequences[-1], *position[2:])
        if (merge := self.merge) is not None:
            merge.note_transactions(transaction.id for transaction in rows.transactions)
            position = position._replace(snapshots=merge.progress, recent=merge.recent, initial=merge.initial)
        self.position, self.watermark = position, watermark
        chosen = rows.chosen(self._wanted)
        memory = size + len(rows) * _ROW_BYTES
        return memory, () if chosen is None else chosen, FlatPosition(self.position, watermark)

    def _step(
        self, item: LogRecord | TransactionEnd | CaughtUp | UnknownPrepared, size: int
    ) -> PendingStep | None:
        position, watermark = self.position, self.watermark
        records: Sequence[Any] = ()
        if self._has_ended:
            return None
        if isinstance(item, LogRecord):
            if self._is_past(item):
                return None
            if self._end is not None and max(watermark, item.event_timestamp) > self._end:
                return self._end_here()
            # Noted before the position moves: the rows that precede the record belong to the position before it.
            records = self._noted(item)
            if item.transaction is not None:
                # Not `_replace`, which costs as much as the rest of the step and would run for each record.
                position = Position(position.lsn, item.sequence, *position[2:])
            else:  # a message between two transactions; the `TransactionEnd` that follows it adds nothing
                position = position._replace(lsn=item.lsn + 1, claimed=0, previous_end=item.lsn)
            # The log is not in the order of commit timestamps, and the watermark must not go back.
            watermark = max(watermark, item.event_timestamp)
        elif isinstance(item, TransactionEnd):
            # The server repeats whole transactions after a new connection. Their ends were passed before.
            if item.lsn <= position.lsn:
                return None
            position, watermark = _after(position, item), max(watermark, item.event_timestamp)
        elif isinstance(item, UnknownPrepared):
            # A commit before the position was read on an earlier connection.
            if item.lsn >= position.lsn:
                raise PositionLostError(_unknown_prepared(item))
            return None
        else:
            if item.lsn < position.lsn:
                return None
            # `claimed` stays: after a new connection the rest of a transaction, which ends later, is still to come.
            position, watermark = (
                position._replace(lsn=item.lsn, prepared=item.prepared),
                max(watermark, item.timestamp),
            )
        if self._end is not None and watermark > self._end:
            return self._end_here()
        if (merge := self.merge) is not None:
            position = position._replace(snapshots=merge.progress, recent=merge.recent, initial=merge.initial)
        # Only here: a step that was refused above leaves the position as it was.
        self.position, self.watermark = position, watermark
        return size + _STEP_BYTES, records, FlatPosition(position, watermark)

    def _end_here(self) -> PendingStep | None:
        """End the read, unless rows of a snapshot are still to come: `added` ends it after them."""
        self._has_ended = True
        if self.merge is not None and self.merge.is_unfinished:
            return None
        return 0, (), Ended(self._slot)

    def _noted(self, record: LogRecord) -> Sequence[Any]:
        """Return what is emitted for a record: rows of a snapshot that must precede it, and the record, if wanted."""
        if self.merge is None:
            return (record,) if self._wanted(record.transaction, record.table) else ()
        before = self.merge.note(record, self.watermark, self.position.lsn)
        if before is None:
            return ()
        return (*before, record) if self._wanted(record.transaction, record.table) else before

    def _is_past(self, record: LogRecord) -> bool:
        """Whether a record was read before the connection was opened: the server repeats whole transactions."""
        position = self.position
        if record.transaction is None:
            return record.lsn < position.lsn
        # `claimed` is 0 except in the first transaction after `lsn`, to which it belongs.
        start = record.transaction.commit_lsn
        return start < position.lsn or record.sequence <= position.claimed

    def looked(self, look: Look) -> None:
        """Note what the published tables are now.

        The position of the next step gets both the tables and the request for the rows of those that joined, so a
        checkpoint has both or neither: the rows are requested once.
        """
        self.position = self.position._replace(published=look.published)
        if self.merge is not None and (look.joined or look.left):
            self.merge.follow_tables(look.joined, look.left, f"new_tables-{format_lsn(self.position.lsn)}")

    # Snapshots.

    def begin_scan(self, view: ReadView) -> None:
        """Begin to read the rows of an initial snapshot."""
        # A transaction that the snapshot does not contain may have an earlier commit timestamp. Its event timestamp is
        # the watermark then. With an `end` in the past, the rows must not end the read before such a transaction.
        now = view.timestamp if self._end is None else min(view.timestamp, self._end)
        self.position = self.position._replace(initial=view)
        self.watermark = max(self.watermark, now)

    def planned(self, blocks: tuple[tuple[str, int, bool], ...]) -> PendingStep:
        """Return the step after which the rows of an initial snapshot are read; see `Position`."""
        self.position = self.position._replace(blocks=blocks)
        return 0, (), FlatPosition(self.position, self.watermark)

    def added(self, merge: Merge, *, at_end: bool = False) -> list[PendingStep]:
        """Return the steps that snapshots add at the end of what was read. `at_end`: rows wait for no change."""
        steps: list[PendingStep] = []
        # After the end no change is emitted, so the rows of a snapshot need not wait for the changes that they contain.
        for records, progress, recent in merge.advance(
            self.position.lsn, self.watermark, at_end=at_end or self._has_ended
        ):
            self.position = self.position._replace(snapshots=progress, recent=recent, initial=merge.initial)
            steps.append((len(records) * _STEP_BYTES, records, FlatPosition(self.position, self.watermark)))
        if self._has_ended and not merge.is_unfinished:
            steps.append((0, (), Ended(self._slot)))
        return steps


def _after(position: Position, end: TransactionEnd) -> Position:
    """Return the position after the end of a transaction."""
    # Not `_replace`, which takes three times as long: a transaction may have one record.
    return Position(
        end.lsn,
        0,
        position.system,
        end.lsn,
        position.snapshots,
        position.recent,
        end.prepared,
        position.initial,
        position.published,
        position.blocks,
    )


def row_bytes(steps: Iterable[PendingStep]) -> int:
    """Return the size of the values of the rows of snapshots in steps, as the server sent them."""
    records = (record for _, emitted, _ in steps for record in emitted if isinstance(record, LogRecord))
    rows = (record.new for record in records if record.new is not None)
    return sum(len(value) for row in rows for value in row if isinstance(value, (str, bytes)))


def _unknown_prepared(item: UnknownPrepared) -> str:
    return (
        f"the prepared transaction {item.gid!r} was committed at {format_lsn(item.lsn)}, and the server does not send "
        "its changes any more, because another consumer of the slot acknowledged them. They are lost: take a new "
        "snapshot, and start with a slot of its own and a new checkpoint folder"
    )
