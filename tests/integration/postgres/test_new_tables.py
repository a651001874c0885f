"""Tables that join the publication of a real server while changes are read, with crashes, and tables that leave it."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from penstock.io.postgres import schema_watch
from penstock.io.postgres.record import ChangeKind
from tests.support.epochs import Epochs

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def looks_at_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_watch, "LOOK_SECONDS", 0.0)


def epochs(database: Any, **options: Any) -> Epochs:
    given = {"new_tables": "snapshot", "heartbeat_seconds": 0.05, "chunk_rows": 7, **options}
    return Epochs(database.source(**given))


def rows(read: Epochs, table: str) -> list[tuple[str, Any]]:
    """Return the committed records of a table: kind and new values."""
    return [(each.kind.name, each.new) for each in read.committed if str(each.table) == f"public.{table}"]


def replica(read: Epochs, table: str) -> dict[str, Any]:
    """Return what a target of current rows has, by the first column."""
    found: dict[str, Any] = {}
    for each in read.committed:
        if str(each.table) != f"public.{table}":
            continue
        if each.old is not None:
            found.pop(each.old[0], None)
        if each.new is not None:
            found[each.new[0]] = each.new
    return found


def in_table(database: Any, table: str) -> dict[str, Any]:
    return {str(row[0]): tuple(map(str, row)) for row in database.rows(f"select * from {table}")}


def caught_up(database: Any, read: Epochs) -> None:
    """Read until everything up to now was read, and no snapshot remains."""
    read.run_until(database.clock())
    read.run_until(database.clock())
    while any(part.scans or any(each.snapshots for each in part.snapshots) for part, _ in read.residuals):
        read.run(0.2)


@pytest.mark.long(seconds=5)
def test_rows_of_a_table_that_joins_are_read_once_through_crashes(database: Any) -> None:
    database.execute("create table orders (id int primary key)")
    database.publish("for table orders")
    read, draw = epochs(database), random.Random(7)
    read.run_until(database.clock())
    database.execute(
        "create table refunds (id int primary key, v text)",
        "insert into refunds select n, 'old' from generate_series(1, 100) n",
        "alter publication changes add table refunds",
    )
    for number in range(12):
        database.execute(
            f"update refunds set v = 'new{number}' where id % 12 = {number}",
            f"insert into refunds values ({1000 + number}, 'later')",
            f"delete from refunds where id = {number + 1}",
        )
        read.run(0.1, crash=draw.random() < 0.6)
        if not number % 4:
            database.wait_for_free_slot()
    caught_up(database, read)
    assert read.crashes > 3
    assert replica(read, "refunds") == in_table(database, "refunds")
    old = Counter(new[0] for kind, new in rows(read, "refunds") if kind == "READ")
    assert max(old.values()) == 1
    assert len(old) > 20


def test_tables_leave_and_are_called_otherwise(database: Any, caplog: Any) -> None:
    database.execute("create table kept (id int primary key)", "insert into kept values (1), (2)")
    database.publish("for table kept")
    read = epochs(database)
    read.run_until(database.clock())
    database.execute(
        "alter table kept rename to named",
        "create table short (id int primary key)",
        "insert into short select generate_series(1, 100)",
        "alter publication changes add table short",
    )
    caught_up(database, read)
    assert {new for _, new in rows(read, "named")} == {("1",), ("2",)}
    assert len(rows(read, "short")) == 100
    database.execute("drop table short", "insert into named values (3)")
    caught_up(database, read)
    assert ("INSERT", ("3",)) in rows(read, "named")
    assert "public.short left the publication changes" in caplog.text


def test_a_table_that_is_dropped_while_its_rows_are_read_ends_alone(database: Any) -> None:
    database.execute(
        "create table gone (id int primary key)",
        "insert into gone select generate_series(1, 200)",
        "create table stays (id int primary key)",
        "insert into stays select generate_series(1, 20)",
    )
    database.publish("for table gone, stays")
    read = epochs(database, snapshot="initial", parallel_tables=1, chunk_rows=2)
    read.run(5, steps=3)
    database.execute("drop table gone")
    caught_up(database, read)
    assert len(rows(read, "gone")) < 200
    assert sorted(int(new[0]) for _, new in rows(read, "stays")) == list(range(1, 21))


@pytest.mark.parametrize("via_root", [False, True])
def test_a_partition_that_was_filled_before_it_is_attached_is_read(database: Any, via_root: bool) -> None:
    database.execute(
        "create table events (id int, day int, primary key (id, day)) partition by list (day)",
        "create table day1 partition of events for values in (1)",
    )
    database.publish(f"for table events with (publish_via_partition_root = {via_root})")
    read = epochs(database)
    read.run_until(database.clock())
    database.execute(
        "insert into events values (1, 1)",
        "create table day2 (id int, day int, primary key (id, day))",
        "insert into day2 select n, 2 from generate_series(1, 30) n",
        "alter table events attach partition day2 for values in (2)",
        "create table day3 partition of events for values in (3)",
        "insert into events values (1, 3)",
    )
    caught_up(database, read)
    name = "events" if via_root else "day2"
    of_day2 = [(kind, new) for kind, new in rows(read, name) if new[1] == "2"]
    assert sorted(int(new[0]) for _, new in of_day2) == list(range(1, 31))
    assert {kind for kind, _ in of_day2} == {ChangeKind.READ.name}
    assert (ChangeKind.READ.name, ("1", "1")) not in rows(read, "events") + rows(read, "day1")


def test_tables_that_the_log_has_from_their_first_row_on_are_not_read_again(database: Any) -> None:
    database.publish()
    read = epochs(database, without_tables=["secret*"])
    read.run_until(database.clock())
    database.execute(
        "create table fresh (id int primary key)",
        "insert into fresh select generate_series(1, 10)",
        "create table secret_x (id int primary key)",
    )
    caught_up(database, read)
    assert [kind for kind, _ in rows(read, "fresh")] == ["INSERT"] * 10
