"""Versions of events as change sequence numbers of BigQuery. Pure.

A sequence number is up to four sections of up to 16 hexadecimal digits with ``/`` between them. BigQuery compares
section by section, as numbers, and keeps the row of a key whose number is the highest.

    order / transaction / sequence / index

Source: BigQuery documentation, "Stream table updates with change data capture", custom ordering.
"""

from __future__ import annotations

from penstock.event.model import Version
from penstock.event.replica import NotReplicableError

_LIMIT = 1 << 64


def sequence_number(version: Version) -> str:
    """Return the sequence number of a version.

    For the changes of one row the numbers sort as their versions. Ids of transactions need no order where
    they are not numbers (Spanner): two transactions that change one row never have the same commit timestamp. A row
    of a snapshot has no transaction, so it sorts before a change with the same timestamp.

    Raises:
        NotReplicableError: a part has more than 64 bits.
    """
    parts = (
        version.order,
        _transaction(version.transaction),
        int(version.sequence) if _is_number(version.sequence) else 0,
        version.index,
    )
    if not all(0 <= part < _LIMIT for part in parts):
        raise NotReplicableError(
            "the version of the event has a part with more than 64 bits, and BigQuery's sequence numbers have none: "
            "use mode='log'"
        )
    return "/".join(f"{part:X}" for part in parts)


def _transaction(text: str) -> int:
    if not text:
        return 0
    # Plus one, so that a real transaction sorts after a row of a snapshot, which has 0.
    return int(text) + 1 if _is_number(text) else 1


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()
