"""Slices of a real server's log: nothing lost, nothing twice, equal when repeated; and what is refused."""

from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest

from penstock.errors import PositionLostError, SetupError
from penstock.spark.postgres import PostgresDataSource, PostgresSlices
from tests.support.waiting import join


def slices(database: Any, **options: str) -> PostgresSlices:
    given = {"dsn": database.dsn, "publication": database.publication, "slot": database.slot, **options}
    return PostgresDataSource(given).stream()


def rows(stream: PostgresSlices, start: Any, end: Any) -> list[tuple[Any, ...]]:
    """Return operation, new value and version of each event of a slice."""
    return [
        (
            str(event.op),
            (event.after or {}).get("v"),
            event.version.order,
            event.version.sequence,
            event.timestamp,
        )
        for part in stream.parts(start, end)
        for events in stream.read(part)
        for event in events
    ]


def test_slices_of_a_busy_log_lose_nothing_repeat_nothing_and_are_equal_when_repeated(database: Any) -> None:
    database.execute("create table t (id int primary key, v int)")
    database.publish()
    stream = slices(database, table="public.t")
    done = threading.Event()
    slice_was_read = threading.Semaphore(0)

    def write(first: int) -> None:
        with psycopg.connect(database.dsn, autocommit=True) as session:
            for number in range(first, first + 300):
                # No writer is so fast that everything is in the first slice.
                if number % 100 == 0:
                    assert slice_was_read.acquire(timeout=60)
                with session.transaction():
                    session.execute("insert into t values (%s, %s)", (number, number))
                    session.execute("update t set v = -v where id = %s", (number,))

    writers = [threading.Thread(target=write, args=(1 + 1000 * each,), daemon=True) for each in range(3)]
    before = stream.first(None)
    found: list[Any] = []
    for writer in writers:
        writer.start()
    batches = 0
    while not done.is_set():
        if not any(writer.is_alive() for writer in writers):
            done.set()  # one more slice after the last commit
        after = stream.last()
        batch = rows(stream, before, after)
        if batches % 3 == 0:
            assert rows(stream, before, after) == batch
        found += batch
        if batches % 2:
            stream.commit(after)
        before = after
        batches += 1
        slice_was_read.release(len(writers))
    join(*writers)
    inserted = [value for op, value, *_ in found if op == "CREATE"]
    updated = [value for op, value, *_ in found if op == "UPDATE"]
    expected = [number for first in (1, 1001, 2001) for number in range(first, first + 300)]
    assert sorted(inserted) == expected
    assert sorted(-value for value in updated) == expected
    assert batches > 2
    assert [row[2] for row in found] == sorted(row[2] for row in found)


def test_the_slot_moves_only_with_a_commit_and_a_slot_that_moved_too_far_is_refused(database: Any) -> None:
    database.execute("create table t (id int primary key, v int)")
    database.publish()
    stream = slices(database)
    start = stream.first(None)
    database.execute("insert into t values (1, 1)")
    end = stream.last()
    assert [row[:2] for row in rows(stream, start, end)] == [("CREATE", 1)]
    assert stream.first(None) == start
    stream.commit(end)
    assert stream.first(None) == end
    with pytest.raises(
        PositionLostError, match="the slot has moved on to .* and the query needs the log from"
    ):
        stream.parts(start, end)


def test_the_columns_of_a_table_are_known_before_its_first_change(database: Any) -> None:
    database.execute("create table t (id int primary key, v int, note text)")
    database.publish()
    columns = slices(database, table="public.t").columns()
    assert columns is not None
    assert [column.name for column in columns] == ["id", "v", "note"]
    with pytest.raises(SetupError, match="no table 'public.u'; did you mean 'public.t'"):
        slices(database, table="public.u").columns()


def test_changes_before_the_start_are_left_out(database: Any) -> None:
    database.execute("create table t (id int primary key, v int)")
    database.publish()
    before = slices(database).first(None)
    database.execute("insert into t values (1, 1)")
    clock = database.clock()
    database.execute("insert into t values (2, 2)")
    from penstock.timestamps import format_timestamp

    late = slices(database, start=format_timestamp(clock))
    assert [row[1] for row in rows(late, before, late.last())] == [2]


def test_a_slot_with_two_phase_commits_is_refused(database: Any) -> None:
    database.execute("create publication changes for all tables")
    database.rows(f"select pg_create_logical_replication_slot('{database.slot}', 'pgoutput', false, true)")
    with pytest.raises(SetupError, match="created with two_phase"):
        slices(database).first(None)
