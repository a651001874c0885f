"""One connection to PostgreSQL: a batch and its entry in the ledger in one transaction."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any, TypeVar

import psycopg

from penstock.event.column_types import ColumnType, Kind
from penstock.event.model import ChangeEvent
from penstock.event.replica import (
    NotReplicableError,
    RowChange,
    TableChanges,
    encode_version,
    fold,
)
from penstock.io.sql.catalog import Catalog
from penstock.io.sql.errors import classify_error, is_row_error
from penstock.io.sql.ledger import Ledger, refused_rows, sink_delivery, table_writer
from penstock.io.sql.statements import (
    COMMITTED_AT,
    DELETED,
    TRUNCATIONS,
    VERSION,
    TableName,
    TargetTable,
    copy_batch,
    copy_log,
    create_batch,
    mark_complete,
    quote,
    upsert,
)
from penstock.io.sql.tables import StaleColumnsError, TargetTables
from penstock.io.sql.target import SqlTarget
from penstock.io.sql.values import json_image, json_text, text_writer
from penstock.io.staging.delivery import (
    Delivery,
    EventBatch,
    Refusal,
    RefusalError,
    Sent,
    TargetUnavailableError,
    is_delivered,
)
from penstock.publish import current_attempt
from penstock.timestamps import format_timestamp

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")

_CONNECT_SECONDS = 10
# The transaction of a batch holds the lock of its ledger entry. A driver that was paused in the middle of it keeps its
# connection, because its kernel still answers. Without a limit its successor would wait for as long as the pause lasts.
# No limit of the server ends a COPY that waits for its client (measured with PostgreSQL 15 and 18). So the successor's
# wait for the lock is limited too, and then it ends the other session itself (`Ledger.end_paused`).
_LIMITS = {
    "idle_in_transaction_session_timeout": "60s",
    "lock_timeout": "60s",
    "statement_timeout": "600s",
}
# A server that vanished without a word is noticed after half a minute, not after the two hours of the system.
_KEEPALIVE = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
_LOG_TIMESTAMP = text_writer(ColumnType(Kind.TIMESTAMP), "timestamp with time zone")
_MAX_STALE = 100
"""How often a batch begins again because other shards have renamed columns."""
_PURGE_PART = 100
"""Tombstones are looked for whenever the newest change is this part of the horizon further."""


class RowFaultError(ValueError):
    """A range of events that cannot be written because of a value. The text shows no value."""


class SqlSender:
    """See `penstock.io.staging.delivery.Sender`."""

    def __init__(self, target: SqlTarget, skip_refused: bool) -> None:
        self._target, self._skip_refused = target, skip_refused
        self._purged: dict[TableName, int] = {}
        self._taken_over: set[str] = set()
        self._session = connect(target)
        catalog = Catalog(self._session, target.schema, target.create_tables)
        self._tables = TargetTables(target, catalog)
        self._ledger = Ledger(self._session, target.schema)
        self._truncations = TableName(target.schema, TRUNCATIONS)
        with self._errors():
            catalog.create_bookkeeping()
            if target.mark_complete:
                catalog.create_complete()

    def check(self) -> None:
        """Nothing more: the session that this sender has opened has created the ledger."""

    def send(self, delivery: Delivery, events: EventBatch) -> Sent:
        """Write the batch; see `Sender.send`."""
        batch, generation = list(events), current_attempt().generation
        names = tuple(map(str, dict.fromkeys(map(self._target.table_of, batch))))
        sink = sink_delivery(delivery).writer
        with self._errors():
            self._ledger.create_entry(delivery.writer)
            # Other runners have no generations.
            if generation and sink not in self._taken_over:
                self._ledger.take_over(sink, generation, sends_tables=False)
                self._taken_over.add(sink)
        # All entries that the transaction locks. `_in_time` ends the session of a paused driver that holds them.
        writers = (delivery.writer, *(table_writer(sink, name) for name in names))
        return self._in_time(writers, batch, lambda: self._send(delivery, batch, names, generation))

    def refused_in(self, delivery: Delivery) -> dict[str, str]:
        """See `penstock.io.staging.send_tables.TableSender`."""
        with self._errors():
            return self._ledger.refused_in(delivery)

    def mark_complete(self, job: str, sink: str, record: int, until_us: int) -> None:
        """Set the time until which the target is complete; see `penstock.publish.MarksComplete`."""
        until = format_timestamp(until_us * 1000)
        with self._errors():
            self._session.execute(mark_complete(self._target.schema), (job, sink, record, until))

    def close(self) -> None:
        with suppress(psycopg.Error):
            self._session.close()

    def _in_time(
        self, writers: Sequence[str], batch: Sequence[ChangeEvent], work: Callable[[], _Result]
    ) -> _Result:
        """Return the result of a transaction with a batch. It begins again if other shards rename columns.

        `writers` have the entries that it locks.
        """
        with self._errors():
            for _ in range(_MAX_STALE):
                self._tables.prepare(batch)
                try:
                    return work()
                except StaleColumnsError:
                    continue
                # The error is retryable, and the next try finds the entries free.
                except psycopg.errors.LockNotAvailable:
                    self._ledger.end_paused(writers)
                    raise
        raise TargetUnavailableError(f"{self._target.name}: other shards rename columns all the time")

    def _send(
        self, delivery: Delivery, batch: Sequence[ChangeEvent], names: Sequence[str], generation: int
    ) -> Sent:
        """Write the batch and its entry in one transaction. `names` are its tables."""
        with self._session.transaction():
            # Before all rows: a driver that was paused and its successor must not write the same batch at once.
            entry, refused = self._ledger.lock(delivery.writer)
            if is_delivered(entry, delivery):
                return Sent(refused_rows(refused))
            sent: Mapping[str, Mapping[str, str]] = {}
            if generation and self._ledger.check_generation(sink_delivery(delivery).writer, generation):
                sent = self._ledger.tables_sent(delivery, names)
            done = {
                index: table
                for index, event in enumerate(batch if sent else ())
                if (table := sent.get(str(self._target.table_of(event)))) is not None
            }
            before = [
                Refusal(index, done[index][batch[index].id])
                for index in done
                if batch[index].id in done[index]
            ]
            missing = [index for index in range(len(batch)) if index not in done]
            now = self._write_rows(batch, missing, delivery.shards == 1, skip_refused=self._skip_refused)
            refusals = tuple(sorted((*before, *now), key=lambda each: each.index))
            self._ledger.write(delivery.writer, delivery.position, refusals)
        return Sent(refusals)

    def _errors(self) -> TargetErrors:
        return TargetErrors(self._target.name)

    def _write_rows(
        self, batch: Sequence[ChangeEvent], those: Sequence[int], one_shard: bool, *, skip_refused: bool
    ) -> list[Refusal]:
        """Write the events of a batch that have the indexes `those`; return the ones that are refused."""
        self._tables.check_numbers(batch)
        # A constraint that is checked at the commit would make the batch fail without telling the row.
        self._session.execute("set constraints all immediate")
        reasons = self._tables.refusals(batch)
        refused = [Refusal(index, reasons[index]) for index in those if index in reasons]
        if refused and not skip_refused:
            raise RefusalError(refused[0])
        fitting = [index for index in those if index not in reasons]
        # `_write` counts in the list that it gets, and a refusal names an index of the batch.
        try:
            for each in self._write([batch[index] for index in fitting], 0, one_shard, skip_refused):
                refused.append(Refusal(fitting[each.index], each.reason))
        except RefusalError as error:
            row = error.refusal
            raise RefusalError(Refusal(fitting[row.index], row.reason), error.batch) from error
        return refused

    def _write(
        self, events: Sequence[ChangeEvent], first: int, one_shard: bool, skip_refused: bool
    ) -> Iterator[Refusal]:
        """Write a range of the batch. If a row is refused, halve the range until the row is found.

        A batch that is written in parts, in their order, gives the same rows as at once.
        """
        try:
            # A savepoint: the rows that were written before stay if one of these is refused.
            with self._session.transaction():
                self._apply(events, one_shard)
        except (RowFaultError, NotReplicableError, UnicodeEncodeError, psycopg.Error) as error:
            if isinstance(error, psycopg.Error) and not _is_row_error(error):
                raise
            if len(events) == 1:
                refusal = Refusal(first, _reason(error))
                if not skip_refused:
                    raise RefusalError(refusal) from error
                yield refusal
                return
            middle = len(events) // 2
            yield from self._write(events[:middle], first, one_shard, skip_refused)
            yield from self._write(events[middle:], first + middle, one_shard, skip_refused)

    def _apply(self, events: Sequence[ChangeEvent], one_shard: bool) -> None:
        if self._target.mode == "log":
            for name, group in groupby(events, self._target.table_of):
                self._copy(copy_log(name), map(log_row, group))
            return
        for changes in fold(self._tables.adapted(events)).values():
            if changes.rows or changes.truncated is not None:
                name = self._target.table_of_source(changes.source)
                if (table := self._tables.table(name)) is not None:
                    self._replace(table, changes, one_shard)

    def _replace(self, table: TargetTable, changes: TableChanges, one_shard: bool) -> None:
        horizon = self._truncate(table, changes)
        # The name depends on the columns too: after an ALTER the old temporary table does not fit.
        batch = f"penstock_{abs(hash(table)) % 10**12}"
        self._session.execute(create_batch(batch, table))
        rows = list(batch_rows(table, changes, one_shard))
        self._copy(copy_batch(batch, table), (row for row, _ in rows))
        with_bases = any(has_base for _, has_base in rows)
        self._session.execute(upsert(batch, table, with_bases=with_bases), {"horizon": horizon})
        # The next part of the same transaction uses it again.
        self._session.execute(f"delete from {quote(batch)}")
        self._purge(table.name, changes.newest)

    def _truncate(self, table: TargetTable, changes: TableChanges) -> str:
        """Apply a TRUNCATE of the batch; return the version of the newest one that the table has had."""
        if changes.truncated is None:
            # Shared: shards that write rows do not wait for each other, and a TRUNCATE, which updates the entry, waits
            # for them.
            query = f"select version from {self._truncations} where table_name = %s for share"
            ((version,),) = self._session.execute(query, (table.name.table,)).fetchall()
            return str(version)
        version = encode_version(changes.truncated)
        query = (
            f"update {self._truncations} set version = greatest(version, %s) where table_name = %s "
            "returning version"
        )
        ((newest,),) = self._session.execute(query, (version, table.name.table)).fetchall()
        # The newest one and not this one: another shard may have applied a later TRUNCATE.
        self._session.execute(f"delete from {table.name} where {quote(VERSION)} < %s", (newest,))
        return str(newest)

    def _purge(self, name: TableName, newest: int) -> None:
        """Remove tombstones that are older than the horizon, measured by the newest change of the batch."""
        horizon = int(self._target.tombstone_seconds * 1_000_000_000)
        if newest - self._purged.get(name, 0) > horizon // _PURGE_PART:
            self._purged[name] = newest
            self._session.execute(
                f"delete from {name} where {quote(DELETED)} and {quote(COMMITTED_AT)} < %s::timestamptz",
                (_LOG_TIMESTAMP((newest - horizon) // 1000 * 1000),),
            )

    def _copy(self, statement: str, rows: Any) -> None:
        with self._session.cursor() as cursor, cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row(row)


def connect(target: SqlTarget) -> psycopg.Connection[Any]:
    """Return a session in autocommit mode.

    Raises:
        TargetUnavailableError, SqlTargetError: there is none; the message says why.
    """
    with TargetErrors(target.name):
        session = psycopg.connect(
            target.dsn,
            autocommit=True,
            fallback_application_name="penstock",
            connect_timeout=_CONNECT_SECONDS,
            **_KEEPALIVE,  # type: ignore[arg-type]
        )
        # A database may have "off" as its default. Then a crash of the server loses commits that it acknowledged,
        # the ledger with them, after the checkpoint has moved on.
        session.execute(
            "select set_config('synchronous_commit', 'on', false) "
            "where current_setting('synchronous_commit') = 'off'"
        )
        for name, limit in _LIMITS.items():
            # 0 is PostgreSQL's default. A limit that the user or the server has set stays.
            session.execute(
                "select set_config(%s, %s, false) where current_setting(%s) = '0'", (name, limit, name)
            )
        return session


def batch_rows(
    table: TargetTable, changes: TableChanges, one_shard: bool
) -> Iterator[tuple[list[str | None], bool]]:
    """Yield each row of the temporary table as texts, and whether it has a base.

    Raises:
        RowFaultError: a value that PostgreSQL cannot hold.
    """
    types = {column.name: column.type for column in changes.schema}
    keys = [(c.name, text_writer(types[c.name], c.sql)) for c in table.key_columns]
    data = [(c.name, text_writer(types.get(c.name, _UNKNOWN), c.sql)) for c in table.data]
    names = [column.name for column in table.data]
    for change in changes.rows.values():
        unsent = None
        base: list[str | None] = [None] * len(keys)
        if change.base is not None and any(name not in change.values for name in names):
            unsent = "{" + ",".join(_element(name) for name in names if name not in change.values) + "}"
            base = [write(change.base[name]) for name, write in keys]
            _check_base(change, changes, one_shard)
        try:
            row = [None if change.key[name] is None else write(change.key[name]) for name, write in keys]
            values = change.values
            row += [None if (value := values.get(name)) is None else write(value) for name, write in data]
        except ValueError as error:
            raise RowFaultError(str(error)) from None
        deleted = "t" if change.deleted else "f"
        # Cut to the microseconds of the column. The version keeps the whole time, and only it decides.
        committed = _LOG_TIMESTAMP(change.timestamp // 1000 * 1000)
        yield [*row, encode_version(change.version), deleted, committed, unsent, *base], unsent is not None


def _check_base(change: RowChange, changes: TableChanges, one_shard: bool) -> None:
    if not one_shard and change.base != change.key:
        raise RowFaultError(
            f"the key of a row of {changes.source.table} changed, and the source did not send all columns. They are "
            "in the row with the old key, which another shard writes: use shards=1, or let the source send whole rows "
            "(PostgreSQL: REPLICA IDENTITY FULL)"
        )


_UNKNOWN = ColumnType(Kind.STRING)


def _element(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def log_row(event: ChangeEvent) -> list[str | None]:
    """Return the row of an event in a change log, as texts; raises as `batch_rows`."""
    try:
        source = {name: getattr(event.source, name) for name in event.source.__struct_fields__}
        not_sent = "{" + ",".join(map(_element, event.unavailable)) + "}"
        return [
            event.id,
            encode_version(event.version),
            event.op.value,
            _LOG_TIMESTAMP(event.timestamp // 1000 * 1000),
            None if event.transaction is None else event.transaction.id,
            json_text(source),
            json_image(event.schema, event.key),
            json_image(event.schema, event.before),
            json_image(event.schema, event.after),
            not_sent,
        ]
    except ValueError as error:
        raise RowFaultError(str(error)) from None


def _is_row_error(error: psycopg.Error) -> bool:
    # psycopg itself refuses a text with a zero byte, without a SQLSTATE.
    return is_row_error(error.sqlstate or "") or (
        isinstance(error, psycopg.DataError) and error.sqlstate is None
    )


def _reason(error: Exception) -> str:
    """Return why a row is refused, without its values: the server's messages may show them, codes and names do not."""
    if not isinstance(error, psycopg.Error):
        return (
            "a text has characters that are not Unicode"
            if isinstance(error, UnicodeEncodeError)
            else str(error)
        )
    if error.sqlstate is None:
        return "a text has a zero byte, which PostgreSQL cannot store"
    about = error.diag
    names = (
        ("table", about.table_name),
        ("column", about.column_name),
        ("constraint", about.constraint_name),
    )
    where = "".join(f", {kind} {name}" for kind, name in names if name)
    return f"PostgreSQL says {error.sqlstate} ({type(error).__name__}{where})"


class TargetErrors:
    """Turns errors of psycopg into errors of the sink."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, psycopg.Error):
            raise classify_error(error.sqlstate or "", str(error), self._name) from error
