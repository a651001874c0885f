"""Sends each table in a separate transaction, so that a table can be refused without the others; in the driver."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from penstock.errors import PenstockError, ServiceError
from penstock.event.model import ChangeEvent, Source
from penstock.io.sql.errors import SqlTargetError
from penstock.io.sql.ledger import table_writer
from penstock.io.sql.sender import SqlSender
from penstock.io.sql.target import SqlTarget
from penstock.io.staging.batch import StagedBatch
from penstock.io.staging.delivery import Delivery, RefusalError, RowRefusedError
from penstock.io.staging.epochs import EpochDelivery
from penstock.io.staging.parked_files import EpochChanges, TableEpochs
from penstock.io.staging.send import refused_row
from penstock.io.staging.send_tables import staged_events
from penstock.io.staging.table_parking import refusals_of_tables
from penstock.io.staging.table_sources import TableSources
from penstock.publish import current_attempt
from penstock.tables import TableSelection


class TableSender(SqlSender):
    """One connection of a driver that sends tables. `generation` is the driver's."""

    def __init__(self, target: SqlTarget, generation: int) -> None:
        super().__init__(target, skip_refused=False)
        self._generation = generation
        self._entries: set[str] = set()

    def take_over(self, delivery: EpochDelivery) -> None:
        """Keep earlier drivers of the sink from writing."""
        if delivery.writer not in self._taken_over:
            with self._errors():
                self._ledger.take_over(delivery.writer, self._generation, sends_tables=True)
            self._taken_over.add(delivery.writer)

    def shards_sent(self, deliveries: Sequence[Delivery]) -> set[Delivery]:
        """Return the batches that an earlier driver has sent as shards."""
        writers = [each.writer for each in deliveries]

        def sent() -> set[Delivery]:
            with self._session.transaction():
                return self._ledger.shards_sent(deliveries)

        return self._in_time(writers, (), sent)

    def create_entry(self, table: TableEpochs) -> None:
        """Create the entry of a table in the ledger if there is none."""
        writer = _writer(table)
        if writer not in self._entries:
            with self._errors():
                self._ledger.create_entry(writer)
            self._entries.add(writer)

    def send_table(self, table: TableEpochs, *, skip_refused: bool) -> None:
        """Write the epochs of a table that it does not have, with its entry in the ledger.

        Raises:
            FencedError: a newer driver has taken over.
            RowRefusedError: it refuses a row, and `skip_refused` is false.
            other PenstockErrors: as `Sender.send`.
        """
        self._in_time([_writer(table)], table.events, lambda: self._write_table(table, skip_refused))

    def _write_table(self, table: TableEpochs, skip_refused: bool) -> None:
        with self._session.transaction():
            entry, _ = self._ledger.lock(_writer(table))
            self._ledger.check_generation(table.newest.writer, self._generation)
            if table.is_delivered(entry):
                return
            events = table.after(entry)
            # The old row of a changed key may be in another shard, which is sent in another epoch.
            one_shard = self._target.shards == 1
            try:
                refused = self._write_rows(events, range(len(events)), one_shard, skip_refused=skip_refused)
            except RefusalError as error:
                row = error.refusal
                raise RowRefusedError(refused_row(self._target.name, events[row.index], row)) from error
            reasons = {events[each.index].id: each.reason for each in refused}
            self._ledger.write(_writer(table), table.newest.position, reasons)


class ConnectionRefusedByTargetError(Exception):
    """The target refuses a connection or the ledger, which concerns all tables. The cause says why."""


class SqlTables:
    """The tables of a database as a `penstock.io.staging.table_parking.ParkingTarget`.

    Keeps connections from epoch to epoch, at most `SqlTarget.shards` of them. With `skip_refused` a row that a table
    refuses is noted in the ledger, and the table goes on. Without it, and when parked changes are resumed, the whole
    table is refused. `repeat` repeats work while the database does not answer.
    """

    def __init__(
        self,
        target: SqlTarget,
        selection: TableSelection,
        *,
        skip_refused: bool,
        repeat: Callable[[Callable[[], Any]], Any],
    ) -> None:
        self._target, self._selection = target, selection
        self._skip_refused, self._repeat = skip_refused, repeat
        self._sources = TableSources(SqlTargetError)
        self._idle: list[TableSender] = []
        # A driver has no end that this object is told.
        weakref.finalize(self, _close_all, self._idle)

    def tables_of(self, delivery: EpochDelivery, batches: Sequence[StagedBatch]) -> list[TableEpochs]:
        """See `penstock.io.staging.table_parking.ParkingTarget`."""
        generation = current_attempt().generation
        # This driver sends no shards, but the one that has staged the batches may have sent them.
        old = [each.delivery for each in batches if each.delivery.generation < generation]
        sent = self._repeat(lambda: self._shards_sent(delivery, old, generation)) if old else set()
        events: dict[str, tuple[Source, list[ChangeEvent]]] = {}
        for event in staged_events([each for each in batches if each.delivery not in sent], self._selection):
            name = str(self._target.table_of(event))
            events.setdefault(name, (event.source, []))[1].append(event)
            if event.source.table:
                self._sources.check(name, event.source)
        return [
            # In the order of versions: the events of several shards are merged.
            TableEpochs(
                name,
                source,
                (EpochChanges(delivery, sorted(those, key=lambda event: event.version)),),
            )
            for name, (source, those) in events.items()
        ]

    def publish_tables(self, tables: Sequence[TableEpochs]) -> list[PenstockError | None]:
        """See `penstock.io.staging.table_parking.ParkingTarget`."""
        generation = current_attempt().generation

        def publish(table: TableEpochs) -> None:
            source = table.source
            # Parked changes of a table that is left out by now.
            if source.table and not self._selection.has(source.schema, source.table):
                return
            with self._sender(table.newest, generation) as sender:
                with _concerning_all_tables():
                    sender.create_entry(table)
                sender.send_table(table, skip_refused=self._skip_refused and table.current is None)

        try:
            return refusals_of_tables(tables, publish, self._target.shards)
        except ConnectionRefusedByTargetError as error:
            raise error.__cause__ or error from None

    def raise_refused(self, tables: Sequence[TableEpochs], errors: Sequence[PenstockError | None]) -> None:
        """See `penstock.io.staging.table_parking.ParkingTarget`."""
        for error in errors:
            if error is not None:
                raise error

    def _shards_sent(
        self, delivery: EpochDelivery, deliveries: Sequence[Delivery], generation: int
    ) -> set[Delivery]:
        with self._sender(delivery, generation) as sender:
            return sender.shards_sent(deliveries)

    @contextmanager
    def _sender(self, delivery: EpochDelivery, generation: int) -> Iterator[TableSender]:
        """Lend a connection. It is closed after an error, because its state is not known then."""
        with _concerning_all_tables():
            try:
                sender = self._idle.pop()
            except IndexError:
                sender = TableSender(self._target, generation)
            sender.take_over(delivery)
        try:
            yield sender
        except BaseException:
            sender.close()
            raise
        self._idle.append(sender)


@contextmanager
def _concerning_all_tables() -> Iterator[None]:
    """Raise an error that will not pass as one that parks no table."""
    try:
        yield
    except ServiceError as error:
        if error.retryable:
            raise
        raise ConnectionRefusedByTargetError(str(error)) from error


def _close_all(idle: list[TableSender]) -> None:
    for each in idle:
        each.close()


def _writer(table: TableEpochs) -> str:
    return table_writer(table.newest.writer, table.name)
