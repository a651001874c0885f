"""The key of a table's events: the primary key, the index of the identity, or a unique index without NULL."""

from __future__ import annotations

from penstock.io.postgres.events import EventConverter
from tests.integration.postgres.conftest import Database


def test_a_table_without_a_primary_key_has_the_key_of_a_unique_index_that_holds_no_null(
    database: Database,
) -> None:
    database.execute(
        "create table u (a int, id int not null unique, other int unique)",
        "create table two (a int not null, b int not null, c int not null, unique (c), unique (b, a))",
        "create table part (a int not null, deleted bool)",
        "create unique index on part (a) where not deleted",
        "create table late (a int not null unique deferrable)",
        "create table included (a int, id int, v text, primary key (id) include (v))",
        "create table expression (a int not null)",
        "create unique index on expression (abs(a))",
        "create table indexed (id int primary key, code text not null unique)",
        "alter table indexed replica identity using index indexed_code_key",
    )
    database.publish()
    database.execute(
        "alter table u replica identity full",
        "insert into u values (5, 1, null)",
        "update u set a = 6",
        "update u set id = 2",
        "delete from u",
        "insert into two values (1, 2, 3)",
        "insert into part values (1, false)",
        "insert into late values (1)",
        "insert into included values (7, 1, 'x')",
        "insert into expression values (1)",
        "insert into indexed values (1, 'x')",
    )
    convert = EventConverter()
    keys: dict[str, list[object]] = {}
    for record in database.read():
        for event in convert(record):
            keys.setdefault(event.source.table, []).append(event.key)
    assert keys == {
        "u": [{"id": 1}, {"id": 1}, {"id": 2}, {"id": 2}],
        "two": [{"b": 2, "a": 1}],
        "part": [None],
        "late": [None],
        "included": [{"id": 1}],
        "expression": [None],
        "indexed": [{"code": "x"}],
    }


def test_a_large_value_of_a_key_that_did_not_change_is_in_the_key_of_the_event(database: Database) -> None:
    database.execute(
        "create table large (id text, place int, n int, primary key (id, place))",
        "alter table large alter id set storage external",
    )
    database.publish()
    database.execute(
        # The longest text that fits into the index is stored outside of its row.
        "insert into large values (repeat('k', 2600), 1, 1)",
        "update large set n = 2",
        "update large set place = 2",
    )
    convert = EventConverter()
    inserted, updated, moved = [event for record in database.read() for event in convert(record)]
    assert updated.key == inserted.key == {"id": "k" * 2600, "place": 1}
    assert updated.after == {**inserted.key, "n": 2}
    assert (moved.key, moved.before) == ({"id": "k" * 2600, "place": 2}, inserted.key)


def test_a_snapshot_divides_a_table_by_its_unique_index(database: Database) -> None:
    database.execute(
        "create table u (v text, id int not null unique)",
        "alter table u replica identity full",
        "insert into u select 'v' || id, id from generate_series(1, 25) id",
    )
    database.publish()
    database.execute("update u set v = 'new' where id = 3", "delete from u where id = 4")
    convert = EventConverter()
    rows: dict[int, str] = {}
    for record in database.read(snapshot="initial", chunk_rows=10):
        for event in convert(record):
            assert event.key is not None
            if event.after is None:
                rows.pop(event.key["id"], None)
            else:
                rows[event.key["id"]] = event.after["v"]
    assert rows == {id_: "new" if id_ == 3 else f"v{id_}" for id_ in range(1, 26) if id_ != 4}


def test_the_columns_that_may_hold_nan_are_known_before_the_start(database: Database) -> None:
    database.execute(
        "create domain price as numeric(8, 2)",
        "create table n (id int primary key, a numeric, b numeric(5, 2)[], c price, d text, e int[])",
    )
    database.publish()
    (table,) = database.source().source_tables()
    assert table.decimals == ("a", "b", "c")
