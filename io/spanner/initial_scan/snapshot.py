"""Where a snapshot begins: its time, checked, and the key ranges of its tables. Knows neither Beam nor the client."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from penstock.errors import SetupError
from penstock.io.spanner.initial_scan import plan
from penstock.io.spanner.initial_scan.frontier import KeyRange, Table
from penstock.timestamps import NANOS, format_timestamp


def ranges_of(client: Any, tables: Sequence[Table], transaction: Any, max_ranges: int) -> dict[int, KeyRange]:
    """Return key ranges that cover all rows of the tables, by number."""
    ranges: list[KeyRange] = []
    for index, table in enumerate(tables):
        ranges += plan.ranges_between(index, client.sample_keys(table, transaction, max_ranges))
    return dict(enumerate(ranges))


_SETTLE_SECONDS = 0.1
"""Google's emulator may show half of a commit that is being written: there a snapshot of now waits before it reads."""


def begin_snapshot(client: Any, timestamp: int | None, database: str, *, emulated: bool) -> Any:
    """Return a transaction at `timestamp` (None: now), after the check that the database keeps its rows.

    Raises:
        SetupError: the time is in the future, or past the database's version_retention_period.
    """
    client.clock.synchronize()
    now = client.clock.now()
    if timestamp is not None and timestamp > now + NANOS:
        raise SetupError(
            f"the time of the snapshot, {format_timestamp(timestamp)}, is in the future; pass an earlier one, or none "
            "for now"
        )
    if timestamp is not None:
        # Check this before the transaction begins: the service would answer with a status that names neither cause nor
        # remedy.
        retention = plan.version_retention(lambda sql: client.query(sql, None))
        plan.check_timestamp(timestamp, now, retention, database)
    transaction = client.begin(timestamp)
    if timestamp is None and emulated:
        time.sleep(_SETTLE_SECONDS)
    return transaction
