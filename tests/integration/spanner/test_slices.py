"""Slices of a service under churn: every committed row is in one slice, and a slice that is read again is equal."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from google.cloud.spanner import KeySet

from penstock.errors import SetupError, UsageError
from penstock.spark.spanner import SpannerDataSource, SpannerRows, SpannerSlices
from tests.integration.spanner.conftest import INSTANCE, PROJECT, on_both_services
from tests.support.waiting import join

pytestmark = pytest.mark.long(seconds=5)

SLICES = 6


def source_of(database: Any, **options: str) -> SpannerDataSource:
    given = {"project": PROJECT, "instance": INSTANCE, "database": database.name, "change_stream": "Changes"}
    return SpannerDataSource({**given, "emulator_host": database.emulator.host, **options})


def slices(database: Any, **options: str) -> SpannerSlices:
    return source_of(database, **options).stream()


def rows(stream: SpannerSlices, start: Any, end: Any) -> list[tuple[Any, ...]]:
    return sorted(
        (event.version.order, event.version.transaction, event.version.sequence, event.version.index)
        for part in stream.parts(start, end)
        for events in stream.read(part)
        for event in events
    )


@on_both_services
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


@on_both_services
def test_the_rows_of_a_table_at_a_time_are_read_in_key_ranges(database: Any) -> None:
    with database.client.batch() as batch:
        batch.insert("Orders", ["Id", "Version", "Value"], [[each, 1, "old"] for each in range(40)])
    with database.client.snapshot() as snapshot:
        ((then,),) = snapshot.execute_sql("SELECT CURRENT_TIMESTAMP")
    with database.client.batch() as batch:
        batch.update("Orders", ["Id", "Value"], [[each, "new"] for each in range(10)])
        batch.delete("Orders", KeySet(keys=[[20]]))
    rows = rows_at(database, then.rfc3339(), max_tasks="3")
    assert [column.name for column in rows.columns()] == ["Id", "Value", "Version"]
    found = [
        (event.op, event.after["Id"], event.after["Value"])
        for part in rows.parts()
        for events in rows.read(part)
        for event in events
        if event.after
    ]
    assert sorted(found) == [("READ", each, "old") for each in range(40)]


@on_both_services
def test_rows_that_cannot_be_read_are_refused_with_the_fix(database: Any) -> None:
    with pytest.raises(UsageError, match="pass table, and neither start nor end"):
        rows_at(database, "2026-01-01T00:00:00Z", start="2026-01-01T00:00:00Z")
    with pytest.raises(SetupError, match="is in the future"):
        rows_at(database, "2096-01-01T00:00:00Z").parts()
    with pytest.raises(SetupError, match="no longer has the rows of 2016-01-01"):
        rows_at(database, "2016-01-01T00:00:00Z").columns()
    source = source_of(database, table="Orders", timestampAsOf="2026-01-01T00:00:00Z")
    with pytest.raises(UsageError, match=r"timestampAsOf is for spark\.read"):
        source.streamReader(None)


def rows_at(database: Any, timestamp: str, **options: str) -> SpannerRows:
    rows = source_of(database, table="Orders", timestampAsOf=timestamp, **options).rows()
    assert rows is not None
    return rows
