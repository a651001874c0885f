"""The answers of a server to the questions of `penstock.io.postgres.preflight`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.io.postgres import preflight

SERVER = {
    "version": 170_000,
    "wal_level": "logical",
    "standby": False,
    "replication": True,
    "user": "penstock",
}


def answers(
    query: str,
    *,
    publications: Sequence[str] = ("changes",),
    slot: str = "reserved",
    **server: Any,
) -> list[tuple[Any, ...]]:
    """Return the rows of a question. `slot`: its wal_status."""
    match query:
        case preflight.SERVER:
            return [tuple({**SERVER, **server}.values())]
        case preflight.PUBLICATIONS:
            return [(name,) for name in publications]
        case preflight.SLOT:
            return [("pgoutput", "shop", "0/0", slot, False, "1", "shop", False, "")]
    return []
