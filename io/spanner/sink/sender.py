"""Read, compare and write in Spanner transactions, each with the entry in the ledger."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from google.api_core import exceptions
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import GoogleAuthError
from google.cloud import spanner
from google.cloud.spanner_v1 import KeySet

from penstock.errors import ServiceError
from penstock.event.model import ChangeEvent, TableSchema
from penstock.event.replica import (
    NotReplicableError,
    RowChange,
    TableChanges,
    encode_version,
    fold,
)
from penstock.io.spanner.initial_scan.plan import KEY_COLUMNS, primary_keys
from penstock.io.spanner.sink.errors import classify_error, is_row_error
from penstock.io.spanner.sink.ledger import (
    COMPLETE,
    LEDGER,
    StoredEntry,
    create_complete,
    create_ledger,
    read_entry,
    write_entry,
    write_mark,
)
from penstock.io.spanner.sink.target import SpannerTarget, table_of
from penstock.io.spanner.sink.values import (
    VERSION_COLUMNS,
    VERSIONS,
    create_versions,
    key_text,
    spanner_value,
)
from penstock.io.spanner.source import EMULATOR_VARIABLE
from penstock.io.staging.complete_marks import Mark
from penstock.io.staging.delivery import (
    NOTHING_WRITTEN,
    PARTLY_WRITTEN,
    Delivery,
    EventBatch,
    Refusal,
    RefusalError,
    Sent,
    TargetUnavailableError,
    is_delivered,
)
from penstock.timestamps import format_timestamp

MAX_CELLS = 20_000
"""Cells of one transaction. Spanner takes 80,000 mutations, and each index of a table adds to them."""

_RETRY_SECONDS = 0.05


class SpannerSender:
    """See `penstock.io.staging.delivery.Sender`.

    A batch may be larger than a transaction of Spanner. It is then written in parts, and the ledger says how many
    events are written: a repeat continues there.
    """

    def __init__(self, target: SpannerTarget, skip_refused: bool) -> None:
        self._target, self._skip_refused = target, skip_refused
        self._ready = False
        # What this sender has written or read last. Each transaction compares it with the ledger.
        self._known: dict[str, StoredEntry] = {}
        # The columns of the primary key of each table, in its order.
        self._keys: dict[str, tuple[str, ...]] = {}
        with self._errors():
            client = _client(target)
            self._database = client.instance(target.instance).database(target.database)

    def check(self) -> None:
        """Connect, and create the tables of the sink itself, such as the ledger, if they are missing."""
        with self._errors():
            wanted = {LEDGER: create_ledger(), VERSIONS: create_versions(self._target.tombstone_days)}
            if self._target.mark_complete:
                wanted[COMPLETE] = create_complete()
            with self._database.snapshot() as snapshot:
                names = "SELECT TABLE_NAME FROM INFORMATION_SCHEMA.TABLES WHERE TABLE_NAME IN UNNEST(@names)"
                existing = list(
                    snapshot.execute_sql(
                        names,
                        params={"names": list(wanted)},
                        param_types={"names": spanner.param_types.Array(spanner.param_types.STRING)},
                    )
                )
            # A role without the right to change the schema can use tables that an administrator has created.
            if len(existing) < len(wanted):
                self._database.update_ddl(list(wanted.values())).result(timeout=300)
        self._ready = True

    def send(self, delivery: Delivery, events: EventBatch) -> Sent:
        """Write the batch; see `Sender.send`."""
        batch = list(events)
        if not self._ready:
            # A pipeline that was not started by the command line has had no check that creates the tables.
            self.check()
        with self._errors():
            progress = self._known.get(delivery.writer) or self._read(delivery.writer)
            entry = progress.entry if progress else None
            # Another try of the same delivery wrote a part. The position is equal, so the rest continues there.
            if progress is not None and not progress.complete and entry == delivery.position:
                return self._continue(delivery, batch, progress, resumed=progress)
            if is_delivered(entry, delivery):
                assert progress is not None
                return progress.sent
            return self._continue(delivery, batch, progress, resumed=None)

    def mark_complete(self, job: str, sink: str, record: int, until_us: int) -> None:
        """Set the time until which the target is complete; see `penstock.publish.MarksComplete`."""
        mark = Mark.of(job, sink, record, until_us)
        if not self._ready:
            self.check()
        with self._errors():
            self._transact(lambda transaction: write_mark(transaction, mark))

    def close(self) -> None:
        # `Database.close` of the client library (read in 3.71) waits for the thread that renews its session, which
        # sleeps for minutes. The session lives four weeks and need not be deleted.
        del self._database

    def _read(self, writer: str) -> StoredEntry | None:
        with self._database.snapshot() as snapshot:
            return read_entry(snapshot, writer)

    def _continue(
        self,
        delivery: Delivery,
        events: list[ChangeEvent],
        known: StoredEntry | None,
        *,
        resumed: StoredEntry | None,
    ) -> Sent:
        """Write the events that the ledger does not have yet.

        `known` is the entry of the ledger, `resumed` the same if it has a part of this delivery.
        """
        start = resumed.done if resumed else 0
        refused = dict(resumed.refused) if resumed else {}
        # From the first event that the ledger does not have.
        ranges = _parts(events, start)
        while ranges:
            first, last = ranges.pop(0)
            # The ledger says "complete" with the last part only.
            complete = not ranges
            after = StoredEntry(*delivery.position, last, complete, tuple(sorted(refused.items())))
            try:
                self._commit(delivery.writer, events[first:last], known, after)
            except (exceptions.GoogleAPICallError, NotReplicableError, ValueError) as error:
                if isinstance(error, exceptions.GoogleAPICallError) and not is_row_error(_code_of(error)):
                    raise
                # Spanner does not say which row it refused, so the range is halved until one is left.
                if last - first > 1:
                    middle = (first + last) // 2
                    ranges[:0] = [(first, middle), (middle, last)]
                    continue
                refused[first] = _reason(error)
                if not self._skip_refused:
                    raise RefusalError(
                        Refusal(first, refused[first]), PARTLY_WRITTEN if first else NOTHING_WRITTEN
                    ) from error
                after = msgspec.structs.replace(after, refused=tuple(sorted(refused.items())))
                # An empty commit with the refusal: a repeat of the batch must refuse the same row.
                self._commit(delivery.writer, [], known, after)
            known = self._known[delivery.writer] = after
        return Sent(tuple(Refusal(*each) for each in sorted(refused.items())))

    def _commit(
        self, writer: str, events: Sequence[ChangeEvent], known: StoredEntry | None, after: StoredEntry
    ) -> None:
        # Outside of `work`, which runs again if the transaction is aborted.
        tables = fold(events)
        keys = {source: self._key_of(changes) for source, changes in tables.items()}

        def work(transaction: Any) -> None:
            # Another process may have written this batch, or a part of it, since the ledger was read.
            if read_entry(transaction, writer) != known:
                raise TargetUnavailableError(f"{self._target.name}: another process writes the same batch")
            for source, changes in tables.items():
                _write_table(transaction, changes, keys[source])
            write_entry(transaction, writer, after)

        self._transact(work)

    def _key_of(self, changes: TableChanges) -> Sequence[str]:
        """Return the columns of the primary key of the target's table, in its order, if a row is deleted by them."""
        names = [column.name for column in changes.schema.key_columns]
        if len(names) < 2 or not any(change.deleted for change in changes.rows.values()):
            return names
        table = table_of(changes.source)
        if table not in self._keys:
            with self._database.snapshot() as snapshot:
                self._keys |= primary_keys(snapshot.execute_sql(KEY_COLUMNS))
        return self._keys.get(table, names)

    def _transact(self, work: Callable[[Any], None]) -> None:
        """Run a function in a transaction, again if the transaction is aborted."""
        self._database.run_in_transaction(
            work,
            transaction_tag=self._target.transaction_tag,
            # After an abort Spanner says how long to wait. The emulator, which runs one transaction at a time and
            # aborts the others, does not; then the client library (read in 3.71) would wait for 2 to 3 s.
            default_retry_delay=_RETRY_SECONDS,
        )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except GoogleAuthError as error:
            raise self._classified("UNAUTHENTICATED", error) from error
        except exceptions.GoogleAPICallError as error:
            raise self._classified(_code_of(error), error, error.message) from error

    def _classified(self, code: str, error: Exception, message: str = "") -> ServiceError:
        return classify_error(code, type(error).__name__, message, self._target.name)


