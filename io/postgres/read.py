"""The splittable DoFn and the transform that read replication slots.

    changes = pipeline | ReadFromPostgresChangeStream(
        dsn="host=db.example.org dbname=shop user=penstock", publication="shop_changes", slot="penstock")

- **Order**: all changes come in the order of the log: transactions in the order of their commits, and the changes of a
  transaction in the order of its statements. Rolled-back transactions and savepoints do not come.
- **After a crash**: the read continues at the last checkpoint, which may be inside of a transaction. Changes before it
  are not emitted again. Changes that a lost bundle had emitted are emitted again.
- **Watermark**: the commit timestamps of the log, and the server's clock when everything that was committed before it
  has been read; so it advances while nothing changes.
- **Snapshots**: rows of tables are records of the kind READ. Rows of an initial snapshot come before all changes, rows
  that a signal requests between them. No row follows a change of its key that it does not contain. docs/snapshots.md
  has the rest.
- **Several slots** are partitions of one read: each has its own order, position and acknowledgement, and the watermark
  is the lowest one.
- **DDL** is not in the log. The published tables are compared with the last known ones when a reader starts and every
  minute, and a warning says what the target lacks; see `schema_watch`.
- **State**: one position of each slot in the restriction, with the names of the published tables and their columns. The
  server keeps its log from the last position that a bundle *began* at: such a position is in the checkpoint. While the
  pipeline is stopped, the log grows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from typing_extensions import Self

from penstock.datasets import ReadTable, postgres_dataset
from penstock.errors import (
    ChangeStreamError,
    SetupError,
    SeveralProblemsError,
    UnavailableError,
    UsageError,
)
from penstock.event.model import Source
from penstock.io.change_streams.arguments import check_end, in_range, named, period
from penstock.io.change_streams.backoff import Backoff
from penstock.io.change_streams.flat import FlatPosition
from penstock.io.change_streams.flat_tracker import FlatTracker
from penstock.io.change_streams.incremental.channels import check_folder
from penstock.io.change_streams.incremental.options import (
    NEVER,
    WHEN_NEEDED,
    SnapshotOptions,
    initial_request,
)
from penstock.io.change_streams.kinds import StreamKind
from penstock.io.change_streams.process_local import ProcessLocal
from penstock.io.change_streams.read_fn import ReadChangeStreamFn, Unbounded
from penstock.io.change_streams.settings import Limits
from penstock.io.change_streams.transform import ReadFromChangeStream
from penstock.io.postgres import coder
from penstock.io.postgres.initial_scan.frontier import LogFrontier
from penstock.io.postgres.initial_scan.kind import ScanKind
from penstock.io.postgres.log_steps import Wanted
from penstock.io.postgres.metrics import PostgresMetrics
from penstock.io.postgres.names import checked_slot, database_of
from penstock.io.postgres.options import PostgresStreamOptions
from penstock.io.postgres.pool import StreamPool
from penstock.io.postgres.position import NO_SNAPSHOTS, Position
from penstock.io.postgres.preflight import (
    IDENTITIES,
    Slot,
    check_shards,
    check_signal_table,
    check_source,
    free_slot_problems,
    prepared_slot,
    source_tables,
    unmatched_tables,
)
from penstock.io.postgres.record import LogRecord, LogTransaction, Table
from penstock.io.postgres.retained_log import retained_log
from penstock.io.postgres.schema_watch import SchemaWatch, repair_of
from penstock.io.postgres.setup_warnings import start_warnings_of, warnings_of
from penstock.io.postgres.source import ChangeStream, Connection, PostgresSettings
from penstock.io.postgres.stream import SlotStream
from penstock.measurement import Measurement
from penstock.tables import EVERY_TABLE, SourceTable, TableSelection, Unmatched

if TYPE_CHECKING:
    from penstock.io.postgres.client import Client
    from penstock.io.postgres.connection import Server
    from penstock.io.postgres.incremental.chunk_reader import ChunkReader

_BACKOFFS: ProcessLocal[Backoff] = ProcessLocal()
Slots = Mapping[str, Slot]
"""Each slot by its name."""


class _Asking:
    """A client with the back-off of its server."""

    def __init__(self, client: Client, backoff: Backoff) -> None:
        self.rows, self.close, self.backoff = client.rows, client.close, backoff


class ReadPostgresFn(ReadChangeStreamFn):
    """Turns `ChangeStream` elements into timestamped `LogRecord`s."""

    frontier_type = LogFrontier
    tracker_type = FlatTracker
    frontier_coder = coder.LogFrontierCoder
    metrics_type = PostgresMetrics
    # The prefetcher limits how long a split waits.
    split_deferral_seconds = math.inf
    no_rewind = (
        "a PostgreSQL server does not keep the log that a slot has confirmed, so the slot cannot go back. Restore the "
        "target by its own means, and let the job read the tables again (penstock snapshot), or compare and repair "
        "(penstock verify --repair)"
    )

    def kinds(self) -> tuple[StreamKind, ...]:
        return (ScanKind(self), *super().kinds())

    def connect(self, stream: ChangeStream) -> _Asking:
        # The client imports psycopg, which only a running pipeline needs.
        from penstock.io.postgres.client import Client

        return _Asking(Client(stream, self._settings.connection), _backoff(stream))

    def open_pool(self, stream: ChangeStream) -> StreamPool:
        from penstock.io.postgres.incremental.setup import merge_maker

        settings = self._settings
        self._client(stream)  # compares the stream with the program's
        shards = {shard.slot: shard for shard in stream.shards}
        servers = {slot: self.open_server(shard) for slot, shard in shards.items()}
        options = settings.snapshots
        repair = repair_of(options, several_slots=bool(stream.further))
        watches = {
            slot: SchemaWatch(
                servers[slot].published,
                shard.short_name,
                settings.selection,
                repair,
                reads_new_tables=options.reads_new_tables,
                reads_new_columns=options.reads_new_columns,
            )
            for slot, shard in shards.items()
        }

        def make(slot: str, at: FlatPosition, buffer_bytes: int) -> SlotStream:
            make_merge = merge_maker(shards[slot], settings, _backoff(stream))
            return SlotStream(
                servers[slot],
                slot,
                at,
                wanted=wanted(settings.selection, stream.start),
                end=stream.end,
                buffer_bytes=buffer_bytes,
                make_merge=make_merge if _has_snapshots(settings, at.position) else None,
                renews=settings.snapshots.snapshot == WHEN_NEEDED,
                watch=watches[slot],
            )

        return StreamPool(make, _backoff(stream), settings.limits)

    def open_server(self, stream: ChangeStream) -> Server:
        """Return the server of a stream with one slot, whose log is not opened yet."""
        from penstock.io.postgres.connection import Server

        settings = self._settings
        return Server(stream, settings.connection, settings.heartbeat_ms / 1000, _backoff(stream))

    def ask_service(self, client: _Asking, stream: ChangeStream) -> Slots:
        """Check every slot, and return those that exist."""
        options, connection = self._settings.snapshots, self._settings.connection
        found: dict[str, Slot] = {}
        problems: list[ChangeStreamError] = []
        try:
            for shard in stream.shards:
                # All slots are checked before an error is raised, so that a person sees every problem at once.
                if connection.preview:
                    problems += free_slot_problems(shard, client.rows, connection.reader_name)
                try:
                    slot = check_source(
                        shard,
                        client.rows,
                        # Of a preview, `free_slot_problems` tells it in other words.
                        create_slot=connection.create_slot or connection.preview,
                        renew_slot=options.snapshot == WHEN_NEEDED,
                        reads_tables=options.snapshot != NEVER
                        or options.reads_new_tables
                        or options.reads_new_columns,
                        streaming=connection.streaming,
                    )
                except ChangeStreamError as error:
                    problems.append(error)
                else:
                    found |= {} if slot is None else {shard.slot: slot}
            try:
                check_shards(stream, client.rows)
            except SetupError as error:
                problems.append(error)
        finally:
            client.close()
        if problems:
            raise SeveralProblemsError.of(problems, stream.database)
        return found

    def initial_restriction(self, element: ChangeStream) -> LogFrontier:
        """Also create the slots that do not exist: checks from the driver change nothing."""
        self.check_start(element)
        found, client = self.check(element), self._client(element)

        def prepare() -> Slots:
            try:
                return {
                    shard.slot: prepared_slot(
                        shard,
                        client.rows,
                        found.get(shard.slot),
                        renew_slot=self._settings.snapshots.snapshot == WHEN_NEEDED,
                    )
                    for shard in element.shards
                }
            # A next try comes after a pause and opens another session.
            finally:
                client.close()

        prepared = client.backoff.ask(prepare, self._settings.limits.unavailable_seconds)
        return self.first_frontier(element, prepared)

    def first_frontier(self, stream: ChangeStream, said: Slots) -> LogFrontier:
        """Return each slot at its confirmed position."""
        positions = {}
        for name, slot in said.items():
            position = Position(slot.confirmed_lsn, 0, slot.system)
            if self._settings.snapshots.snapshot != NEVER:
                position = position._replace(snapshots=NO_SNAPSHOTS.with_initial(initial_request()))
            positions[name] = FlatPosition(list(position), stream.start)
        return LogFrontier(positions, stream.end)

    def check_start(self, stream: ChangeStream) -> None:
        """Check that the tables exist that the program names, and that the end is not before the start.

        A slot has its own position, so any start is possible.
        """
        check_end(stream.start, stream.end, SetupError)
        if problems := self.start_problems(stream):
            raise SeveralProblemsError.of(problems, stream.database)

    def start_problems(self, stream: ChangeStream) -> list[ChangeStreamError]:
        """Return what keeps a pipeline from starting. One that resumes is warned: tables may have been dropped."""
        options = self._settings.snapshots
        problems: list[ChangeStreamError] = [SetupError(text) for text in self.unmatched_tables(stream).names]
        checks: list[Callable[[], None]] = []
        if table := options.signal_table:
            checks.append(
                lambda: self.asked(stream, lambda client: check_signal_table(stream, client.rows, table))
            )
        if options.signal_folder:
            checks.append(partial(check_folder, options.signal_folder))
        for check in checks:
            try:
                check()
            except SetupError as error:
                problems.append(error)
        return problems

    def unmatched_tables(self, stream: ChangeStream) -> Unmatched:
        """Return texts about patterns that match no table; see `preflight.unmatched_tables`."""
        selection = self._settings.selection
        if selection == EVERY_TABLE:
            return Unmatched([], [])
        return self.asked(stream, lambda client: unmatched_tables(stream, client.rows, selection))

    def asked(self, stream: ChangeStream, question: Callable[[_Asking], Any]) -> Any:
        """Return the answer of the server to a question, with retries."""
        client = self.connect(stream)
        try:
            return client.backoff.ask(partial(question, client), self._settings.limits.unavailable_seconds)
        finally:
            client.close()


def _has_snapshots(settings: PostgresSettings, position: Position) -> bool:
    """Whether a snapshot can begin, or is not finished."""
    options = settings.snapshots
    wanted = options.may_begin or options.snapshot != NEVER
    return wanted or bool(position.snapshots.snapshots) or position.initial is not None


def _backoff(stream: ChangeStream) -> Backoff:
    return _BACKOFFS.get(stream.database, lambda: Backoff("PostgreSQL", UnavailableError))


class ReadPostgresUnboundedFn(Unbounded, ReadPostgresFn):
    """The same for a stream without end."""


class ReadFromPostgresChangeStream(PostgresStreamOptions, ReadFromChangeStream):
    """Read the changes of a publication from PostgreSQL's write-ahead log, through a replication slot.

    For PostgreSQL 14 and later with ``wal_level = logical``. The docstring of this module says what is promised about
    order, repeats and the watermark. Nothing is written to the database, except the slot if `create_slot` is set.

    Raises:
        UsageError: an argument is missing, malformed or out of range, or psycopg is not installed. Whether slot and
            publication exist is known only to the server: `check()` asks it, and the pipeline does so before it reads.
    """

    bounded_fn = ReadPostgresFn
    unbounded_fn = ReadPostgresUnboundedFn
    record_type = LogRecord
    _settings: PostgresSettings

    def __post_init__(self) -> None:
        stream = ChangeStream(
            database_of(self.dsn),
            named("publication", self.publication),
            checked_slot(named("slot", self.slot)),
            # A slot has its own position, so without a start no change is left out.
            *period(0 if self.start is None else self.start, self.end, ahead_seconds=600),
            _further(self.slot, self.publication, self.further_slots),
        )
        self._check(stream)
        connection: Any = Connection(
            dsn=self.dsn,
            protocol=self.protocol,  # type: ignore[arg-type]
            streaming=self.streaming,  # type: ignore[arg-type]
            binary=self.binary,
            create_slot=self.create_slot,
            # Drawn once, in the program: all its workers have this name, and no other program has it.
            reader_name=f"penstock-{uuid4().hex[:12]}",
        )
        settings = PostgresSettings(
            connection=connection,
            limits=Limits.checked(self, max_concurrent_partitions=len(stream.shards)),
            heartbeat_ms=round(1000 * in_range("heartbeat_seconds", self.heartbeat_seconds, 0.05, 60)),
            identity=stream.identity,
            end=stream.end,
            selection=TableSelection.checked(self.tables, self.without_tables),
            snapshots=SnapshotOptions.checked(self, self.snapshot, self.new_columns),
        )
        ReadFromChangeStream.__init__(self, stream, settings)

    def _check(self, stream: ChangeStream) -> None:
        signals = self.signal_table or self.signal_file or self.signal_folder or self.signal_kafka
        if stream.further and signals:
            raise UsageError(
                "signals request snapshots of one slot: with further_slots, leave out signal_table, signal_file, "
                "signal_folder and signal_kafka, or read each slot with its own transform"
            )
        if self.protocol not in ("stream", "pull"):
            raise UsageError(f"protocol must be stream or pull, not {self.protocol!r}")
        if self.streaming not in ("off", "on", "parallel"):
            raise UsageError(f"streaming must be off, on or parallel, not {self.streaming!r}")
        if self.streaming != "off" and self.protocol == "pull":
            raise UsageError(
                "streaming needs protocol=stream: a pull ends with a whole transaction, so set streaming=off"
            )
        if self.signal_table and "." not in self.signal_table:
            raise UsageError(
                f"signal_table: {self.signal_table!r} has no schema; write public.{self.signal_table}"
            )

    @property
    def reads_snapshots(self) -> bool:
        """Whether rows of tables may come between the changes."""
        options = self._settings.snapshots
        return bool(options.may_begin or options.snapshot != NEVER)

    def for_preview(self) -> Self:
        """Return a copy that leaves no trace: the slot must exist and does not move; see the base class."""
        changed = super().for_preview()
        # A variable without a type: `Settings` is shared by all sources, and declares another type of connection.
        held: Any = changed._settings
        connection = replace(held.connection, create_slot=False, preview=True)
        changed._settings = replace(held, connection=connection)
        return changed

    def setup_warnings(self) -> list[str]:
        """Return warnings about the slot and the tables: retention, failover, replica identity. It asks the server.

        Raises:
            ChangeStreamError: the server refused to answer.
            UnavailableError: it did not answer for `unavailable_seconds`.
        """

        def ask(client: _Asking) -> list[str]:
            return [text for shard in self._stream.shards for text in warnings_of(shard, client.rows)]

        fn = self._fn
        problems = map(str, fn.start_problems(self._stream))
        return [*self._asked(ask), *problems, *fn.unmatched_tables(self._stream).globs]

    def start_warnings(self) -> list[str]:
        """Return warnings for a new checkpoint; raises as `setup_warnings` does."""

        def ask(client: _Asking) -> list[str]:
            return [text for shard in self._stream.shards for text in start_warnings_of(shard, client.rows)]

        return self._asked(ask)

    def measure(self) -> list[Measurement]:
        """Return how much log the server keeps for the slots; see `penstock.measurement`. Asks once, without retries.

        Raises:
            UnreachableError: the server does not answer now.
            ChangeStreamError: it refused to answer.
        """
        client = self._fn.connect(self._stream)
        try:
            return retained_log(self._stream, client.rows)
        finally:
            client.close()

    def source_tables(self) -> list[SourceTable]:
        """Return the published tables that are read, with their columns. It asks the server.

        Raises:
            ChangeStreamError: the server refused to answer.
            UnavailableError: it did not answer for `unavailable_seconds`.
        """
        tables: list[SourceTable] = self._asked(lambda client: source_tables(self._stream, client.rows))
        return [table for table in tables if self._settings.selection.has(table.schema, table.name)]

    def row_reader(self) -> ChunkReader:
        """Return a reader of the rows of the tables as they are now. It does not disturb the pipeline."""
        # Imported here, because the module needs psycopg.
        from penstock.io.postgres.incremental.chunk_reader import ChunkReader
        from penstock.io.postgres.incremental.held_read_view import HeldReadView

        connection: Any = self._settings.connection
        held = HeldReadView(self._stream, connection, None)
        return ChunkReader(self._stream, connection, self._settings.selection, held, stopped=lambda: False)

    def tables_read(self) -> list[ReadTable]:
        """Return the tables as datasets; see `penstock.datasets`. It asks and raises as `source_tables` does."""
        database = self._stream.database
        return [
            ReadTable(
                Source("postgresql", "", database, table.schema, table.name),
                postgres_dataset(self.dsn, table.schema, table.name, table.columns, database=database),
            )
            for table in self.source_tables()
        ]

    def capture_type(self) -> str:
        """Return FULL if every published table has the replica identity FULL, else DEFAULT. It asks the server.

        Raises:
            ChangeStreamError: the server refused to answer.
            UnavailableError: it did not answer for `unavailable_seconds`.
        """
        names = [name for shard in self._stream.shards for name in shard.publications]
        rows = self._asked(lambda client: client.rows(IDENTITIES, (names,)))
        return _weakest({identity for (identity,) in rows})

    @property
    def _fn(self) -> ReadPostgresFn:
        return self.bounded_fn(self._settings)

    def _asked(self, question: Callable[[_Asking], Any]) -> Any:
        return self._fn.asked(self._stream, question)


def _weakest(identities: set[str]) -> str:
    # One table that sends less than whole rows is enough to refuse a format that needs them.
    return "FULL" if identities <= {"f"} else "DEFAULT"


def _further(slot: str, publication: str, further: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the other slots with their publications, sorted, so that the order of the argument means nothing."""
    if slot in further:
        raise UsageError(f"further_slots: {slot!r} is the first slot already")
    of_publication: dict[str, str] = {}
    for name, publications in ((slot, publication), *further.items()):
        for each in publications.split(","):
            if each in of_publication:
                raise UsageError(
                    f"further_slots: publication {each!r} belongs to {of_publication[each]} and {name}, so its changes "
                    "would come twice. Give each slot publications of its own"
                )
            of_publication[each] = name
    return tuple(
        sorted((checked_slot(named("further_slots", name)), names) for name, names in further.items())
    )


def wanted(selection: TableSelection, start: int) -> Wanted:
    """Return whether records are emitted: their table is selected, and they were committed at or after `start`."""

    def is_wanted(transaction: LogTransaction | None, table: Table | None) -> bool:
        # The event timestamp of an older transaction is not below `start`, because the watermark begins there.
        if transaction is not None and transaction.commit_timestamp < start:
            return False
        return table is None or selection.has(table.schema, table.name)

    return is_wanted
