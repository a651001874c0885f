"""Puts together the snapshots of a log reader: chunk readers, channels, worker and merge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from psycopg import sql

from penstock.io.change_streams.backoff import Backoff
from penstock.io.change_streams.snapshots.channels import Channel, TableChannel, channels_of
from penstock.io.change_streams.snapshots.worker import SnapshotWorker
from penstock.io.postgres.client import Client
from penstock.io.postgres.log_reader import LogPosition
from penstock.io.postgres.snapshots.chunk_reader import ChunkReader
from penstock.io.postgres.snapshots.held_snapshot import HeldSnapshot
from penstock.io.postgres.snapshots.merge import SnapshotMerge
from penstock.io.postgres.source import ChangeStream

_PUBLISHED = "select from pg_publication_tables where schemaname || '.' || tablename = %s and pubname = any(%s) limit 1"


def _signals(table: str) -> str:
    schema, _, name = table.partition(".")
    query = sql.SQL("select id::text, type::text, data::text from {}.{} order by id")
    return query.format(sql.Identifier(schema), sql.Identifier(name)).as_string()


def merge_maker(
    stream: ChangeStream, settings: Any, backoff: Backoff
) -> Callable[[LogPosition], SnapshotMerge]:
    """Return what makes the snapshots of a reader that begins at a position."""
    options = settings.snapshots

    def channels() -> list[Channel]:
        found = channels_of(options)
        if options.signal_table:
            client = Client(stream, settings.connection)
            # Signals in the log have a place there. Only a table that the log does not have is polled.
            if client.rows(_PUBLISHED, (options.signal_table, list(stream.publications))):
                client.close()
            else:
                found.append(TableChannel(lambda: client.rows(_signals(options.signal_table)), client.close))
        return found

    def make(position: LogPosition) -> SnapshotMerge:
        held = HeldSnapshot(stream, settings.connection)

        def make_reader(stopped: Callable[[], bool]) -> ChunkReader:
            return ChunkReader(stream, settings.connection, settings.tables, held, stopped=stopped)

        worker = SnapshotWorker(
            make_reader,
            channels,
            backoff,
            threads=options.parallel_tables,
            poll_seconds=options.poll_seconds,
            unavailable_seconds=settings.limits.unavailable_seconds,
        )
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
            close=asking.close,
        )

    return make
