"""Requests to a PostgreSQL server: questions to its catalogue, and the log by pull and by streaming.

Two connections: an ordinary one for questions, and for streaming one of the replication protocol. Each thread has its
own client; a client is not thread-safe.
"""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import psycopg
from psycopg import pq, sql
from typing_extensions import Self

from penstock.io.postgres import messages as log
from penstock.io.postgres.catalog import FIRST_OID_OF_USERS, RELATION, TYPES, describe
from penstock.io.postgres.column_types import CatalogType, TypeCatalog
from penstock.io.postgres.errors import classify_error, skipped_publication
from penstock.io.postgres.record import Table, format_lsn, parse_lsn
from penstock.io.postgres.source import ChangeStream, Connection, plugin_options
from penstock.io.postgres.text_values import SESSION_SETTINGS

_CONNECT_SECONDS = 10
# Set by each connection: a role or a database may have other defaults, and then values have another form.
# A blank in a value is escaped, because blanks separate the options.
_OPTIONS = " ".join(
    f"-c {name}={value.replace(' ', chr(92) + ' ')}" for name, value in SESSION_SETTINGS.items()
)
# Workers of a parallel plan mix their rows, and a scan of a table may begin where another session reads.
_IN_ORDER = "-c max_parallel_workers_per_gather=0 -c synchronize_seqscans=off"
_STATUS = struct.Struct("!cQQQqB")
_LOG_DATA, _KEEPALIVE = b"wk"
# A message of the log has a head: its kind, its position, the end of the log and the clock.
_LOG_DATA_HEAD = struct.calcsize("!cQQq")
_KEEPALIVE_DATA = struct.Struct("!cQqB")
_POSTGRES_EPOCH_SECONDS = 946_684_800


_END_READER = """
select pg_terminate_backend(slot.active_pid) from pg_replication_slots slot
join pg_stat_activity reader on reader.pid = slot.active_pid
where slot.slot_name = %(slot)s and reader.application_name = %(name)s
"""
_RELEASE_ATTEMPTS, _RELEASE_SECONDS = 100, 0.01

LOCK_TIMEOUT_MS = 500
"""For threads that must notice that they were stopped, or have other work: a migration may lock a table for hours. The
view pg_publication_tables waits for the lock of each published table."""


Arrived = tuple[int, bytes]
"""A position and the message of the log there. An empty message says that all messages of transactions that end at or
before the position have arrived. A plain tuple: a class would cost as much as the rest of the reception."""


class Now(NamedTuple):
    """The server's clock, in nanoseconds, and the end of its log a moment later."""

    lsn: int
    timestamp: int