def _code_of(error: exceptions.GoogleAPICallError) -> str:
    status: Any = error.grpc_status_code
    return str(status.name) if status else ""


def _client(target: SpannerTarget) -> Any:
    if target.emulator_host is None:
        return spanner.Client(project=target.project)
    # The client library (read in 3.71) takes the address of an emulator from the environment only.
    os.environ[EMULATOR_VARIABLE] = target.emulator_host
    return spanner.Client(
        project=target.project, credentials=AnonymousCredentials(), disable_builtin_metrics=True
    )


def _parts(events: Sequence[ChangeEvent], start: int) -> list[tuple[int, int]]:
    """Return ranges of events that fit into one transaction each; one empty range if there is none."""
    ranges, first, cells = [], start, 0
    for index in range(start, len(events)):
        # The row, and its row in the table of versions.
        size = len(events[index].schema.columns) + len(VERSION_COLUMNS)
        if cells + size > MAX_CELLS and index > first:
            ranges.append((first, index))
            first, cells = index, 0
        cells += size
    return [*ranges, (first, len(events))]


def _write_table(transaction: Any, changes: TableChanges, primary_key: Sequence[str]) -> None:
    refuse_truncate(changes)
    table = table_of(changes.source)
    types = {column.name: column.type for column in changes.schema}
    # Versions are found by table and key, in one read for all rows of a table.
    keys = {
        key_text([spanner_value(types[name], value) for name, value in change.key.items()]): change
        for change in changes.rows.values()
    }
    read = transaction.read(VERSIONS, VERSION_COLUMNS, KeySet(keys=[(table, key) for key in keys]))
    known = {key: version for _, key, version, _ in read}
    for key, change in keys.items():
        version = encode_version(change.version)
        # Read in the transaction, so no other writer can change it before the commit.
        if key in known and known[key] >= version:
            continue
        write_row(transaction, table, change, changes.schema, primary_key)
        # The time of the change, which is the same if the batch is sent again.
        deleted = format_timestamp(change.timestamp) if change.deleted else None
        transaction.insert_or_update(VERSIONS, VERSION_COLUMNS, [(table, key, version, deleted)])


