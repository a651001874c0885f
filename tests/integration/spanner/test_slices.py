"""Slices of a service under churn: every committed row is in one slice, and a slice that is read again is equal."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from penstock.errors import SetupError
from penstock.spark.spanner import SpannerDataSource, SpannerSlices
from tests.integration.spanner.conftest import INSTANCE, PROJECT, on_both_services
from tests.support.waiting import join

SLICES = 6


def slices(database: Any, **options: str) -> SpannerSlices:
    given = {"project": PROJECT, "instance": INSTANCE, "database": database.name, "change_stream": "Changes"}
    return SpannerDataSource({**given, "emulator_host": database.emulator.host, **options}).stream()


def rows(stream: SpannerSlices, start: Any, end: Any) -> list[tuple[Any, ...]]:
    return sorted(
        (event.version.order, event.version.transaction, event.version.sequence, event.version.index)
        for part in stream.parts(start, end)
        for events in stream.read(part)
        for event in events
    )


@on_both_services
@pytest.mark.slow(seconds=15)
def test_slices_under_churn_have_each_committed_row_once(database: Any) -> None:
    stream, stopped = slices(database), threading.Event()
    committed = 0

    def write() -> None:
        nonlocal committed
        while not stopped.wait(0.005):
            with database.client.batch() as batch:
                for table in ("Accounts", "Orders"):
                    batch.insert_or_update(table, ["Id", "Version"], [[committed % 50, committed]])
            committed += 2

    stopped.wait(1)  # Google's emulator is read behind its clock, and the stream was created a moment ago
    before = stream.first(None)
    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    found: list[Any] = []
    for number in range(SLICES):
        if number == SLICES - 1:
            stopped.set()
            join(writer)
        stopped.wait(1.2)
        end = stream.last()
        batch = rows(stream, before, end)
        assert rows(stream, before, end) == batch, "a slice that is read again is another one"
        found += batch
        before = end
    # For the same reason the last commits may be in a slice of their own.
    threading.Event().wait(1)
    found += rows(stream, before, stream.last())
    assert len(found) == len(set(found)) == committed


@on_both_services
def test_a_table_that_the_stream_does_not_watch_is_named(database: Any) -> None:
    with pytest.raises(SetupError, match="does not watch a table 'orders'; did you mean 'Orders'"):
        slices(database, table="orders").columns()
    columns = slices(database, table="Orders").columns()
    assert columns is not None
    assert [(column.name, column.key_position) for column in columns] == [
        ("Id", 1),
        ("Value", None),
        ("Version", None),
    ]
