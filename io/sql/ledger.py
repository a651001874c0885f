"""The ledger of the SQL sink: one row for each writer, which is updated in the transaction of the batch.

| writer | entry |
|---|---|
| `Delivery.writer`, one for each shard | the last batch of the shard |
| `table_writer`, one for each table | the last epoch of a table that the driver has sent alone: tables may be parked |
| `EpochDelivery.writer`, one for each sink | the newest driver; older ones must not write |

A driver sends either shards or tables, as its program says. A program with the other choice must know what the earlier
one has sent: a shard leaves out the tables whose entry has the epoch, and a table the shards whose entry has it. The
entry of the sink keeps an older driver, which was paused, from changing these entries: a driver writes its generation
there, and locks the entries of the other kind later. Each transaction locks its own entry, and then it reads the
generation. So an older transaction has either ended when its entry is read, or it sees the newer generation and writes
nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
import psycopg

from penstock.io.sql.statements import LEDGER, TableName
from penstock.io.staging.delivery import Delivery, FencedError, LedgerEntry, Refusal, is_delivered_entry
from penstock.io.staging.epochs import EpochDelivery

NO_EPOCH = -1
"""Epoch of an entry that was created for a lock, and of the entry of a sink that has sent shards only."""
_TABLES = 0
"""Epoch of the entry of a sink that has sent tables."""


class Ledger:
    """The entries of a schema, through one session."""

    def __init__(self, session: psycopg.Connection[Any], schema: str) -> None:
        self._session, self._table = session, TableName(schema, LEDGER)

    def create_entry(self, writer: str) -> None:
        """Create an empty entry if there is none, in a separate transaction, so that other sessions see it."""
        self._session.execute(
            f"insert into {self._table} (writer, generation, epoch, refused) values (%s, -1, {NO_EPOCH}, '[]') "
            "on conflict do nothing",
            (writer,),
        )

    def take_over(self, writer: str, generation: int, *, sends_tables: bool) -> None:
        """Keep drivers of earlier generations from writing; `writer` is the sink's.

        A driver that sends shards does so too, because one that was going to send tables may have been paused before
        it has sent any.
        """
        self._session.execute(
            f"insert into {self._table} as entry (writer, generation, epoch, refused) values (%s, %s, %s, '[]') "
            "on conflict (writer) do update set generation = greatest(entry.generation, excluded.generation), "
            "epoch = greatest(entry.epoch, excluded.epoch) "
            "where entry.generation < excluded.generation or entry.epoch < excluded.epoch",
            (writer, generation, _TABLES if sends_tables else NO_EPOCH),
        )

    def check_generation(self, writer: str, generation: int) -> bool:
        """Return whether tables of a sink were sent alone at any time. The own entry must be locked.

        Raises:
            FencedError: a newer driver has taken over.
        """
        found = self._session.execute(
            f"select generation, epoch from {self._table} where writer = %s", (writer,)
        ).fetchall()
        if found and found[0][0] > generation:
            raise FencedError(
                f"a driver of generation {found[0][0]} writes as {writer}, and this one has generation {generation}. "
                "If no other driver of the job runs, the checkpoint was copied or restored from an older copy: resume "
                "from the checkpoint that wrote last"
            )
        return any(epoch == _TABLES for _, epoch in found)

    def lock(self, writer: str) -> tuple[LedgerEntry | None, str]:
        """Return the entry of a writer, and what it has about refused rows, as JSON.

        Another transaction of the same writer waits here until this one has ended.
        """
        query = (
            f"select generation, epoch, driver, refused::text from {self._table} where writer = %s for update"
        )
        ((generation, epoch, driver, refused),) = self._session.execute(query, (writer,)).fetchall()
        return _entry(generation, epoch, driver), refused

    def shards_sent(self, deliveries: Collection[Delivery]) -> set[Delivery]:
        """Return the batches that the target has, after transactions with other ones have ended."""
        writers = [each.writer for each in deliveries]
        query = (
            f"select writer, generation, epoch, driver from {self._table} where writer = any(%s) for update"
        )
        entries = {
            writer: _entry(*rest) for writer, *rest in self._session.execute(query, (writers,)).fetchall()
        }
        return {
            each
            for each in deliveries
            if is_delivered_entry(entries.get(each.writer), each.position, each.job, each.drivers)
        }

    def tables_sent(self, delivery: Delivery, names: Collection[str]) -> dict[str, Mapping[str, str]]:
        """Return the tables that have the epoch of a batch, after transactions with other ones have ended.

        The values are the rows that the table has refused in this epoch; see `refused_in`.
        """
        writers = {table_writer(_sink_writer(delivery), name): name for name in names}
        query = (
            f"select writer, generation, epoch, driver, refused::text from {self._table} where writer = any(%s) "
            "order by writer for share"
        )
        found: dict[str, Mapping[str, str]] = {}
        for writer, *entry, refused in self._session.execute(query, (list(writers),)).fetchall():
            ledger = _entry(*entry)
            if ledger and is_delivered_entry(ledger, delivery.position, delivery.job, delivery.drivers):
                found[writers[writer]] = _by_id(refused) if ledger.epoch == delivery.epoch else {}
        return found

    def refused_in(self, delivery: Delivery) -> dict[str, str]:
        """Return the reasons of the rows that tables have refused in the epoch of a batch, by the ids of events."""
        prefix = table_writer(_sink_writer(delivery), "")
        query = (
            f"select refused::text from {self._table} where starts_with(writer, %s) and epoch = %s "
            "and refused <> '{}' and refused <> '[]'"
        )
        rows = self._session.execute(query, (prefix, delivery.epoch)).fetchall()
        return {event: reason for (refused,) in rows for event, reason in _by_id(refused).items()}

    def end_paused(self, writers: Sequence[str]) -> None:
        """End the sessions that hold entries of writers, if they have waited for their client longer than the limit.

        The client is a driver that was paused in the middle of a batch, or a slow one. Both send the batch again.
        """
        # The xmax of a locked row is the transaction that has the lock.
        self._session.execute(
            f"select pg_terminate_backend(pid) from pg_stat_activity, {self._table} as entry "
            "where entry.writer = any(%s) and backend_xid = entry.xmax and wait_event = 'ClientRead' "
            "and now() - xact_start > current_setting('lock_timeout')::interval",
            (list(writers),),
        )

    def write(
        self, writer: str, position: LedgerEntry, refused: Sequence[Refusal] | Mapping[str, str]
    ) -> None:
        """Replace the entry of a writer, in the open transaction.

        `refused` are the rows of a batch, or of a table by the ids of their events.
        """
        self._session.execute(
            f"update {self._table} set generation = %s, epoch = %s, driver = %s, refused = %s, "
            "updated_at = now() where writer = %s",
            (*position, msgspec.json.encode(refused).decode(), writer),
        )


def table_writer(writer: str, table: str) -> str:
    """Return the key of the entry of a table; `writer` is the sink's."""
    return f"{writer}/table {table}"


def refused_rows(refused: str) -> tuple[Refusal, ...]:
    """Return the refused rows of a batch from the entry of its shard."""
    return msgspec.json.decode(refused, type=tuple[Refusal, ...])


def _by_id(refused: str) -> dict[str, str]:
    # An entry that was only created has an empty list.
    return {} if refused == "[]" else msgspec.json.decode(refused, type=dict[str, str])


def _entry(generation: int, epoch: int, driver: str) -> LedgerEntry | None:
    return None if epoch == NO_EPOCH else LedgerEntry(generation, epoch, driver)


def _sink_writer(delivery: Delivery) -> str:
    return sink_delivery(delivery).writer


def sink_delivery(delivery: Delivery) -> EpochDelivery:
    """Return the delivery of all shards of an epoch."""
    return EpochDelivery(delivery.sink, delivery.job, delivery.generation, delivery.epoch, delivery.drivers)
