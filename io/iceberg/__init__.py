"""Apache Iceberg as a sink, through pyiceberg: no Spark writer and no jar is needed.

events | WriteToIceberg("shop.{table}", catalog="prod", mode="current")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.lazy import load

if TYPE_CHECKING:
    from penstock.io.iceberg.complete import complete_until
    from penstock.io.iceberg.write import WriteToIceberg

__all__ = ["WriteToIceberg", "complete_until"]

_HOMES = {"WriteToIceberg": "write", "complete_until": "complete"}


def __getattr__(name: str) -> Any:
    return load(__name__, _HOMES, name)
