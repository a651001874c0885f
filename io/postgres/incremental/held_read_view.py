"""Keeps one snapshot of the database for all chunks of an initial snapshot, also through a crash of the worker.

An exported snapshot lives as long as the transaction that exported it. That transaction must survive the worker, so
its session runs a loop on the server (`_HOLD`). A server does not look at the client's connection while a statement
runs. Each worker that reads at the snapshot holds an advisory lock, in a session that ends with the worker. The loop
ends when the lock was free for `HOLD_SECONDS`.

Nothing is written to the database: both transactions have no transaction id. The held snapshot keeps the server from
removing old row versions.

Source: PostgreSQL documentation, "SET TRANSACTION SNAPSHOT", "Snapshot Synchronization Functions", "Advisory Locks",
"client_connection_check_interval"; "Asynchronous Commit" for the time until a visible commit is on disk.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from psycopg import sql

from penstock.errors import ChangeStreamError
from penstock.io.change_streams.status import UnreachableError
from penstock.io.postgres.client import Client
from penstock.io.postgres.incremental.chunks import BEGIN
from penstock.io.postgres.position import ReadView
from penstock.io.postgres.record import parse_lsn
from penstock.io.postgres.source import ChangeStream, Connection

HOLD_SECONDS = 300
"""How long the server keeps the snapshot while no worker reads."""
_PREVIEW_SECONDS = 5
"""The same for a preview, which nobody continues."""
_PING_SECONDS = 10.0
_FLUSH_TICK_SECONDS = 0.02

# Each of these settings would end a session that waits. Older servers do not have all of them.
_NO_LIMITS = """
select set_config(name, '0', true) from pg_settings where name in ('statement_timeout', 'transaction_timeout',
'idle_in_transaction_session_timeout', 'client_connection_check_interval')
"""
_EXPORT = "select pg_export_snapshot(), pg_current_snapshot()::text"
# The clock is read after the snapshot: no transaction that the snapshot contains was committed later.
_END = """
select pg_current_wal_insert_lsn()::text, (extract(epoch from clock_timestamp()) * 1000000)::bigint * 1000,
       3 * setting::int8 / 1000.0 from pg_settings where name = 'wal_writer_delay'
"""
_FLUSHED = "select pg_current_wal_flush_lsn() >= %s::pg_lsn"
# try_advisory_lock succeeds if no worker has the lock. It is released at once, so that a worker can take it.
_HOLD = """do $$ declare unused int := 0; begin
-- Penstock holds the snapshot that an initial snapshot reads
while unused < {seconds} loop
  perform pg_sleep(1);
  if pg_try_advisory_lock({lock}) then perform pg_advisory_unlock({lock}); unused := unused + 1;
  else unused := 0; end if;
end loop; end $$"""
_RELEASE = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = %s"


class _Exported(NamedTuple):
    name: str
    visible: str


class HeldReadView:
    """The snapshot of one reader. `name` is empty while none is held: chunks then read the tables as they are now."""

    def __init__(self, stream: ChangeStream, connection: Connection, initial: ReadView | None) -> None:
        """`initial`: the snapshot in the position that the reader begins at."""
        self._stream, self._connection = stream, connection
        self._lock = 0 if initial is None else initial.lock
        self._worker: Client | None = None
        self._holder: Client | None = None
        self._ping_at = 0.0
        self.name = ""

    def begin(self, stopped: Callable[[], bool]) -> ReadView:
        """Hold a new snapshot. It contains only transactions that a crash of the server does not lose.

        Raises:
            UnreachableError: ask again later.
            ChangeStreamError: the server refused it; the message says what to do.
        """
        self.close()
        # Random, because all programs that use the database share the numbers of advisory locks (signed, 64 bits).
        self._lock = random.SystemRandom().getrandbits(63)
        self._take_lock()
        self._holder = holder = Client(self._stream, self._connection, application=self._application)
        holder.run(BEGIN)
        holder.rows(_NO_LIMITS)
        exported = _Exported(*holder.rows(_EXPORT)[0])
        ((end, timestamp, seconds),) = holder.rows(_END)
        # A commit with synchronous_commit = off is visible before it is on disk, at most three delays of the writer.
        until = time.monotonic() + float(seconds)
        while time.monotonic() < until and not stopped() and holder.rows(_FLUSHED, (end,)) == [(False,)]:
            time.sleep(_FLUSH_TICK_SECONDS)
        unused = _PREVIEW_SECONDS if self._connection.preview else HOLD_SECONDS
        holder.start(_HOLD.format(seconds=unused, lock=self._lock))
        self.name = exported.name
        return ReadView(exported.visible, parse_lsn(end), timestamp, exported.name, self._lock)

    def resume(self, initial: ReadView) -> bool:
        """Return whether the snapshot is still held; then chunks read it."""
        if self.name == initial.name and self._worker is not None:
            return True
        self.close()
        self._lock = initial.lock
        # The lock first: otherwise the loop on the server could end between the look and the lock.
        self._take_lock()
        if not self.exists(initial):
            self.close()
            return False
        self.name = initial.name
        return True

    def exists(self, initial: ReadView) -> bool:
        """Return whether the server knows the snapshot. Raises `UnreachableError`."""
        with Client(self._stream, self._connection) as client:
            try:
                client.run(BEGIN)
                client.run(take_snapshot(initial.name))
            except UnreachableError:
                raise
            except ChangeStreamError:
                return False
        return True

    def keep(self) -> None:
        """Notice a session that was lost, now and then.

        Raises:
            UnreachableError: `resume` again later.
        """
        if self._worker is not None and time.monotonic() >= self._ping_at:
            self._ping_at = time.monotonic() + _PING_SECONDS
            try:
                self._worker.rows("select 1")
            except UnreachableError:
                self._disconnect()
                raise

    def release(self) -> None:
        """End the session that holds the snapshot, at the server."""
        if self.is_held:
            # If the server does not answer, the session ends after `HOLD_SECONDS`.
            with (
                suppress(UnreachableError, ChangeStreamError),
                Client(self._stream, self._connection) as client,
            ):
                client.rows(_RELEASE, (self._application,))
            self._lock = 0
        self.close()

    @property
    def is_held(self) -> bool:
        """Whether the server may hold a snapshot: it was not released."""
        return self._lock != 0

    def close(self) -> None:
        """Close the connections. The server keeps the snapshot for another worker."""
        self.name = ""
        self._disconnect()

    def _disconnect(self) -> None:
        for client in (self._worker, self._holder):
            if client is not None:
                client.close()
        self._worker = self._holder = None

    @property
    def _application(self) -> str:
        return f"penstock snapshot {self._lock}"

    def _take_lock(self) -> None:
        # A lock of a transaction, and not of a session: a connection pooler may lend the session to others.
        self._worker = Client(self._stream, self._connection)
        self._worker.run("begin read only")
        self._worker.rows(_NO_LIMITS)
        self._worker.rows("select pg_advisory_xact_lock_shared(%s)", (self._lock,))
        self._ping_at = time.monotonic() + _PING_SECONDS


def take_snapshot(name: str) -> sql.Composed:
    """Return the statement with which a transaction takes an exported snapshot."""
    return sql.SQL("set transaction snapshot {}").format(sql.Literal(name))
