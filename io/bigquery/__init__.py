"""BigQuery as a target of change events.

    events | WriteToBigQuery(project="my-project", dataset="shop", mode="log")

Names are loaded when they are first used, so that the pure modules (columns, sequence, placement) need no Beam.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.lazy import load

if TYPE_CHECKING:
    from penstock.io.bigquery.errors import BigQueryTargetError
    from penstock.io.bigquery.write import WriteToBigQuery

__all__ = ["BigQueryTargetError", "WriteToBigQuery"]

_HOMES = {"BigQueryTargetError": "errors", "WriteToBigQuery": "write"}


def __getattr__(name: str) -> Any:
    return load(__name__, _HOMES, name)
