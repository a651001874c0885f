"""Delta Lake as a sink, through delta-rs: no Spark writer and no jar is needed.

events | WriteToDelta("s3://lake/{table}", mode="current")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.lazy import load

if TYPE_CHECKING:
    from penstock.io.delta.complete import complete_until
    from penstock.io.delta.write import WriteToDelta

__all__ = ["WriteToDelta", "complete_until"]

_HOMES = {"WriteToDelta": "write", "complete_until": "complete"}


def __getattr__(name: str) -> Any:
    return load(__name__, _HOMES, name)
