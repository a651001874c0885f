"""Spanner change streams as a Beam source.

    with beam.Pipeline() as pipeline:
        changes = pipeline | ReadFromSpannerChangeStream(
            project="my-project", instance="my-instance", database="bank", change_stream="AllChanges")

Importing this package imports no Google Cloud client; a running pipeline does.
"""

from penstock.errors import (
    ChangeStreamError,
    DecodeError,
    LineageError,
    PositionLostError,
    SetupError,
    UnavailableError,
)
from penstock.io.spanner.coder import DataChangeRecordCoder
from penstock.io.spanner.read import ReadFromSpannerChangeStream
from penstock.io.spanner.record import (
    ColumnType,
    DataChangeRecord,
    Mod,
    Mods,
)
from penstock.io.spanner.source import ChangeStream
from penstock.timestamps import format_timestamp, parse_timestamp

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
    "SetupError",
    "UnavailableError",
    "format_timestamp",
    "parse_timestamp",
]
