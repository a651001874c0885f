"""Changes of a real server: every type, every replica identity, transactions, messages, truncates."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import pytest

from penstock.event import Interval, Op
from penstock.io.postgres import UNCHANGED, ChangeKind
from penstock.io.postgres.events import EventConverter

pytestmark = pytest.mark.slow

INFINITY = float("inf")
DAY = 86_400_000_000_000

# The calendar repeats after 400 years of 146,097 days; `date` ends with the year 9999.
_DAYS_TO_12345 = date(9945, 1, 1).toordinal() - date(1970, 1, 1).toordinal() + 6 * 146_097

TYPES = {
    "boolean": ("true", True),
    "smallint": ("-32768", -32768),
    "integer": ("2147483647", 2147483647),
    "bigint": ("9223372036854775807", 2**63 - 1),
    "real": ("'-Infinity'", -INFINITY),
    "double precision": ("0.1", 0.1),
    "numeric": ("12345678901234567890.0123456789", Decimal("12345678901234567890.0123456789")),
    "numeric(8,3)": ("1.5", Decimal("1.500")),
    "text": ("'naïve \"quoted\" ''text'' \\ \n'", "naïve \"quoted\" 'text' \\ \n"),
    "character(4)": ("'ab'", "ab  "),
    "character varying(9)": ("''", ""),
    "bytea": ("'\\x00ff5c'", b"\x00\xff\\"),
    "date": ("'0044-03-15 BC'", -735160),
    "time(3) without time zone": ("'24:00:00'", DAY),
    "time with time zone": ("'12:34:56.7+05:30'", "12:34:56.7+05:30"),
    "timestamp without time zone": ("'12345-01-01 00:00:00.000001'", _DAYS_TO_12345 * DAY + 1000),
    "timestamp with time zone": ("'1969-12-31 23:59:59.999999+00'", -1000),
    "interval": ("'-1 mon 3 days -04:05:06.7'", Interval(-1, 3, -14706700000000)),
    "uuid": ("'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    "json": ('\'{"a": 1,"a": 2}\'', '{"a": 1,"a": 2}'),
    "jsonb": ('\'{"b": 1.10, "a": null}\'', '{"a": null, "b": 1.10}'),
    "bit(3)": ("B'101'", "101"),
    "bit varying": ("B'1'", "1"),
    "inet": ("'10.0.0.1/8'", "10.0.0.1/8"),
    "macaddr": ("'08:00:2b:01:02:03'", "08:00:2b:01:02:03"),
    "money": ("1.5", "$1.50"),
    "point": ("'(1,2.5)'", "(1,2.5)"),
    "int4range": ("'[1,5]'", "[1,6)"),
    "oid": ("4294967295", 4294967295),
    "tsvector": ("'a b'", "'a' 'b'"),
    "integer[]": ("'{1,NULL,3}'", [1, None, 3]),
    "text[]": ("""'{{"a,b","NULL"},{NULL,"q\\"\\\\"}}'""", [["a,b", "NULL"], [None, 'q"\\']]),
    "timestamp with time zone[]": ("'{infinity}'", [INFINITY]),
    "box[]": ("'{(1,1),(0,0);(3,3),(2,2)}'", ["(1,1),(0,0)", "(3,3),(2,2)"]),
    "mood": ("'so so'", "so so"),
    "mood[]": ("'{sad,NULL}'", ["sad", None]),
    "price": ("3", Decimal("3.00")),
    "pair": ("row(1,'x,y')", '(1,"x,y")'),
}


def test_a_value_of_every_type_arrives_in_its_full_range(database):
    database.execute(
        "create type mood as enum ('sad', 'so so')",
        "create domain price as numeric(6,2)",
        "create type pair as (a int, b text)",
        f"create table every (id int primary key, {', '.join(f'c{n} {t}' for n, t in enumerate(TYPES))})",
    )
    database.publish()
    database.execute(
        f"insert into every values (1, {', '.join(sql for sql, _ in TYPES.values())})",
        "insert into every values (2)",
    )
    first, second = (EventConverter()(record)[0] for record in database.read())
    read = {name: first.after[f"c{n}"] for n, name in enumerate(TYPES)}
    assert read == {name: value for name, (_, value) in TYPES.items()}
    assert {name: first.schema.columns[n + 1].type.native for n, name in enumerate(TYPES)} == {
        name: "numeric(6,2)" if name == "price" else name for name in TYPES
    }
    assert second.after == {"id": 2, **{f"c{n}": None for n in range(len(TYPES))}}


def events(database, **options):
    return [event for record in database.read(**options) for event in EventConverter()(record)]


LARGE = "(select string_agg(md5(i::text), '') from generate_series(1, 400) i)"


@pytest.mark.parametrize(
    ("identity", "old_of_update", "old_of_delete"),
    [
        ("default", None, {"id": 1}),
        ("full", {"id": 1, "code": 7, "v": "a", "big": ...}, {"id": 1, "code": 7, "v": "b", "big": ...}),
        ("using index t_code", None, {"code": 7}),
    ],
)
def test_each_replica_identity_sends_its_columns(database, identity, old_of_update, old_of_delete):
    database.execute(
        "create table t (id int primary key, code int not null, v text, big text)",
        "create unique index t_code on t (code)",
        f"alter table t replica identity {identity}",
    )
    database.publish()
    database.execute(f"insert into t values (1, 7, 'a', {LARGE})", "update t set v = 'b'", "delete from t")
    create, update, delete = events(database)
    big = create.after["big"]

    def known(image):
        return image and {name: big if value is ... else value for name, value in image.items()}

    assert update.before == known(old_of_update)
    assert delete.before == known(old_of_delete)
    # Without FULL, the large value that did not change was not sent; with it, it comes from the old row.
    full = identity == "full"
    assert update.unavailable == (() if full else ("big",))
    assert update.after == {"id": 1, "code": 7, "v": "b", **({"big": big} if full else {})}
    assert [event.key for event in (create, update, delete)] == [
        {"code": 7} if "index" in identity else {"id": 1}
    ] * 3


def test_a_table_without_identity_cannot_be_updated_and_check_names_it(database):
    database.execute("create table bare (v int)", "alter table bare replica identity nothing")
    database.publish()
    database.execute("insert into bare values (1)")
    (event,) = events(database)
    assert (event.op, event.key, event.after) == (Op.CREATE, None, {"v": 1})


def test_a_change_of_the_key_has_the_old_key(database):
    database.execute("create table t (a int, b text, v int, primary key (b, a))")
    database.publish()
    database.execute("insert into t values (1, 'x', 5)", "update t set a = 2")
    _, update = events(database)
    assert (list(update.key.items()), update.before) == ([("b", "x"), ("a", 2)], {"a": 1, "b": "x"})


def test_only_committed_changes_come_in_the_order_of_commits(database):
    database.execute("create table t (id int primary key)")
    database.publish()
    import psycopg

    with psycopg.connect(database.dsn) as late, psycopg.connect(database.dsn) as early:
        late.execute("insert into t values (1)")
        early.execute("insert into t values (2)")
        early.execute("savepoint s")
        early.execute("insert into t values (3)")
        early.execute("rollback to s")
        early.commit()
        late.execute("insert into t values (4)")
        late.commit()
        late.execute("insert into t values (5)")
        late.rollback()
    records = database.read()
    assert [record.new for record in records] == [("2",), ("1",), ("4",)]
    assert [(record.sequence, record.last) for record in records] == [(1, True), (1, False), (2, True)]
    assert records[1].transaction == records[2].transaction != records[0].transaction
    assert sorted(records, key=lambda r: r.transaction.commit_lsn) == records


def test_truncates_messages_and_prepared_transactions(database):
    database.execute("create table a (id int primary key)", "create table b (id int primary key)")
    database.publish()
    database.execute(
        "truncate a, b restart identity cascade",
        "select pg_logical_emit_message(true, 'inside', 'x')",
        "select pg_logical_emit_message(false, 'outside', '\\x00'::bytea)",
        "begin; insert into a values (1); prepare transaction 'two'",
        "commit prepared 'two'",
    )
    first, second, inside, outside, prepared = database.read()
    assert {str(first.table), str(second.table)} == {"public.a", "public.b"}
    assert (first.kind, first.cascade, first.restart_identity) == (ChangeKind.TRUNCATE, True, True)
    assert (inside.prefix, inside.content, inside.transaction is not None) == ("inside", b"x", True)
    assert (outside.prefix, outside.content, outside.transaction) == ("outside", b"\0", None)
    assert prepared.new == ("1",)


def test_columns_and_tables_that_change_are_described_with_each_change(database):
    database.execute("create table t (id int primary key, v int)")
    database.publish()
    database.execute(
        "insert into t values (1, 1)",
        "alter table t add column w numeric(4,1) default 2",
        "alter table t alter column v type text",
        "insert into t values (2, 'x', 3)",
        "alter table t drop column v",
        "insert into t values (3, 4)",
        "alter table t rename to u",
        "insert into u values (4, 5)",
    )
    read = [
        (str(record.table), [c.name for c in record.table.columns], record.new) for record in database.read()
    ]
    assert read == [
        ("public.t", ["id", "v"], ("1", "1")),
        ("public.t", ["id", "v", "w"], ("2", "x", "3.0")),
        ("public.t", ["id", "w"], ("3", "4.0")),
        ("public.u", ["id", "w"], ("4", "5.0")),
    ]


def test_generated_columns_partitions_row_filters_and_column_lists(database):
    database.execute(
        "create table g (id int primary key, twice int generated always as (id * 2) stored)",
        "create table part (id int primary key) partition by range (id)",
        "create table part_1 partition of part for values from (0) to (10)",
        "create table f (id int primary key, v int, secret text)",
    )
    columns = "(id, v) where (id > 1)" if database.session.info.server_version >= 150_000 else ""
    database.publish(f"for table g, part, f {columns} with (publish_via_partition_root = true)")
    database.execute(
        "insert into g values (1)",
        "insert into part values (3)",
        "insert into f values (1, 1, 's'), (2, 2, 's')",
    )
    read = [(str(record.table), record.new) for record in database.read()]
    expected = (
        [("public.f", ("2", "2"))]
        if columns
        else [("public.f", ("1", "1", "s")), ("public.f", ("2", "2", "s"))]
    )
    assert read == [("public.g", ("1",)), ("public.part", ("3",)), *expected]


def test_filtered_tables_move_the_position_and_the_watermark(database):
    database.execute("create table a (id int primary key)", "create table b (id int primary key)")
    database.publish()
    database.execute("insert into a values (1)", "insert into b values (2)", "insert into b values (3)")
    assert [record.new for record in database.read(tables=["public.a"])] == [("1",)]
    assert [record.new for record in database.read(tables=["*.b"])] == [("2",), ("3",)]


@pytest.mark.parametrize("protocol", ["stream", "pull"])
def test_a_transaction_larger_than_the_buffer_is_read_in_parts(database, protocol):
    database.execute("create table t (id int primary key, v text)")
    database.publish()
    database.execute(
        "insert into t select i, repeat('x', 200) from generate_series(1, 20000) i",
        "delete from t where id > 19990",
    )
    records = database.read(protocol=protocol, buffer_bytes=1 << 20)
    assert [int(record.new[0]) for record in records[:20000]] == list(range(1, 20001))
    assert [record.kind for record in records[20000:]] == [ChangeKind.DELETE] * 10
    assert [record.sequence for record in records if record.last] == [20000, 10]


def test_a_new_large_value_is_told_from_an_unchanged_one(database):
    database.execute("create table t (id int primary key, v int, big bytea)")
    database.publish()
    large = "(select string_agg(decode(md5(i::text), 'hex'), '') from generate_series(1, 800) i)"
    database.execute(f"insert into t values (1, 1, {large})", "update t set v = 2", "update t set big = null")
    insert, update, emptied = database.read()
    assert insert.new[2].startswith("\\x")
    assert update.new == ("1", "2", UNCHANGED)
    assert emptied.new == ("1", "2", None)


def test_several_slots_divide_the_rows_of_a_table_by_their_publications(database):
    if database.session.info.server_version < 150_000:
        filters = {"a": "for table t", "b": "for table u"}  # without row filters, slots divide the tables
    else:
        filters = {"a": "for table t where (id % 2 = 0)", "b": "for table t where (id % 2 <> 0), table u"}
    database.execute("create table t (id int primary key)", "create table u (id int primary key)")
    for name, tables in filters.items():
        database.execute(
            f"create publication part_{name} {tables}",
            f"select pg_create_logical_replication_slot('{database.slot}_{name}', 'pgoutput')",
        )
    database.execute("insert into t select generate_series(1, 100)", "insert into u values (0)")
    parts = [database.read(publication=f"part_{name}", slot=f"{database.slot}_{name}") for name in filters]
    assert all(parts)
    found = sorted((record.table.name, int(record.new[0])) for part in parts for record in part)
    assert found == [*(("t", number) for number in range(1, 101)), ("u", 0)]
