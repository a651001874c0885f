"""Reads closed slices of a slot's log with ordinary queries: where they can end, and their records.

The rules are in `slice`. The slot is peeked, and moves only when a slice was processed (`commit`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from penstock.errors import PositionLostError, SetupError, UnavailableError
from penstock.extras import extra_packages
from penstock.io.change_streams.backoff import Backoff
from penstock.io.change_streams.status import UnreachableError
from penstock.io.postgres.initial_scan.copied_rows import CopiedRows
from penstock.io.postgres.logged_rows import chosen_records
from penstock.io.postgres.preflight import SLOT, Slot, check_slot, check_source
from penstock.io.postgres.record import LogRecord, LogTransaction, Table, format_lsn
from penstock.io.postgres.slice import LogSlice, records_of
from penstock.io.postgres.source import ChangeStream, Connection
from penstock.io.postgres.transactions import TransactionReader
from penstock.tables import EVERY_TABLE, TableSelection

if TYPE_CHECKING:
    from penstock.io.postgres.client import Client

Answer = TypeVar("Answer")
_WHOLE_LOG = (1 << 31) - 1
"""More changes than a query may ask for: the position ends it."""


@dataclass(frozen=True, slots=True)
class SliceReader:
    """One slot, the connection to its server, and the tables that are read. Picklable."""

    stream: ChangeStream
    connection: Connection
    unavailable_seconds: float
    selection: TableSelection = EVERY_TABLE

    def check(self) -> Slot:
        """Return the slot, after the checks that the Beam source makes.

        Raises:
            SetupError: the slot or a publication does not exist, or cannot be read in slices.
            PositionLostError: the server has removed log that the slot needs.
            UnavailableError: the server did not answer for `unavailable_seconds`.
        """

        def ask(client: Client) -> Slot:
            slot = check_source(self.stream, client.rows, create_slot=False)
            assert slot is not None  # without create_slot, a slot that does not exist is an error
            return self._readable(slot)

        return self._ask(ask)

    def _readable(self, slot: Slot) -> Slot:
        if slot.two_phase:
            raise SetupError(
                f"{self.stream}: the slot was created with two_phase, and a transaction may be prepared in one slice "
                "and committed in another. Create a slot without it, or read this one with "
                "ReadFromPostgresChangeStream"
            )
        return slot

    def now(self) -> int:
        """Return the end of the server's log."""
        return self._ask(lambda client: client.now().lsn)

    def check_position(self, start: int) -> None:
        """Check that the slot still has the log from a position on.

        Raises:
            PositionLostError: it does not.
        """
        self._ask(lambda client: self._check_position(client, start))

    def _check_position(self, client: Client, start: int) -> None:
        slot = check_slot(self.stream, client.rows(SLOT, (self.stream.slot,)))
        if self._readable(slot).confirmed_lsn > start:
            raise PositionLostError(
                f"{self.stream}: the slot has moved on to {format_lsn(slot.confirmed_lsn)}, and the query needs the "
                f"log from {format_lsn(start)}. The slot was dropped and created again, or another consumer uses it. "
                "The changes between are lost: read the tables again, and start with a slot of its own and a new "
                "checkpointLocation"
            )

    def read(self, part: LogSlice, start: int = 0) -> Iterator[Sequence[LogRecord]]:
        """Yield the records of a slice in groups that are not empty, without transactions before `start` (nanoseconds).

        Until the first record, a server that does not answer, or a slot that another task holds, is asked again.

        Raises:
            ChangeStreamError: the server refused it; the message says what to do.
            UnavailableError: the server did not answer for `unavailable_seconds`, or the connection broke after the
                first record. The task that reads may be tried again.
        """
        return self._until_the_first(lambda: self._read_once(part, start))

    def _read_once(self, part: LogSlice, start: int) -> Iterator[Sequence[LogRecord]]:
        def wanted(transaction: LogTransaction | None, table: Table | None) -> bool:
            is_selected = table is None or self.selection.has(table.schema, table.name)
            return is_selected and (transaction is None or transaction.commit_timestamp >= start)

        with self._client() as client, self._client() as copying:
            # Before each attempt: a peek at a slot that has moved begins later, without an error.
            self._check_position(client, part.start)
            client.take_slot()
            # With their own times, records do not depend on earlier transactions, which a repeated read may not see.
            reader = TransactionReader(
                client.describe_table, client.near_transaction_id(), 0, has_own_times=True
            )
            with copying.pull(_WHOLE_LOG, end=part.end) as messages:
                for records in records_of(part, messages, reader):
                    if (chosen := chosen_records(records, wanted)) is not None:
                        yield chosen

    def rows(self, table: str) -> Iterator[CopiedRows]:
        """Yield the rows of a table as they are at the moment of the first request, all at one snapshot.

        `table` is ``schema.name``. Raises what `read` raises.
        """
        return self._until_the_first(lambda: self._rows_once(table))

    def _rows_once(self, table: str) -> Iterator[CopiedRows]:
        from penstock.io.postgres.published_table import rows_now

        with self._client() as client:
            yield from rows_now(client, self.stream, table)

    def _until_the_first(self, read: Callable[[], Iterator[Answer]]) -> Iterator[Answer]:
        """Yield what `read` yields; it is called again until it has yielded something."""
        backoff = Backoff("PostgreSQL", UnavailableError)
        while True:
            has_answer = False
            try:
                for answer in read():
                    has_answer = True
                    yield answer
                return
            except UnreachableError as error:
                # Another try would yield the same records again.
                if has_answer:
                    raise UnavailableError(f"{self.stream}: {error}") from error
                backoff.failed(str(error), self.unavailable_seconds)
                time.sleep(backoff.remaining_pause())

    def commit(self, end: int) -> None:
        """Let the server remove its log before a position. The slot is never moved back."""
        self._ask(lambda client: client.advance(end))

    def columns(self, table: str) -> Table:
        """Return a published table as it is now; `table` is ``schema.name``.

        Raises:
            SetupError: no publication has it.
        """
        from penstock.io.postgres.published_table import published_table

        return self._ask(lambda client: published_table(client, self.stream, table)).table

    def _client(self) -> Client:
        with extra_packages("postgres"):
            from penstock.io.postgres.client import Client

        return Client(self.stream, self.connection, application=self.connection.reader_name)

    def _ask(self, question: Callable[[Client], Answer]) -> Answer:
        with self._client() as client:
            backoff = Backoff("PostgreSQL", UnavailableError)
            return backoff.ask(lambda: question(client), self.unavailable_seconds)
