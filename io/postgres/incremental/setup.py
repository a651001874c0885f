"""Puts together the snapshots of a log reader: chunk readers, channels, worker and merge."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from psycopg import sql

from penstock.io.change_streams.backoff import Backoff
from penstock.io.change_streams.incremental.channels import Channel, TableChannel, channels_of
from penstock.io.change_streams.incremental.worker import SnapshotWorker
from penstock.io.postgres.client import LOCK_TIMEOUT_MS, Client
from penstock.io.postgres.errors import LockedError
from penstock.io.postgres.incremental.chunk_reader import ChunkReader
from penstock.io.postgres.incremental.held_read_view import HeldReadView
from penstock.io.postgres.incremental.merge import SnapshotMerge
from penstock.io.postgres.position import Position
from penstock.io.postgres.source import ChangeStream, Connection

_PUBLISHED = "select from pg_publication_tables where schemaname || '.' || tablename = %s and pubname = any(%s) limit 1"


def _signals(table: str) -> str:
    schema, _, name = table.partition(".")
    query = sql.SQL("select id::text, type::text, data::text from {}.{} order by id")
    return query.format(sql.Identifier(schema), sql.Identifier(name)).as_string()


class _SignalTable:
    """The rows of the signal table, or none if the log has them: signals in the log have a place there."""

    def __init__(self, stream: ChangeStream, connection: Connection, table: str) -> None:
        self._publications, self._table = list(stream.publications), table
        self._client = Client(stream, connection, lock_timeout_ms=LOCK_TIMEOUT_MS)
        self._is_published: bool | None = None

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the rows that are not in the log; none while a migration locks a table. Raises as `Client.rows`."""
        try:
            if self._is_published is None:
                self._is_published = bool(self._client.rows(_PUBLISHED, (self._table, self._publications)))
                if self._is_published:
                    self.close()
            return [] if self._is_published else self._client.rows(_signals(self._table))
        except LockedError:
            return []

    def close(self) -> None:
        self._client.close()


def channels_of_slot(stream: ChangeStream, settings: Any) -> list[Channel]:
    """Return the channels of signals besides the log."""
    found = channels_of(settings.snapshots)
    if settings.snapshots.signal_table:
        table = _SignalTable(stream, settings.connection, settings.snapshots.signal_table)
        found.append(TableChannel(table.rows, table.close))
    return found


def merge_maker(stream: ChangeStream, settings: Any, backoff: Backoff) -> Callable[[Position], SnapshotMerge]:
    """Return what makes the snapshots of a reader that begins at a position."""
    options = settings.snapshots

    def make(position: Position) -> SnapshotMerge:
        held = HeldReadView(stream, settings.connection, position.initial)

        def make_reader(stopped: Callable[[], bool]) -> ChunkReader:
            return ChunkReader(stream, settings.connection, settings.selection, held, stopped=stopped)

        worker = SnapshotWorker(
            make_reader,
            partial(channels_of_slot, stream, settings),
            backoff,
            threads=options.parallel_tables,
            poll_seconds=options.poll_seconds,
            unavailable_seconds=settings.limits.unavailable_seconds,
        )
        # A client is not thread-safe, and the thread of the log asks while the threads of the worker read.
        asking = make_reader(lambda: False)
        return SnapshotMerge(
            worker,
            options,
            str(stream),
            position.snapshots,
            position.recent,
            held,
            position.initial,
            notifications=settings.notification_output,
            dead_letters=settings.error_output,
            visible=asking.visible,
            blocks=asking.blocks,
            close=asking.close,
        )

    return make
