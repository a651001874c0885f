"""Bigtable change streams as a Beam source.

    with beam.Pipeline() as pipeline:
        changes = pipeline | ReadFromBigtableChangeStream(
            project="my-project", instance="my-instance", table="my-table")

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
from penstock.io.bigtable.coder import ChangeStreamMutationCoder
from penstock.io.bigtable.read import ReadFromBigtableChangeStream
from penstock.io.bigtable.record import (
    AddToCell,
    ChangeStreamMutation,
    DeleteCells,
    DeleteFamily,
    MergeToCell,
    MutationType,
    SetCell,
    UnknownMutation,
)
from penstock.io.bigtable.snapshot import ReadFromBigtableTable, TableRow
from penstock.io.bigtable.source import ChangeStream
from penstock.timestamps import format_timestamp, parse_timestamp

__all__ = [
    "AddToCell",
    "ChangeStream",
    "ChangeStreamError",
    "ChangeStreamMutation",
    "ChangeStreamMutationCoder",
    "DecodeError",
    "DeleteCells",
    "DeleteFamily",
    "LineageError",
    "MergeToCell",
    "MutationType",
    "PositionLostError",
    "ReadFromBigtableChangeStream",
    "ReadFromBigtableTable",
    "SetCell",
    "SetupError",
    "TableRow",
    "UnavailableError",
    "UnknownMutation",
    "format_timestamp",
    "parse_timestamp",
]
