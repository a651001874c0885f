"""Change events as rows with columns: Parquet and Avro files, for the sinks that write files and tables.

    table = change_rows(events, schema)          # penstock.event.change_rows

The modules here turn encoded events into the content of files (`penstock.io.staging.FileFormat`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.lazy import load

if TYPE_CHECKING:
    from penstock.io.columnar.avro import AvroRows
    from penstock.io.columnar.check import CheckRows
    from penstock.io.columnar.parquet import ParquetRows

__all__ = ["AvroRows", "CheckRows", "ParquetRows"]

_HOMES = {"AvroRows": "avro", "CheckRows": "check", "ParquetRows": "parquet"}


def __getattr__(name: str) -> Any:
    return load(__name__, _HOMES, name)
