"""YDB's changefeeds as a Beam source.

    with beam.Pipeline() as pipeline:
        changes = pipeline | ReadFromYdbChangefeed(
            endpoint="grpcs://ydb.example.org:2135", database="/prod/shop", table="orders", changefeed="feed")

Names are loaded when they are first used, so that the pure modules of this package (frontier, steps, decoder) can be
imported without Beam. Modules whose names are not listed here are internal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# The shared names are the same in every source, so that users find them in the package of their transform.
from penstock.errors import ChangeStreamError, DecodeError, PositionLostError, SetupError, UnavailableError
from penstock.lazy import load
from penstock.timestamps import format_timestamp, parse_timestamp

if TYPE_CHECKING:
    from penstock.io.ydb.coder import ChangefeedRecordCoder
    from penstock.io.ydb.description import Description, PartitionDescription
    from penstock.io.ydb.read import ReadFromYdbChangefeed
    from penstock.io.ydb.record import ChangefeedRecord, Table, TableColumn
    from penstock.io.ydb.source import ChangeStream

__all__ = [
    "ChangeStream",
    "ChangeStreamError",
    "ChangefeedRecord",
    "ChangefeedRecordCoder",
    "DecodeError",
    "Description",
    "PartitionDescription",
    "PositionLostError",
    "ReadFromYdbChangefeed",
    "SetupError",
    "Table",
    "TableColumn",
    "UnavailableError",
    "format_timestamp",
    "parse_timestamp",
]

_HOMES = {
    "ChangeStream": "coder",
    "ChangefeedRecord": "coder",
    "ChangefeedRecordCoder": "coder",
    "Description": "description",
    "PartitionDescription": "description",
    "ReadFromYdbChangefeed": "read",
    "Table": "record",
    "TableColumn": "record",
}
# Records and streams come from `coder`: with the name, their coder is registered.


def __getattr__(name: str) -> Any:
    return load(__name__, _HOMES, name)
