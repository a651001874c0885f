"""The coders of log records and of the reader's frontier. A log record is a version byte and a msgpack array.

    [kind, event_timestamp, transaction, sequence, lsn, last, table, new, old, old_is_full, cascade, restart_identity,
     prefix, content, incremental]

`transaction` is [id, commit_lsn, commit_timestamp, origin, origin_lsn, previous_end_lsn] or nil. `table` is the msgpack
encoding of the table as bytes, or nil: it is encoded and parsed once per distinct table. A row is an array of texts,
bytes and nil; `false` stands for a large value that did not change.
"""

from __future__ import annotations

from typing import Any

import msgspec
from apache_beam import coders

from penstock.coders import VersionedCoder, cached_coding
from penstock.io.change_streams import coders as shared
from penstock.io.change_streams.flat import FlatFrontier, FlatPosition
from penstock.io.change_streams.flat_tracker import FlatFrontierCoder
from penstock.io.change_streams.incremental.progress import SnapshotProgress
from penstock.io.postgres.initial_scan.frontier import LogFrontier
from penstock.io.postgres.position import NO_SNAPSHOTS, Position, ReadView
from penstock.io.postgres.record import UNCHANGED, ChangeKind, LogRecord, LogTransaction, Row, Table
from penstock.io.postgres.source import ChangeStream

VERSION = b"\x01"
_KINDS = tuple(ChangeKind)
_NUMBERS = {kind: number for number, kind in enumerate(_KINDS)}
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
_table_bytes, _table = cached_coding(Table)


class LogRecordCoder(VersionedCoder):
    """Encodes a `LogRecord` in the format of this module; deterministic."""

    value_type = LogRecord
    what = "a LogRecord"

    def encode(self, value: LogRecord) -> bytes:
        return VERSION + _encode(
            (
                # The last six fields have defaults: `decode` also reads records that end before them.
                _NUMBERS[value.kind],
                value.event_timestamp,
                value.transaction,
                value.sequence,
                value.lsn,
                value.last,
                None if value.table is None else _table_bytes(value.table),
                _packed(value.new),
                _packed(value.old),
                value.old_is_full,
                value.cascade,
                value.restart_identity,
                value.prefix,
                value.content,
                value.incremental,
            )
        )

    def decode(self, encoded: bytes) -> LogRecord:
        """Return the record.

        Raises:
            ValueError: the bytes were written by a version that this one does not know.
        """
        self.check_version(encoded[0] if encoded else None)
        kind, timestamp, transaction, sequence, lsn, last, table, new, old, *rest = _decode(
            memoryview(encoded)[1:]
        )
        return LogRecord(
            _KINDS[kind],
            timestamp,
            None if transaction is None else LogTransaction(*transaction),
            sequence,
            lsn,
            last,
            None if table is None else _table(table),
            _unpacked(new),
            _unpacked(old),
            *rest,
        )


def _packed(row: Row | None) -> Any:
    # `false` can stand for it, because a row has only texts, bytes and NULL, which is nil.
    # Nearly no row has such a value, and `in` is faster than a new tuple.
    if row is None or UNCHANGED not in row:
        return row
    return [False if value is UNCHANGED else value for value in row]


def _unpacked(row: list[Any] | None) -> Row | None:
    if row is None:
        return None
    # A row has no numbers, so nothing but `false` is equal to False.
    return tuple([UNCHANGED if value is False else value for value in row]) if False in row else tuple(row)


class ChangeStreamCoder(shared.ChangeStreamCoder):
    """Encodes a `ChangeStream`."""

    value_type = ChangeStream
    system = "postgres"

    def stream(self, fields: list[Any]) -> ChangeStream:
        database, publication, slot, start, end, further = fields
        others = tuple((name, names) for name, names in further)
        return ChangeStream(database, publication, slot, start, end, others)


class LogFrontierCoder(FlatFrontierCoder):
    """Encodes the frontier of a log reader: ``{"end", "positions": {name of the slot: [at, watermark]}, "v":1}``.

    `at` is [lsn, claimed, system, previous_end, snapshots, recent, prepared, initial, published, blocks]; see
    `Position`. `initial` is a list or null. `snapshots` is the document of a `SnapshotProgress`, and null if there is
    none. `published` is missing in older checkpoints, and `blocks` if there are none.
    """

    def document(self, frontier: FlatFrontier) -> dict[str, Any]:
        positions = {
            name: [_position_document(Position(*position.position)), position.watermark]
            for name, position in frontier.positions.items()
        }
        return {"end": frontier.end, "positions": positions}

    value_type = LogFrontier

    def frontier(self, document: dict[str, Any]) -> LogFrontier:
        positions = {
            name: FlatPosition(_position(at), watermark)
            for name, (at, watermark) in document["positions"].items()
        }
        return LogFrontier(positions, document["end"])


def _position_document(position: Position) -> list[Any]:
    snapshots = None if position.snapshots == NO_SNAPSHOTS else position.snapshots.document()
    initial = None if position.initial is None else list(position.initial)
    document = [
        *position[:4],
        snapshots,
        list(position.recent),
        position.prepared,
        initial,
        position.published,
    ]
    return [*document, list(map(list, position.blocks))] if position.blocks else document


def _position(document: list[Any]) -> list[Any]:
    lsn, claimed, system, previous_end, snapshots, recent, prepared, initial, *more = document
    published, blocks = [*more, "", ()][:2] if len(more) < 2 else more
    progress = NO_SNAPSHOTS if snapshots is None else SnapshotProgress.from_document(snapshots)
    return list(
        Position(
            lsn,
            claimed,
            system,
            previous_end,
            progress,
            tuple(recent),
            prepared,
            None if initial is None else ReadView(*initial),
            published,
            tuple((name, number, has_key) for name, number, has_key in blocks),
        )
    )


coders.registry.register_coder(LogRecord, LogRecordCoder)
coders.registry.register_coder(ChangeStream, ChangeStreamCoder)
