"""The simulated Spanner service with a change stream that has not been read."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from google.auth.credentials import AnonymousCredentials
from google.cloud import spanner

from backlogs import Backlog, batches, times_since
from penstock_emulators.simulated_spanner import SimulatedSpanner

PROJECT, INSTANCE, DATABASE, STREAM = "benchmark", "benchmark", "benchmark", "Changes"
DDL = [
    "CREATE TABLE Orders (Id INT64 NOT NULL, Name STRING(MAX), Note STRING(MAX), Amount NUMERIC, At TIMESTAMP, "
    "Day DATE, Paid BOOL, Rate FLOAT64, Reference STRING(36), Account INT64) PRIMARY KEY (Id)",
    f"CREATE CHANGE STREAM {STREAM} FOR ALL OPTIONS (value_capture_type = 'NEW_ROW')",
]
COLUMNS = ("Id", "Name", "Note", "Amount", "At", "Day", "Paid", "Rate", "Reference", "Account")


@contextmanager
def backlog(changes: int, rows: int) -> Iterator[Backlog]:
    """Start the service and commit `changes` in transactions of `rows` rows."""
    with SimulatedSpanner.start() as service:
        os.environ |= service.environment()
        service.create_database(PROJECT, INSTANCE, DATABASE, DDL)
        client = spanner.Client(
            project=PROJECT, credentials=AnonymousCredentials(), disable_builtin_metrics=True
        )
        database = client.instance(INSTANCE).database(DATABASE)
        start = time.time_ns()
        for numbers in batches(changes, rows):
            with database.batch() as batch:
                batch.insert_or_update("Orders", COLUMNS, [_row(number) for number in numbers])
        times = times_since(start)

        def settings(empty: bool) -> Mapping[str, str]:
            return {
                "project": PROJECT,
                "instance": INSTANCE,
                "database": DATABASE,
                "change_stream": STREAM,
                **times(empty),
            }

        yield Backlog("spanner", changes, settings)


def _row(number: int) -> tuple[object, ...]:
    return (
        number % 100_000,
        f"name {number}",
        "x" * 60,
        f"{number}.25",
        "2026-01-31T12:00:00.123456Z",
        "2026-01-31",
        number % 2 == 0,
        number / 3,
        f"00000000-0000-4000-8000-{number:012x}",
        number * 1_000_003,
    )