def refuse_truncate(changes: TableChanges) -> None:
    """Raise a NotReplicableError if a batch has a TRUNCATE."""
    if changes.truncated is not None:
        raise NotReplicableError(
            f"table {changes.source.table}: Spanner has no TRUNCATE, so WriteToSpanner does not apply one"
        )


def write_row(
    transaction: Any, table: str, change: RowChange, schema: TableSchema, primary_key: Sequence[str]
) -> None:
    """Write a row in a transaction: its changed columns, or its deletion.

    `primary_key`: the columns of the target's primary key, in its order.

    Raises:
        ValueError: Spanner has no type for a value.
        NotReplicableError: the key changed, and the source did not send all columns; or a row is deleted, and the
            target's primary key has other columns.
    """
    types = {column.name: column.type for column in schema}
    key = {name: spanner_value(types[name], value) for name, value in change.key.items()}
    if change.deleted:
        if key.keys() != set(primary_key):
            raise NotReplicableError(
                f"table {table}: the primary key of the target is ({', '.join(primary_key)}), and the key of the row "
                f"is ({', '.join(key)}): create the table with the key of the source"
            )
        # A deletion has no names of columns. The source's key may have another order.
        transaction.delete(table, KeySet(keys=[[key[name] for name in primary_key]]))
        return
    values = dict(change.values)
    # Columns that the source has and did not send.
    not_sent = [name for name in schema.names if name not in values and name not in change.key]
    if change.base is None:
        # A new row: columns that were not sent are NULL, also if the row was there before.
        values |= dict.fromkeys(not_sent)
    elif change.base != change.key and not_sent:
        raise NotReplicableError(
            f"table {table}: the key of a row changed, and the source did not send all columns: let the source send "
            "whole rows"
        )
    # The key comes first: Spanner needs it in every mutation.
    columns = [*key, *values]
    row = [*key.values(), *(spanner_value(types[name], value) for name, value in values.items())]
    # Columns that are not named keep their values.
    transaction.insert_or_update(table, columns, [row])


def _reason(error: Exception) -> str:
    """Return why a row is refused, without its values, which messages of the service may show."""
    if isinstance(error, exceptions.GoogleAPICallError):
        return f"Spanner says {type(error).__name__}"
    return str(error)
