"""The YDB test service with a changefeed of two partitions that has not been read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from backlogs import Backlog, batches
from penstock.timestamps import format_timestamp
from penstock_emulators.ydb import YdbEmulator

TABLE, FEED, PARTITIONS = "orders", "feed", 2
MILLISECOND = 1_000_000
COLUMNS = {
    "id": "Uint64",
    "name": "Utf8",
    "note": "Utf8",
    "amount": "Int64",
    "at": "Timestamp",
    "day": "Date",
    "paid": "Bool",
    "rate": "Double",
    "reference": "Utf8",
    "account": "Int64",
}


@contextmanager
def backlog(changes: int, rows: int) -> Iterator[Backlog]:
    """Start the service and commit `changes` in transactions of `rows` rows."""
    with YdbEmulator.start() as service:
        control = service.control
        control.create_table(TABLE, COLUMNS, ["id"])
        control.add_changefeed(
            TABLE, FEED, mode="NEW_AND_OLD_IMAGES", virtual_timestamps=True, partitions=PARTITIONS
        )
        step = 0
        for numbers in batches(changes, rows):
            step, _ = control.commit(
                [["upsert", TABLE, [number % 100_000], _row(number)] for number in numbers]
            )
        last = step * MILLISECOND

        def settings(empty: bool) -> Mapping[str, str]:
            parameters = {
                "endpoint": service.endpoint,
                "database": service.database,
                "table": TABLE,
                "changefeed": FEED,
                "delivery_seconds": "0.2",
            }
            end = format_timestamp(last + MILLISECOND if empty else last)
            return {**parameters, "end": end, **({"start": end} if empty else {})}

        yield Backlog("ydb", changes, settings)


def _row(number: int) -> dict[str, object]:
    return {
        "name": f"name {number}",
        "note": "x" * 60,
        "amount": number,
        "at": number,
        "day": number % 20_000,
        "paid": number % 2 == 0,
        "rate": number / 3,
        "reference": f"00000000-0000-4000-8000-{number:012x}",
        "account": number * 1_000_003,
    }
