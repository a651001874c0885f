"""Sends batches to a change log of BigQuery: each event exactly once.

Each writer has one write stream for each table, and appends its rows at explicit offsets. BigQuery accepts a row at an
offset once. So the question of a repeated batch is only: *which offset does its first row have?* The ledger answers it:
after each batch, for each table of the batch, the offset of the next one. docs/decisions/0023 has the proof.

- A kill between the rows and the ledger: the next try reads the ledger, appends at the same offset, is told that the
  offset exists, and asks the table which events of the batch it has.
- A driver that was paused: it appends at an old offset and is told the same.
- A stream ended: the stream that follows it is chosen once, with the number of rows of the batch that came before it.

Entries in memory are a hint: another process may have sent batches of the writer since. An offset that the server
accepts proves them. Any other answer makes the sender read the ledger again before it believes the answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from penstock.io.bigquery.errors import (
    BigQueryTargetError,
    OffsetExistsError,
    RowsRefusedError,
    StreamEndedError,
)
from penstock.io.bigquery.log_rows import LEDGER, LEDGER_FIELDS, LOG_FIELDS, log_row
from penstock.io.bigquery.rows import EncodedRow, fitting, layout_of
from penstock.io.bigquery.services import (
    DEFAULT_STREAM,
    Successor,
    Warehouse,
    WriteApi,
)
from penstock.io.bigquery.target import BigQueryTarget
from penstock.io.staging.complete_marks import Mark
from penstock.io.staging.delivery import (
    PARTLY_WRITTEN,
    Delivery,
    EventBatch,
    LedgerEntry,
    Refusal,
    RefusalError,
    Sent,
    is_delivered,
)

_EARLIER = "BigQuery refused the row in an earlier try of the batch"


class _OutdatedError(Exception):
    """An answer of the server for `table` contradicts the entries of the ledger, as they were when they were read."""

    def __init__(self, table: str) -> None:
        super().__init__(table)
        self.table = table


@dataclass(slots=True)
class _Entries:
    """The ledger of one writer: its last delivery, and the last entry of each table."""

    last: LedgerEntry | None = None
    refused: tuple[Refusal, ...] = ()
    next_offsets: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Table to stream and next offset."""


@dataclass(slots=True)
class _BatchStart:
    """Where a batch starts in a table: the row with number `before` of the batch is at `offset` of `stream`."""

    stream: str
    offset: int
    before: int = 0


