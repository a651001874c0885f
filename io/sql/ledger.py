"""The ledger of the SQL sink: one row for each writer, which is updated in the transaction of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import psycopg

from penstock.io.sql.statements import LEDGER, TableName
from penstock.io.staging.delivery import Delivery, LedgerEntry, Refusal


class Ledger:
    """The entries of a schema, through one session."""

    def __init__(self, session: psycopg.Connection[Any], schema: str) -> None:
        self._session, self._table = session, TableName(schema, LEDGER)

    def create_entry(self, writer: str) -> None:
        """Create an empty entry if there is none, in a separate transaction, so that other sessions see it."""
        self._session.execute(
            f"insert into {self._table} (writer, generation, epoch, refused) values (%s, -1, -1, '[]') "
            "on conflict do nothing",
            (writer,),
        )

    def lock(self, writer: str) -> tuple[LedgerEntry | None, tuple[Refusal, ...]]:
        """Return the entry of a writer. Another transaction of the same writer waits here until this one has ended."""
        query = (
            f"select generation, epoch, driver, refused::text from {self._table} where writer = %s for update"
        )
        ((generation, epoch, driver, refused),) = self._session.execute(query, (writer,)).fetchall()
        if epoch < 0:
            return None, ()
        return LedgerEntry(generation, epoch, driver), msgspec.json.decode(refused, type=tuple[Refusal, ...])

    def end_paused(self, writer: str) -> None:
        """End the session that holds the entry of a writer, if it has waited for its client for longer than the limit.

        The client is a driver that was paused in the middle of a batch, or a slow one. Both send the batch again.
        """
        # The xmax of a locked row is the transaction that has the lock.
        self._session.execute(
            f"select pg_terminate_backend(pid) from pg_stat_activity, {self._table} as entry "
            "where entry.writer = %s and backend_xid = entry.xmax and wait_event = 'ClientRead' "
            "and now() - xact_start > current_setting('lock_timeout')::interval",
            (writer,),
        )

    def write(self, delivery: Delivery, refused: Sequence[Refusal]) -> None:
        """Replace the entry of the delivery's writer, in the open transaction."""
        self._session.execute(
            f"update {self._table} set generation = %s, epoch = %s, driver = %s, refused = %s, "
            "updated_at = now() where writer = %s",
            (*delivery.position, msgspec.json.encode(refused).decode(), delivery.writer),
        )
