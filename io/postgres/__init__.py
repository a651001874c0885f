"""PostgreSQL's write-ahead log as a Beam source.

    with beam.Pipeline() as pipeline:
        changes = pipeline | ReadFromPostgresChangeStream(
            dsn="host=db.example.org dbname=shop user=penstock", publication="shop_changes", slot="penstock")

Names are loaded when they are first used, so that the pure modules of this package (messages, decoder, values) can be
imported without Beam. Modules whose names are not listed here are internal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# The shared names are the same in every source, so that users find them in the package of their transform.
from penstock.errors import ChangeStreamError, DecodeError, PositionLostError, SetupError, UnavailableError
from penstock.lazy import load
from penstock.timestamps import format_timestamp, parse_timestamp

if TYPE_CHECKING:
    from penstock.io.postgres.coder import LogRecordCoder
    from penstock.io.postgres.read import ReadFromPostgresChangeStream
    from penstock.io.postgres.record import (
        UNCHANGED,
        ChangeKind,
        LogRecord,
        LogTransaction,
        Table,
        TableColumn,
        format_lsn,
        parse_lsn,
    )
    from penstock.io.postgres.source import ChangeStream

__all__ = [
    "UNCHANGED",
    "ChangeKind",
    "ChangeStream",
    "ChangeStreamError",
    "DecodeError",
    "LogRecord",
    "LogRecordCoder",
    "LogTransaction",
    "PositionLostError",
    "ReadFromPostgresChangeStream",
    "SetupError",
    "Table",
    "TableColumn",
    "UnavailableError",
    "format_lsn",
    "format_timestamp",
    "parse_lsn",
    "parse_timestamp",
]

_HOMES = {
    "UNCHANGED": "record",
    "ChangeKind": "record",
    "ChangeStream": "coder",
    "LogRecord": "coder",
    "LogRecordCoder": "coder",
    "LogTransaction": "record",
    "ReadFromPostgresChangeStream": "read",
    "Table": "record",
    "TableColumn": "record",
    "format_lsn": "record",
    "parse_lsn": "record",
}
# Records and streams come from `coder`: with the name, their coder is registered.


def __getattr__(name: str) -> Any:
    return load(__name__, _HOMES, name)