class LogSender:
    """See `penstock.io.staging.delivery.Sender`."""

    def __init__(
        self,
        target: BigQueryTarget,
        skip_refused: bool,
        api: WriteApi,
        warehouse: Warehouse,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._target, self._skip_refused = target, skip_refused
        self._api, self._warehouse, self._clock = api, warehouse, clock
        self._entries: dict[str, _Entries] = {}
        self._tables: set[str] = set()

    def check(self) -> None:
        """Look for the dataset, create the ledger, and write nothing to it, to check the rights."""
        self._warehouse.require_dataset()
        self._warehouse.read_ledger("")
        self._api.check_rights(LEDGER)

    def send(self, delivery: Delivery, events: EventBatch) -> Sent:
        """Append the batch; see `Sender.send`."""
        # The hint saves a query for each batch. It is used while the server accepts the offsets that follow
        # from it.
        known = self._entries.get(delivery.writer)
        if known is not None:
            with suppress(_OutdatedError):
                return self._send(delivery, events, known, fresh=False)
        entries = self._entries[delivery.writer] = self._read(delivery.writer)
        try:
            return self._send(delivery, events, entries, fresh=True)
        except _OutdatedError as error:
            # This process was paused, and another one has sent the batch and later ones since the ledger was read.
            entries = self._entries[delivery.writer] = self._read(delivery.writer)
            if is_delivered(entries.last, delivery):
                return Sent(entries.refused)
            raise _contradiction(error.table) from None

    def mark_complete(self, job: str, sink: str, record: int, until_us: int) -> None:
        """Set the time until which the target is complete; see `penstock.publish.MarksComplete`."""
        self._warehouse.mark_complete(Mark.of(job, sink, record, until_us))

    def close(self) -> None:
        self._api.close()
        self._warehouse.close()

    def _read(self, writer: str) -> _Entries:
        rows = self._warehouse.read_ledger(writer)
        # The entry of a table may be older than the last delivery: a batch need not have rows of every table.
        last = max((row.entry for row in rows), key=_epoch, default=None)
        refused = {
            each
            # Entries of one delivery carry the same refusals, so the newest ones are enough for a repeat.
            for row in rows
            if last is not None and row.epoch == last.epoch
            for each in msgspec.json.decode(row.refused, type=list[Refusal])
        }
        next_offsets = {row.table: (row.stream, row.next_offset) for row in rows}
        return _Entries(last, tuple(sorted(refused, key=_index)), next_offsets)

    def _send(self, delivery: Delivery, events: EventBatch, entries: _Entries, *, fresh: bool) -> Sent:
        if is_delivered(entries.last, delivery):
            return Sent(entries.refused)
        refused: dict[int, Refusal] = {}
        rows = self._rows(delivery, events, refused)
        written = {}
        for table, of_table in rows.items():
            end = _TableWrite(
                self, delivery, table, of_table, entries.next_offsets.get(table), fresh, refused
            ).run()
            # A table whose rows were all refused has no confirmed offset.
            if end is not None:
                written[table] = end
        sent = tuple(refused[index] for index in sorted(refused))
        if written:
            self._write_ledger(delivery, written, sent)
        # Only after the ledger has it: a crash before makes the next sender read the ledger.
        entries.last, entries.refused = delivery.position, sent
        entries.next_offsets.update(written)
        return Sent(sent)

    def _rows(
        self, delivery: Delivery, events: EventBatch, refused: dict[int, Refusal]
    ) -> dict[str, list[EncodedRow]]:
        """Return the encoded rows by table. All rows are encoded before the first one is sent."""
        layout, tables = layout_of(LOG_FIELDS), dict[str, list[EncodedRow]]()
        for index, event in enumerate(events):
            rows = tables.setdefault(self._target.table_of(event.source), [])
            try:
                content = layout.encode(log_row(event, delivery.writer, delivery.epoch, index))
                rows.append(EncodedRow(index, content))
            except ValueError as error:
                self.refuse(refused, index, str(error))
        return tables

    def refuse(self, refused: dict[int, Refusal], index: int, reason: str) -> None:
        refusal = Refusal(index, reason)
        if not self._skip_refused:
            raise RefusalError(refusal, PARTLY_WRITTEN)
        refused[index] = refusal

    def append(self, table: str, stream: str, rows: Sequence[EncodedRow], offset: int) -> None:
        self._api.append(table, stream, layout_of(LOG_FIELDS), [row.content for row in rows], offset)

    def create_log(self, table: str) -> None:
        if table not in self._tables:
            self._warehouse.create_log(table)
            self._tables.add(table)

    def present(self, table: str, delivery: Delivery) -> list[int]:
        return self._warehouse.batch_indexes(table, delivery.writer, delivery.epoch)

    def follow(self, delivery: Delivery, table: str, stream: str, before: Callable[[], int]) -> Successor:
        """Return the stream that follows `stream`, and choose it if none was."""
        writer = delivery.writer
        # Asked before a stream is created: streams count against a quota.
        successor = self._warehouse.successor(writer, table, stream)
        if successor is not None:
            return successor
        candidate = Successor(self._api.create_stream(table), delivery.epoch, before())
        chosen = self._warehouse.choose_successor(writer, table, stream, candidate)
        # Another process has chosen first. Its choice holds, because its rows may already be there.
        if chosen.stream != candidate.stream:
            self._api.finalize(candidate.stream)
        return chosen

    def _write_ledger(
        self, delivery: Delivery, written: dict[str, tuple[str, int]], refused: tuple[Refusal, ...]
    ) -> None:
        layout = layout_of(LEDGER_FIELDS)
        text = msgspec.json.encode(refused).decode()
        now = int(self._clock() * 1e6)
        # One time for all rows of the request.
        rows = [
            layout.encode(
                {
                    "writer": delivery.writer,
                    "table_name": table,
                    "generation": delivery.generation,
                    "epoch": delivery.epoch,
                    "driver": delivery.position.driver,
                    "stream": stream,
                    "next_offset": offset,
                    "refused": text,
                    "written_at": now,
                }
            )
            for table, (stream, offset) in written.items()
        ]
        # One request: it has the entries of all tables or of none.
        self._api.append(LEDGER, DEFAULT_STREAM, layout, rows, None)


@dataclass(slots=True)
class _TableWrite:
    """The rows of one batch for one table. `known` is the entry of the table; `fresh`: it was read for this batch."""

    sender: LogSender
    delivery: Delivery
    table: str
    rows: list[EncodedRow]
    known: tuple[str, int] | None
    fresh: bool
    refused: dict[int, Refusal]

    def run(self) -> tuple[str, int] | None:
        """Append what the table lacks; return the stream and the offset of the next batch.

        None: the table has no row of the batch, because all were refused. Then no answer of the server has confirmed
        the offset, so it must not get into the ledger.

        Raises:
            _OutdatedError: an answer of the server contradicts the entry.
        """
        sender = self.sender
        sender.create_log(self.table)
        start = self._first_start()
        pending, offset, confirmed = self.rows, start.offset, False
        while pending:
            part = fitting(pending)
            try:
                sender.append(self.table, start.stream, part, offset)
                pending, offset, confirmed = pending[len(part) :], offset + len(part), True
            except RowsRefusedError as error:
                # The rows are all or none, so the others are sent again without the refused ones.
                for number, reason in error.reasons.items():
                    sender.refuse(self.refused, part[number].event_index, reason)
                pending = [row for row in pending if row.event_index not in self.refused]
            except OffsetExistsError:
                # The known offset may be old. Only an entry that was read for this batch proves a
                # contradiction.
                self._require_fresh()
                pending, number = self._missing(start)
                # The table has no more rows than the offset says, and still the offset exists: rows of another
                # batch are there.
                if start.offset + number - start.before <= offset:
                    raise _OutdatedError(self.table) from None
                offset, confirmed = start.offset + number - start.before, True
            except StreamEndedError:
                self._require_fresh()
                start = self._next_start(start)
                pending, number = self._missing(start)
                # Without a row of the batch nothing has confirmed that the stream is still the chosen one.
                offset, confirmed = start.offset + number - start.before, number > 0
        return (start.stream, offset) if confirmed else None

    def _first_start(self) -> _BatchStart:
        if self.known is not None:
            return _BatchStart(*self.known)
        self._require_fresh()
        # It may have been chosen for an earlier batch, of which all rows were refused: then it is empty.
        return _BatchStart(self.sender.follow(self.delivery, self.table, "", lambda: 0).stream, 0)

    def _next_start(self, start: _BatchStart) -> _BatchStart:
        chosen = self.sender.follow(
            self.delivery,
            self.table,
            start.stream,
            lambda: len(self.sender.present(self.table, self.delivery)),
        )
        # If it was chosen for an earlier batch, it has no rows of that batch: otherwise the ledger would name it.
        return _BatchStart(chosen.stream, 0, chosen.before if chosen.epoch == self.delivery.epoch else 0)

    def _missing(self, start: _BatchStart) -> tuple[list[EncodedRow], int]:
        """Return the rows that the table lacks, and how many rows of the batch it has."""
        # Rows of this batch only: its columns say which writer and epoch a row came with.
        present = self.sender.present(self.table, self.delivery)
        if not present:
            return [row for row in self.rows if row.event_index not in self.refused], 0
        for index in present:
            self.refused.pop(index, None)
        # Rows are appended in their order, so one that is missing before the last one was refused.
        for index in {row.event_index for row in self.rows if row.event_index < present[-1]}.difference(
            present
        ):
            self.sender.refuse(self.refused, index, _EARLIER)
        return [
            r for r in self.rows if r.event_index > present[-1] and r.event_index not in self.refused
        ], len(present)

    def _require_fresh(self) -> None:
        if not self.fresh:
            raise _OutdatedError(self.table)


def _contradiction(table: str) -> BigQueryTargetError:
    return BigQueryTargetError(
        f"the ledger of the sink contradicts the write streams of {table}: entries of {LEDGER} were removed, or rows "
        "of the log were deleted while a batch was being sent. Start with a new checkpoint folder, which is a new "
        "job, and a time before the changes that are missing"
    )


def _epoch(entry: LedgerEntry) -> int:
    return entry.epoch


def _index(refusal: Refusal) -> int:
    return refusal.index
