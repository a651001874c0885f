"""Slices of a real server's log: nothing lost, nothing twice, equal when repeated; and what is refused."""

from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest

from penstock.errors import PositionLostError, SetupError, UsageError
from penstock.event.change_feed import change_feed_schema, rows_schema
from penstock.spark.postgres import PostgresDataSource, PostgresSlices
from penstock.spark.rows import batches, row_batches
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


def test_a_batch_opens_six_sessions(database: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    database.execute("create table t (id int primary key, v int)")
    database.publish()
    stream = slices(database, table="public.t")
    start = stream.first(None)
    database.execute("insert into t values (1, 1)")
    opened: list[Any] = []
    connect = psycopg.connect

    def counted(*arguments: Any, **named: Any) -> Any:
        opened.append(connect(*arguments, **named))
        return opened[-1]

    monkeypatch.setattr(psycopg, "connect", counted)
    # As Spark asks: where the batch ends, its parts, the rows, the lag for the progress, and the commit.
    end = stream.last()
    assert len(rows(stream, start, end)) == 1
    stream.last()
    stream.commit(end)
    assert len(opened) == 6
    assert all(session.closed for session in opened)


def test_the_columns_of_a_table_are_known_before_its_first_change(database: Any) -> None:
    database.execute("create table t (id int primary key, v int, note text)")
    database.publish()
    columns = slices(database, table="public.t").columns()
    assert columns is not None
    assert [column.name for column in columns] == ["id", "v", "note"]
    with pytest.raises(SetupError, match="no table 'public.u'; did you mean 'public.t'"):
        slices(database, table="public.u").columns()


def table_rows(database: Any, **options: str) -> list[tuple[Any, ...]]:
    given = {"dsn": database.dsn, "publication": database.publication, "slot": database.slot}
    rows = PostgresDataSource({**given, "snapshot": "initial_only", "table": "public.t", **options}).rows()
    assert rows is not None
    shape = rows_schema(rows.columns())
    (part,) = rows.parts()
    return [tuple(row.values()) for batch in row_batches(rows.read(part), shape) for row in batch.to_pylist()]


def test_the_rows_of_a_table_are_those_of_one_moment_and_the_changes_continue_them(database: Any) -> None:
    database.execute("create table t (id int primary key, v int, note text)")
    database.publish()
    stream = slices(database, table="public.t")
    start = stream.first(None)
    database.execute("insert into t select n, 0, repeat('x', 400) from generate_series(1, 20000) n")
    begun, stopped = threading.Event(), threading.Event()

    def move() -> None:
        # A snapshot sees both rows of a transaction, which are in the first and in the last blocks, or none.
        with psycopg.connect(database.dsn, autocommit=True) as session:
            while not stopped.is_set():
                session.execute("update t set v = v + 1 where id in (1, 20000)")
                begun.set()

    writer = threading.Thread(target=move, daemon=True)
    writer.start()
    try:
        assert begun.wait(60)
        found = {key: value for key, value, _ in table_rows(database)}
    finally:
        stopped.set()
        join(writer)
    database.execute("delete from t where id = 7", "insert into t values (20001, 5)")
    assert len(found) == 20_000
    assert found[20_000] == found[1] > 0
    # The slot is older than the rows, so changes come again, and the last ones are those of the table.
    shape = change_feed_schema(stream.columns(), "t")
    (part,) = stream.parts(start, stream.last())
    for batch in batches(stream.read(part), shape):
        for row in batch.to_pylist():
            if row["_change_type"] == "delete":
                del found[row["id"]]
            else:
                found[row["id"]] = row["v"]
    assert found == dict(database.rows("select id, v from t"))


def test_rows_and_columns_that_a_publication_leaves_out_are_not_read(database: Any) -> None:
    database.execute("create table t (id int primary key, v int, secret text) partition by range (id)")
    database.execute("create table t1 partition of t for values from (0) to (10)")
    database.execute("create table t2 partition of t for values from (10) to (20)")
    database.publish("for table t (id, v) where (id > 1) with (publish_via_partition_root = true)")
    database.execute("insert into t select n, n, 'hunter2' from generate_series(1, 12) n")
    assert sorted(table_rows(database)) == [(n, n) for n in range(2, 13)]
    database.execute("truncate t")
    assert table_rows(database) == []


def test_rows_that_cannot_be_read_are_refused_with_the_reason(database: Any) -> None:
    database.execute("create table t (id int primary key, v int)")
    with pytest.raises(UsageError, match="pass table, and no start"):
        table_rows(database, start="2026-01-01T00:00:00Z")
    with pytest.raises(
        UsageError, match="a stream cannot begin with the rows.*Create the slot, read the rows"
    ):
        table_rows(database, snapshot="initial")
    database.publish()
    with pytest.raises(SetupError, match="no table 'public.u'; did you mean 'public.t'"):
        table_rows(database, table="public.u")
    options = {"dsn": database.dsn, "publication": database.publication, "slot": database.slot}
    source = PostgresDataSource({**options, "table": "public.t", "snapshot": "initial_only"})
    with pytest.raises(UsageError, match=r"snapshot=initial_only is for spark\.read"):
        source.streamReader(None)


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
