"""PostgreSQL as a target of change events.

    events | WriteToSql("host=db.example.com dbname=shop user=penstock", mode="current")

Names are loaded when they are first used, so that the pure modules (statements, values, errors) need no Beam.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.lazy import load

if TYPE_CHECKING:
    from penstock.io.sql.errors import SqlTargetError
    from penstock.io.sql.write import WriteToSql

__all__ = ["SqlTargetError", "WriteToSql"]

_HOMES = {"SqlTargetError": "errors", "WriteToSql": "write"}


def __getattr__(name: str) -> Any:
    return load(__name__, _HOMES, name)
