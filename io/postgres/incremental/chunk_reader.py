"""Reads chunks of tables, and the list of tables, over an ordinary connection. One thread uses it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from psycopg import sql

from penstock.errors import ChangeStreamError
from penstock.io.change_streams.incremental.engine import Chunk, ChunkRequest, ChunkRow, TableGoneError
from penstock.io.change_streams.incremental.notifications import ScanStatus
from penstock.io.change_streams.incremental.progress import INITIAL, Snapshot
from penstock.io.change_streams.incremental.signals import matches
from penstock.io.change_streams.incremental.worker import Problems
from penstock.io.postgres.client import LOCK_TIMEOUT_MS, Client
from penstock.io.postgres.errors import LockedError
from penstock.io.postgres.incremental import chunks
from penstock.io.postgres.incremental.chunks import ChunkLines, ChunkStatement, VisibleTransactions
from penstock.io.postgres.incremental.held_read_view import HeldReadView, take_snapshot
from penstock.io.postgres.initial_scan.stream import Copied
from penstock.io.postgres.record import LogRecord, Table, parse_lsn, read_record
from penstock.io.postgres.source import ChangeStream, Connection
from penstock.tables import TableSelection

Answer = TypeVar("Answer")

_LOGGER = logging.getLogger(__name__)
_GAP_SECONDS = 0.02
"""How often the reader looks whether a transaction that is in the log is visible."""
_OLDEST_WITH_GENERATED = 180_000


States = dict[str, tuple[Any, ...]]
"""Rows of `chunks.STATE` without the name, by the name."""


class _OpenTable(NamedTuple):
    """A locked table. `snapshot`: of its transaction. The rest: see `ChunkStatement`."""

    table: Table
    kind: str
    file: int
    conditions: Sequence[str]
    snapshot: str


class ChunkReader:
    """Reads the tables of one publication."""

    def __init__(
        self,
        stream: ChangeStream,
        connection: Connection,
        selection: TableSelection,
        held: HeldReadView,
        *,
        stopped: Callable[[], bool],
        in_order: bool = False,
        held_states: dict[tuple[str, str], States] | None = None,
    ) -> None:
        """`selection`: the tables whose changes are read. `held`: what chunks of an initial snapshot read.
        `stopped`: whether to end a wait. `in_order`: rows of blocks come in the order of the blocks.
        `held_states`: what readers know of the tables in held snapshots, by slot and snapshot; they share it.
        """
        self._stream, self._selection, self._held, self._stopped = stream, selection, held, stopped
        self._client = Client(stream, connection, lock_timeout_ms=LOCK_TIMEOUT_MS, in_order=in_order)
        self._held_states = {} if held_states is None else held_states

    def visible(self) -> VisibleTransactions:
        """Return which transactions are visible now."""
        return chunks.parse_snapshot(self._client.rows("select pg_current_snapshot()::text")[0][0])

    def now(self) -> int:
        """Return the server's clock, in nanoseconds."""
        return self._client.now().timestamp

    def null_row(self, name: str) -> LogRecord:
        """Return the record of a row of a published table that is NULL in all columns. Raises as `read` does."""
        schema, _, table = name.partition(".")

        def describe() -> Table:
            with self._transaction():
                _, oid, identity, _, _, lists, _ = self._state(schema, table)
                return self._table(oid, schema, table, identity, lists)

        found = self._when_unlocked(describe)
        return read_record(found, (None,) * len(found.columns))

    def tables(self, snapshot: Snapshot) -> tuple[dict[str, int], Problems]:
        """Return the tables that a request means, with estimates of their rows, and the names that cannot be read."""
        published = {
            f"{schema}.{name}": (has_key, rows)
            # The server locks every published table for a moment to list them.
            for schema, name, has_key, rows in self._when_unlocked(self._published)
            if self._selection.has(schema, name)
        }
        request, found, problems = snapshot.request, [], Problems()
        for pattern in request.tables:
            named = [name for name in published if matches([pattern], name)]
            if not named and snapshot.kind != INITIAL:
                problems[pattern] = (
                    ScanStatus.UNKNOWN_SCHEMA,
                    "no published table that the pipeline reads has this name",
                )
            found += named
        for name in dict.fromkeys(found):
            # Without a key, an initial snapshot goes by the places of the rows: it must be complete.
            if not published[name][0] and not request.surrogate_key and snapshot.kind != INITIAL:
                problems[name] = (
                    ScanStatus.NO_PRIMARY_KEY,
                    "the table has no primary key: add one, or name columns as surrogate-key in the signal",
                )
        return {name: published[name][1] for name in found if name not in problems}, problems

    def _published(self) -> list[tuple[Any, ...]]:
        parameters = (list(self._stream.publications),)
        if self._held.name:
            try:
                with self._transaction():
                    return self._client.rows(chunks.TABLES, parameters)
            except LockedError:
                raise
            except ChangeStreamError as error:
                # The first chunk finds the same, and the snapshot continues without it.
                _LOGGER.warning("the tables cannot be listed at the first snapshot: %s", error)
        return self._client.rows(chunks.TABLES, parameters)

    def read(self, request: ChunkRequest) -> Chunk:
        """Return a chunk of `SnapshotRow`s. While another session locks the table, wait for it.

        Raises:
            UnreachableError: ask again later.
            LockedError: the table is locked, and the reader was stopped.
            ChangeStreamError: the server refused it; the message says what to do.
        """
        self._wait_until_visible(request.after)
        schema, _, name = request.table.partition(".")

        def read() -> Chunk:
            with self._transaction(request.table) as at:
                return self._read_in_transaction(request, schema, name, at)

        return self._when_unlocked(read)

    def _when_unlocked(self, read: Callable[[], Answer]) -> Answer:
        """Return the result of `read`, repeated while another session holds a lock that it needs."""
        was_locked = False
        while True:
            # Without a pause: the statement itself waits on the server for `LOCK_TIMEOUT_MS`.
            try:
                return read()
            except LockedError as error:
                if self._stopped():
                    raise
                if not was_locked:
                    _LOGGER.warning("a snapshot waits until a table is unlocked: %s", error)
                was_locked = True

    @contextmanager
    def _transaction(self, table: str = "") -> Iterator[str]:
        """Run statements in one snapshot: the one that is held, whose name is yielded, or a new one.

        `table`: it is locked first against changes of its definition.

        They end with a commit, which lets the server flush what it has logged while it read; see `FLUSH_AT_COMMIT`.
        """
        at = self._held.name
        statements: list[sql.Composable] = [sql.SQL(chunks.BEGIN)]
        if at:
            statements.append(take_snapshot(at))
        if table:
            statements.append(sql.SQL("lock table {} in access share mode").format(_identifier(table)))
        try:
            # One request: each one takes time, also of this process.
            self._client.run(sql.SQL("; ").join(statements))
            yield at
        except BaseException:
            # If the connection was lost, this opens a new one, where a rollback does nothing.
            self._client.run("rollback")
            raise
        self._client.run("commit")

    def _wait_until_visible(self, transactions: Sequence[int]) -> None:
        """Wait until committed transactions are visible. They are not while a standby has not confirmed them."""
        while transactions and not self._stopped():
            visible = self.visible()
            transactions = [each for each in transactions if not visible.sees(each)]
            if transactions:
                time.sleep(_GAP_SECONDS)

    def _read_in_transaction(self, request: ChunkRequest, schema: str, name: str, at: str) -> Chunk:
        opened = self._open(schema, name, at)
        statement = ChunkStatement(
            opened.table, request, kind=opened.kind, file=opened.file, conditions=opened.conditions
        )

        def rows(query: sql.Composed, *, null: bool = False) -> ChunkLines:
            return ChunkLines(statement, *self._client.copied_lines(query), null=null)

        visible = chunks.parse_snapshot(opened.snapshot)
        found: Sequence[ChunkRow]
        if request.keys:
            found, is_last = rows(statement.rows_of_keys()), False
        else:
            found = rows(statement.rows_after())
            is_last = len(found) < request.size
            if is_last and statement.ties:
                found = [*found, *rows(statement.rows_with_null(), null=True)]
        # Asked after the rows: every change that the chunk sees ends at or before this position.
        ((end, is_flushed, block, segment),) = self._client.rows(chunks.END_OF_LOG)
        if not is_flushed:
            self._client.rows(chunks.FLUSH_AT_COMMIT)
        position = chunks.end_of_records(parse_lsn(end), block, segment)
        return Chunk(request, found, visible.sees, position, is_last, statement.restarted)

    def _open(self, schema: str, name: str, at: str) -> _OpenTable:
        """Describe a table that is locked, in a transaction of the snapshot `at`."""
        snapshot, oid, identity, kind, file, lists, filters = self._state(schema, name)
        if at and self._client.rows(chunks.REWRITTEN, {"table": oid}):
            raise ChangeStreamError(
                f"{self._stream}: {schema}.{name} was truncated or rewritten after the snapshot that is read, which "
                "therefore has none of its rows"
            )
        conditions = chunks.row_conditions(filters)
        return _OpenTable(
            self._table(oid, schema, name, identity, lists), kind, file or 0, conditions, snapshot
        )

    def read_blocks(self, name: str, start: int, end: int) -> Copied:
        """Return the rows in the blocks from `start`, inclusive, to `end`, exclusive. Raises as `read` does."""
        schema, _, table = name.partition(".")

        def read() -> Copied:
            with self._transaction(name) as at:
                opened = self._open(schema, table, at)
                statement = chunks.rows_in_blocks(opened.table, opened.kind, opened.conditions, start, end)
                return Copied(opened.table, *self._client.copied_lines(statement))

        return self._when_unlocked(read)

    def blocks(self, names: Sequence[str]) -> tuple[tuple[str, int, bool], ...]:
        """Return the number of blocks of tables and whether each has a key, in the order of `names`.

        A table without blocks has no row. One whose rows the snapshot of the transaction cannot have has one block: its
        read finds that.
        """

        def read() -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
            with self._transaction():
                sizes = self._client.rows(chunks.BLOCKS, {"tables": list(names)})
                # Asked after the sizes: a file that is not new now was not new when it was empty.
                empty = [name for name, blocks, _ in sizes if not blocks]
                return sizes, self._client.rows(chunks.REWRITTEN_OF_SEVERAL, {"tables": empty})

        sizes, rewritten = self._when_unlocked(read)
        at_least = dict.fromkeys((name for (name,) in rewritten), 1)
        found = {name: (name, max(blocks, at_least.get(name, 0)), has_key) for name, blocks, has_key in sizes}
        # The engine finds a table that was dropped a moment ago, and says so.
        return tuple(found.get(name, (name, 1, True)) for name in names)

    def _state(self, schema: str, name: str) -> tuple[Any, ...]:
        """Return the row of `chunks.STATE`, without the name."""
        state = self._states(schema, name).get(f"{schema}.{name}")
        if state is None:
            raise TableGoneError(
                f"{self._stream}: {schema}.{name} is not in the publication any more. Add it again with ALTER "
                "PUBLICATION, or request a snapshot without it"
            )
        return state

    def _states(self, schema: str, name: str) -> States:
        at = self._held.name
        if at and (held := self._held_states.get((self._stream.slot, at))) is not None:
            return held
        parameters = {"publications": list(self._stream.publications), "schema": schema, "table": name}
        # What a publication has is one list, so one table costs the server as much as all. In a held snapshot they are
        # asked for once: it is what the tables were then.
        rows = self._client.rows(chunks.STATES if at else chunks.STATE, parameters)
        found = {of: tuple(state) for *state, of in rows}
        if at:
            self._held_states[self._stream.slot, at] = found
        return found

    def _table(self, oid: int, schema: str, name: str, identity: str, lists: Sequence[Any]) -> Table:
        columns = self._client.rows(chunks.COLUMNS, (oid,))
        if self._client.version < _OLDEST_WITH_GENERATED:
            columns = [column for column in columns if not column[3]]
        published = chunks.published_columns(columns, lists)
        return self._client.describe_table(chunks.relation_of(oid, schema, name, identity, published), {})

    def close(self) -> None:
        self._client.close()


def _identifier(name: str) -> sql.Identifier:
    schema, _, table = name.partition(".")
    return sql.Identifier(schema, table)
