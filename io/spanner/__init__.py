"""Spanner change streams as a Beam source.

    with beam.Pipeline() as pipeline:
        changes = pipeline | ReadFromSpannerChangeStream(
            project="my-project", instance="my-instance", database="bank", change_stream="AllChanges")

Names are loaded when they are first used, so that the pure modules of this package (records, frontier, decoder) can be
imported without Beam. No import of this package loads a Google Cloud client; a running pipeline does.
Modules whose names are not listed here are internal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# The shared names are the same in every source, so that users find them in the package of their transform.
from penstock.errors import (
    ChangeStreamError,
    DecodeError,
    LineageError,
    PositionLostError,
    SetupError,
    UnavailableError,
)
from penstock.lazy import load
from penstock.timestamps import format_timestamp, parse_timestamp

if TYPE_CHECKING:
    from penstock.io.spanner.coder import DataChangeRecordCoder
    from penstock.io.spanner.read import ReadFromSpannerChangeStream
    from penstock.io.spanner.record import ColumnType, DataChangeRecord, Mod, Mods
    from penstock.io.spanner.sink.write import WriteToSpanner
    from penstock.io.spanner.source import ChangeStream
    from penstock.io.spanner.table import ReadFromSpannerTable

__all__ = [
    "ChangeStream",
    "ChangeStreamError",
    "ColumnType",
    "DataChangeRecord",
    "DataChangeRecordCoder",
    "DecodeError",
    "LineageError",
    "Mod",
    "Mods",
    "PositionLostError",
    "ReadFromSpannerChangeStream",
    "ReadFromSpannerTable",
    "SetupError",
    "UnavailableError",
    "WriteToSpanner",
    "format_timestamp",
    "parse_timestamp",
]

_HOMES = {
    "ChangeStream": "coder",
    "ColumnType": "record",
    "DataChangeRecord": "coder",
    "DataChangeRecordCoder": "coder",
    "Mod": "record",
    "Mods": "record",
    "ReadFromSpannerChangeStream": "read",
    "ReadFromSpannerTable": "table",
    "WriteToSpanner": "sink.write",
}
# Records and streams come from `coder`: with the name, their coder is registered.


def __getattr__(name: str) -> Any:
    return load(__name__, _HOMES, name)
