"""Bigtable change streams as a Beam source.

    with beam.Pipeline() as pipeline:
        changes = pipeline | ReadFromBigtableChangeStream(
            project="my-project", instance="my-instance", table="my-table")

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
    from penstock.io.bigtable.coder import ChangeStreamMutationCoder
    from penstock.io.bigtable.keys import KeyRange
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
    from penstock.io.bigtable.sink.write import WriteToBigtable
    from penstock.io.bigtable.source import ChangeStream
    from penstock.io.bigtable.table import ReadFromBigtableTable, TableRow

__all__ = [
    "AddToCell",
    "ChangeStream",
    "ChangeStreamError",
    "ChangeStreamMutation",
    "ChangeStreamMutationCoder",
    "DecodeError",
    "DeleteCells",
    "DeleteFamily",
    "KeyRange",
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
    "WriteToBigtable",
    "format_timestamp",
    "parse_timestamp",
]

_HOMES = {
    "AddToCell": "record",
    "ChangeStream": "coder",
    "ChangeStreamMutation": "coder",
    "ChangeStreamMutationCoder": "coder",
    "DeleteCells": "record",
    "DeleteFamily": "record",
    "KeyRange": "keys",
    "MergeToCell": "record",
    "MutationType": "record",
    "ReadFromBigtableChangeStream": "read",
    "ReadFromBigtableTable": "table",
    "SetCell": "record",
    "TableRow": "table",
    "UnknownMutation": "record",
    "WriteToBigtable": "sink.write",
}
# Records and streams come from `coder`: with the name, their coder is registered.


def __getattr__(name: str) -> Any:
    return load(__name__, _HOMES, name)