class Client:
    """The questions of one thread."""

    def __init__(
        self,
        stream: ChangeStream,
        connection: Connection,
        *,
        application: str = "",
        lock_timeout_ms: int = 0,
        in_order: bool = False,
    ) -> None:
        """Connect at the first question.

        Args:
            application: name of the sessions in pg_stat_activity; empty: the name of the dsn, or penstock.
            lock_timeout_ms: how long a statement waits for a lock before it raises `LockedError`. 0: the server's
                setting.
            in_order: rows of a statement without an order come in the order of their blocks.
        """
        self._stream, self._connection = stream, connection
        options = [_OPTIONS]
        if lock_timeout_ms:
            options.append(f"-c lock_timeout={lock_timeout_ms}")
        if in_order:
            options.append(_IN_ORDER)
        self._options = " ".join(options)
        self._name: dict[str, Any] = {"application_name": application} if application else {}
        self._session: psycopg.Connection[Any] | None = None
        self._types: dict[int, CatalogType] | None = None
        self._skipped = False

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            # Dropped, so that the next question opens another session.
            if self._session is not None and self._session.broken:
                self.close()
            raise classify_error(error.sqlstate or "", str(error), str(self._stream)) from error

    @property
    def session(self) -> psycopg.Connection[Any]:
        """The open ordinary connection; a new one if the last one broke."""
        if self._session is None or self._session.closed:
            self._session = session = psycopg.connect(
                self._connection.dsn,
                # Otherwise psycopg would leave a transaction open after a question, and it would hold back VACUUM.
                autocommit=True,
                connect_timeout=_CONNECT_SECONDS,
                options=self._options,
                fallback_application_name="penstock",
                **self._name,
            )
            session.add_notice_handler(self._take_notice)
        return self._session

    def _take_notice(self, notice: psycopg.errors.Diagnostic) -> None:
        self._skipped = self._skipped or _names_skipped_publication(notice.message_primary or "")

    @property
    def version(self) -> int:
        """The server's version, such as 170010."""
        return self.session.info.server_version

    def run(self, statement: str | sql.Composed) -> None:
        """Run a statement without a result; raises as `rows` does."""
        with self._errors():
            self.session.execute(statement)

    def start(self, statement: str) -> None:
        """Send a statement and do not wait for its end. The client can only be closed afterwards."""
        with self._errors():
            self.session.pgconn.send_query(statement.encode())
            while self.session.pgconn.flush():
                pass

    def copied_lines(self, query: sql.Composed) -> tuple[bytes, int]:
        """Return the lines of a COPY statement as the server sends them, and their number; raises as `rows` does."""
        with self._errors(), self.session.cursor() as cursor, cursor.copy(query) as copy:
            # The server sends each row as one message.
            lines = list(copy)
        return b"".join(lines), len(lines)

    def rows(self, query: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of a query.

        Raises:
            UnreachableError: ask again later.
            ChangeStreamError: the server refused it; the message says what to do.
        """
        with self._errors():
            return self.session.execute(query, parameters).fetchall()

    def now(self) -> Now:
        """Return the end of the log and the server's clock."""
        # On a standby the log ends at what was replayed. The clock is read first: a commit with a later time may be
        # in the log already, but none with an earlier time that a client has been told of is missing.
        ((clock, end),) = self.rows(
            "select (extract(epoch from clock_timestamp()) * 1000000)::bigint, case when pg_is_in_recovery() then "
            "pg_last_wal_replay_lsn() else pg_current_wal_flush_lsn() end::text"
        )
        return Now(parse_lsn(end), clock * 1000)

    def near_transaction_id(self) -> int:
        """Return the 64-bit id that the next transaction would get."""
        return int(self.rows("select pg_snapshot_xmax(pg_current_snapshot())::text")[0][0])

    def advance(self, lsn: int) -> None:
        """Tell the server that changes before `lsn` are not needed any more. It is never moved back."""
        if self._connection.preview:
            return
        self.rows(
            # The server refuses a position before the confirmed one, so the query leaves such a slot out.
            "select pg_replication_slot_advance(slot_name, %(lsn)s::pg_lsn) from pg_replication_slots "
            "where slot_name = "
            "%(slot)s and confirmed_flush_lsn < %(lsn)s::pg_lsn",
            {"lsn": format_lsn(lsn), "slot": self._stream.slot},
        )

    def describe_table(self, relation: log.Relation, types: dict[int, log.Type]) -> Table:
        """Return a table of the log with its column types and its primary key, which the catalogue knows."""
        # Types that are not built in are named by the log; a snapshot has their numbers only. One that is missing was
        # created after the list was read.
        own = {column.type_oid for column in relation.columns if column.type_oid >= FIRST_OID_OF_USERS}
        if self._types is None or any(oid not in self._types for oid in own | types.keys()):
            self._types = {oid: CatalogType(oid, *rest) for oid, *rest in self.rows(TYPES)}
        return describe(relation, self.rows(RELATION, (relation.oid,)), self._types)

    def types(self) -> TypeCatalog:
        """Return the types that users and extensions defined, as of the last description of a table."""
        return self._types or {}

    def close(self) -> None:
        if self._session is not None:
            with suppress(psycopg.Error):
                self._session.close()
            self._session = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def plugin_options(self, *, two_phase: bool = False) -> dict[str, str]:
        """Return the options of pgoutput; see `source.plugin_options`. `two_phase`: the slot was created with it."""
        return plugin_options(self._stream.publication, self._connection, two_phase=two_phase)

    @contextmanager
    def pull(
        self, most: int, *, two_phase: bool = False, end: int | None = None
    ) -> Iterator[Iterator[Arrived]]:
        """Yield the changes after the slot's confirmed position: at least `most`, to the end of a transaction.

        `end`: the server stops after the first transaction that ends at or after this position.
        """
        options = [word for pair in self.plugin_options(two_phase=two_phase).items() for word in pair]
        query = sql.SQL(
            "copy (select lsn, data from pg_logical_slot_peek_binary_changes({}, {}, {}, {})) to stdout "
            "(format binary)"
        ).format(
            sql.Literal(self._stream.slot),
            sql.Literal(None if end is None else format_lsn(end)),
            sql.Literal(most),
            sql.SQL(", ").join(map(sql.Literal, options)),
        )
        # COPY, because libpq keeps the result of a query in memory until it is complete. Peek and not get: the slot
        # moves only when a checkpoint has the position (`advance`).
        with self._errors(), self.session.cursor() as cursor, cursor.copy(query) as copy:
            copy.set_types(["pg_lsn", "bytea"])
            yield ((int.from_bytes(lsn, "big"), data) for lsn, data in copy.rows())
        if self._skipped:
            self._skipped = False
            raise skipped_publication(str(self._stream))

    def take_slot(self) -> None:
        """End the connection of another worker of this program that holds the slot.

        Its bundle has ended, or was given up by the runner: two bundles never read one slot. Readers of other programs
        are left alone, and the server then refuses the slot.
        """
        # The role may end its own sessions. A session needs a moment to release its slot.
        mine = {"slot": self._stream.slot, "name": self._connection.reader_name}
        for _ in range(_RELEASE_ATTEMPTS):
            if not self.rows(_END_READER, mine):
                return
            time.sleep(_RELEASE_SECONDS)

    def open_stream(self, start: int, *, two_phase: bool = False) -> LogStream:
        """Start the replication protocol at a position.

        Raises:
            UnreachableError: ask again later; the slot may still be in use.
            ChangeStreamError: the server refused it; the message says what to do.
        """
        options = self.plugin_options(two_phase=two_phase)
        return LogStream(self._connection, self._stream, options, start)


def _names_skipped_publication(notice: str) -> bool:
    # PostgreSQL 18 only warns when a publication does not exist, and sends nothing of its tables. Older versions fail.
    return "skipped loading publication" in notice


class LogStream:
    """One connection of the streaming replication protocol.

    Source: PostgreSQL documentation, "Streaming Replication Protocol" (START_REPLICATION SLOT … LOGICAL).
    """

    def __init__(
        self, connection: Connection, stream: ChangeStream, options: dict[str, str], start: int
    ) -> None:
        self._name, self._is_preview = str(stream), connection.preview
        info = psycopg.conninfo.make_conninfo(
            connection.dsn,
            replication="database",
            options=_OPTIONS,
            connect_timeout=_CONNECT_SECONDS,
            # Not a fallback: `take_slot` finds the connections of the program by this name.
            application_name=connection.reader_name,
        )
        # The functions of libpq: psycopg's own connections do not have the replication protocol.
        self._connection = pq.PGconn.connect(info.encode())
        self._skipped = False
        self._connection.notice_handler = self._take_notice
        self._acknowledged = 0
        self._received = start
        try:
            if self._connection.status != pq.ConnStatus.OK:
                raise self._error("", self._connection.get_error_message())
            names = sql.SQL(", ").join(
                sql.SQL("{} {}").format(sql.Identifier(name), sql.Literal(value))
                for name, value in options.items()
            )
            command = sql.SQL("START_REPLICATION SLOT {} LOGICAL {} ({})").format(
                sql.Identifier(stream.slot), sql.SQL(format_lsn(start)), names
            )
            result = self._connection.exec_(command.as_string().encode())
            if result.status != pq.ExecStatus.COPY_BOTH:
                state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
                raise self._error(state, result.get_error_message())
        # The caller gets no object that it could close.
        except BaseException:
            self.close()
            raise

    def receive(self, timeout: float, most: int, most_bytes: int) -> list[Arrived]:
        """Return what has arrived, at most `most` messages; an empty list after `timeout` seconds.

        `most_bytes`: a size after which no message is taken, because a row may have hundreds of megabytes.

        Raises:
            UnreachableError: the connection was lost.
            ChangeStreamError: the server ended the stream; the message says what to do.
        """
        arrived: list[Arrived] = []
        append, get_data = arrived.append, self._connection.get_copy_data
        room = most_bytes
        try:
            while len(arrived) < most and room > 0 and not self._skipped:
                # 1: do not wait. A size of 0 says that no whole message is here; below 0 the stream has ended.
                size, data = get_data(1)
                if size > 0:
                    room -= size
                    if data[0] == _LOG_DATA:
                        append((int.from_bytes(data[1:9], "big"), bytes(data[_LOG_DATA_HEAD:])))
                    elif data[0] == _KEEPALIVE:
                        append((self._keep_alive(data), b""))
                elif size < 0:
                    self._raise_end()
                # The messages that are here are handed over before this waits for more.
                elif arrived or not select.select([self._connection.socket], [], [], timeout)[0]:
                    break
                else:
                    self._connection.consume_input()
        except psycopg.OperationalError as error:
            raise self._error("", str(error)) from error
        if arrived:
            self._received = max(self._received, arrived[-1][0])
        if self._skipped:
            raise skipped_publication(self._name)
        return arrived

    def _take_notice(self, result: pq.abc.PGresult) -> None:
        text = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode(errors="replace")
        self._skipped = self._skipped or _names_skipped_publication(text)

    def _keep_alive(self, data: memoryview) -> int:
        """Answer a keepalive if the server asks for it; return up to where the server has sent its log."""
        _, end, _, reply = _KEEPALIVE_DATA.unpack(data)
        # Without an answer the server ends the connection after `wal_sender_timeout`.
        if reply:
            self.send_status()
        return int(end)

    def acknowledge(self, lsn: int) -> None:
        """Set the position before which the server may drop its log; it is sent with the next status."""
        # In a status the position 0 confirms nothing.
        if not self._is_preview:
            self._acknowledged = max(self._acknowledged, lsn)

    def send_status(self, *, ask: bool = False) -> None:
        """Tell the server what was received and acknowledged. `ask`: it answers with what it has sent at once."""
        clock = int((time.time() - _POSTGRES_EPOCH_SECONDS) * 1_000_000)
        # The positions are: written, flushed, applied. The server keeps its log from the flushed one on.
        status = _STATUS.pack(b"r", self._received, self._acknowledged, self._acknowledged, clock, ask)
        try:
            self._connection.put_copy_data(status)
            self._connection.flush()
        except psycopg.OperationalError as error:
            raise self._error("", str(error)) from error

    def close(self) -> None:
        with suppress(psycopg.OperationalError):
            self._connection.finish()

    def _raise_end(self) -> None:
        result = self._connection.get_result()
        state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode() if result else ""
        text = result.get_error_message() if result else ""
        raise self._error(state, text or "the server ended the stream")

    def _error(self, sqlstate: str, message: str) -> Exception:
        return classify_error(sqlstate, message, self._name)
