"""Change streams as Spark data sources: for Spark programs that do not write Beam, and for Spark Connect.

    from penstock.spark import register

    register(spark)
    changes = (
        spark.readStream.format("penstock-spanner")
        .options(project="my-project", instance="main", database="shop", change_stream="Orders", table="Orders")
        .load()
    )

Needs Spark 4.0 or newer. No module of this package imports Beam.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.lazy import load

if TYPE_CHECKING:
    from penstock.spark.registration import register

__all__ = ["register"]

_HOMES = {"register": "registration"}


def __getattr__(name: str) -> Any:
    return load(__name__, _HOMES, name)
