"""Snapshots of real tables: each row once, with every column, in order with the changes of its key."""

from __future__ import annotations

import threading

import psycopg
import pytest

from penstock.event import Kind
from penstock.io.change_streams.incremental.engine import ChunkRequest
from penstock.io.postgres.record import ChangeKind, parse_lsn
from tests.integration.postgres.conftest import Database
from tests.integration.postgres.snapshot_readers import (
    SIGNALS,
    Snapshots,
    contents,
    fill,
    signal,
    snapshot_flags,
)
from tests.support.epochs import Epochs
from tests.support.waiting import join, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def filled(database: Database) -> Database:
    return fill(database)


@pytest.mark.parametrize("chunk_rows", [1, 10, 1000])
def test_a_signal_in_the_log_reads_each_row_once(filled, chunk_rows):
    reader = Snapshots(filled, chunk_rows=chunk_rows)
    signal(filled, data_collections=["public.t"])
    reader.run_to_now()
    assert reader.reads() == [(str(n), f"v{n}") for n in range(1, 26)]
    assert reader.types() == ["STARTED", "TABLE_SCAN_COMPLETED", "COMPLETED"]
    assert reader.reports[0]["additional_data"]["data_collections"] == "public.t"
    assert [record.kind for record in reader.records if record.kind is not ChangeKind.READ] == []
    assert snapshot_flags(reader) == {"incremental"}


def test_what_the_server_logs_while_a_chunk_is_read_is_on_disk_afterwards(filled):
    """Readers of the log get it only then. The server notes in each page that its rows are committed."""
    filled.execute("checkpoint")
    ((before,),) = filled.rows("select pg_current_wal_insert_lsn()::text")
    reader = filled.source().row_reader()
    try:
        chunk = reader.read(ChunkRequest(1, "public.t", "", (), 100))
    finally:
        reader.close()
    ((flushed,),) = filled.rows("select pg_current_wal_flush_lsn()::text")
    assert parse_lsn(flushed) >= chunk.position
    # The default since version 18: pages have checksums.
    assert filled.server.version < 18 or chunk.position > parse_lsn(before)


def test_rows_have_a_type_that_was_created_since_the_reader_began(filled):
    reader = filled.source().row_reader()
    try:
        reader.read(ChunkRequest(1, "public.t", "", (), 100))
        filled.execute(
            "create type mood as enum ('sad', 'ok')", "alter table t add m mood default 'ok', add ms mood[]"
        )
        table = reader.read(ChunkRequest(2, "public.t", "", (), 100)).rows[0].value.table
    finally:
        reader.close()
    types = {column.name: column.type for column in table.columns}
    assert (types["m"].kind, types["ms"].kind) == (Kind.ENUM, Kind.ARRAY)
    assert types["ms"].element.kind is Kind.ENUM


def test_rows_that_change_while_chunks_are_read_come_in_order_with_their_changes(filled):
    reader = Snapshots(filled, chunk_rows=3)
    signal(filled, data_collections=["public.t"])
    for number in range(6):
        filled.execute(
            f"update t set v = 'new{number}' where id % 6 = {number}",
            f"delete from t where id = {4 * number + 1}",
            f"insert into t values ({100 + number}, 'x')",
            f"update t set id = id + 200 where id = {4 * number + 2}",
        )
        reader.epochs.run(0.06, crash=number % 2 == 1)
    filled.execute("begin", "update t set v = 'rolled back'", "rollback")
    reader.run_to_now()
    assert reader.replayed("t") == contents(filled, "t")


def test_a_truncate_removes_the_rows_of_a_chunk(filled):
    reader = Snapshots(filled, chunk_rows=5)
    signal(filled, data_collections=["public.t"])
    reader.epochs.run(0.05)
    filled.execute("truncate t", "insert into t values (1, 'after')")
    reader.run_to_now()
    assert reader.replayed("t") == contents(filled, "t")


def test_a_large_value_that_does_not_change_is_delivered(database):
    database.execute(
        SIGNALS,
        "create table t (id int primary key, n int, v text, b bytea)",
        "alter table t alter v set storage external, alter b set storage external",
        "insert into t select i, 0, repeat(md5(i::text), 300), decode(repeat(md5(i::text), 300), 'hex') "
        "from generate_series(1, 12) i",
    )
    database.publish()
    reader = Snapshots(database, chunk_rows=2)
    signal(database, data_collections=["public.t"])
    for number in range(10):
        database.execute(
            "update t set n = n + 1", f"update t set id = {100 + number} where id = {11 - number}"
        )
        reader.epochs.run(0.04, crash=number % 3 == 2)
    reader.run_to_now()
    assert reader.replayed("t") == contents(database, "t")


def test_a_row_does_not_follow_a_change_that_is_in_the_log_before_others_see_it(server, filled):
    """A standby that does not confirm: the commit is in the log, and its session still waits."""
    import threading

    reader = Snapshots(filled)
    filled.execute("alter system set synchronous_standby_names = 'nobody'", "select pg_reload_conf()")
    wait_until(lambda: filled.rows("show synchronous_standby_names") == [("nobody",)])

    def update() -> None:
        with psycopg.connect(filled.dsn, autocommit=True) as session:
            session.execute("update t set v = 'waits' where id = 7")

    waiting = threading.Thread(target=update, daemon=True)
    waiting.start()
    try:
        wait_until(
            lambda: (
                reader.epochs.run(0.1) is None or any(r.kind is ChangeKind.UPDATE for r in reader.records)
            ),
            "the update does not come",
        )
        assert filled.rows("select v from t where id = 7") == [("v7",)]
        filled.execute("set synchronous_commit = local")
        signal(filled, data_collections=["public.t"])
        reader.run_until("STARTED")
        reader.epochs.run(0.3)
        assert reader.reads() == []
    finally:
        filled.execute("alter system reset synchronous_standby_names", "select pg_reload_conf()")
        join(waiting)
    reader.run_to_now()
    assert len(reader.reads()) == 25
    assert reader.replayed("t") == contents(filled, "t")


def test_a_long_transaction_does_not_stop_a_snapshot(filled):
    reader = Snapshots(filled, chunk_rows=5)
    with psycopg.connect(filled.dsn) as other:
        other.execute("update t set v = 'long' where id < 10")
        signal(filled, data_collections=["public.t"])
        # A number of epochs is the limit: a chunk that waits for the transaction would wait until the test ends.
        assert any(reader.epochs.run(0.15) is not None and "COMPLETED" in reader.types() for _ in range(100))
        other.commit()
    reader.run_to_now()
    assert reader.replayed("t") == contents(filled, "t")


KEYS = {
    "composite": ("a int, b text", "i % 3, 'k' || i", "a,b"),
    "timestamp": ("a timestamp", "timestamp '2020-01-01' + i * interval '1 hour'", "a"),
    "timestamptz": ("a timestamptz", "timestamptz '2020-01-01' + i * interval '1 hour'", "a"),
    "time": ("a time", "time '00:00' + i * interval '1 minute'", "a"),
    "interval": ("a interval", "i * interval '1 day'", "a"),
    "array": ("a int[]", "array[i, i + 1]", "a"),
    "name": ("a name", "('n' || i)::name", "a"),
    "infinity": (
        "a timestamp",
        "case i when 1 then '-infinity' when 2 then 'infinity' else timestamp '2020-01-01' + i * interval '1 s' end",
        "a",
    ),
    "nan": ("a numeric", "case i when 1 then 'NaN' else i / 7.0 end", "a"),
    "float": ("a float8", "case i when 1 then 'NaN' when 2 then '-Infinity' else i / 7.0 end", "a"),
    "enum": ("a mood, b int", "(array['sad', 'ok', 'happy'])[1 + i % 3]::mood, i", "a,b"),
    "uuid": ("a uuid", "md5(i::text)::uuid", "a"),
    "collated": ('a text collate "C", b varchar(9)', "chr(64 + i % 30), 'ä' || i", "a,b"),
    "char": ("a char(5), b bytea", "'c' || i % 4, decode(md5(i::text), 'hex')", "a,b"),
    "quoted": ('"Key ""x""" int', "i", '"Key ""x"""'),
    "boolean": ("a boolean, b int", "i % 2 = 0, i", "a,b"),
}


def test_keys_of_every_kind_are_read_over_several_chunks(database):
    database.execute(SIGNALS, "create type mood as enum ('sad', 'ok', 'happy')")
    for name, (columns, values, key) in KEYS.items():
        database.execute(
            f'create table "k {name}" ({columns}, v int not null, primary key ({key}))',
            f'insert into "k {name}" select {values}, i from generate_series(1, 12) i',
        )
    database.publish()
    reader = Snapshots(database, chunk_rows=5)
    signal(database, data_collections=["public.k .*"])
    reader.run_to_now()
    assert set(reader.statuses().values()) == {"SUCCEEDED"}
    for name in KEYS:
        assert sorted(int(row[-1]) for row in reader.reads(f"k {name}")) == list(range(1, 13)), name


def test_a_surrogate_key_with_duplicates_and_nulls_delivers_every_row(database):
    database.execute(
        SIGNALS,
        "create table t (id int primary key, a int, b text)",
        "insert into t select i, nullif(i % 4, 3), case when i % 5 > 0 then 'b' || i % 2 end "
        "from generate_series(1, 40) i",
        "create table keyless (a int)",
        "insert into keyless select nullif(i % 3, 2) from generate_series(1, 9) i",
    )
    database.publish()
    reader = Snapshots(database, chunk_rows=3)
    signal(database, data_collections=["public.t", "public.keyless"], surrogate_key="a")
    signal(database, id_="2", data_collections=["public.t"], surrogate_key="a,b")
    reader.run_to_now()
    assert sorted(int(row[0]) for row in reader.reads("t")) == sorted([*range(1, 41)] * 2)
    assert len(reader.reads("keyless")) == 9


def test_a_column_that_is_added_between_chunks_is_in_the_later_rows(filled):
    reader = Snapshots(filled, chunk_rows=5)
    signal(filled, data_collections=["public.t"])
    reader.epochs.run(0.04)
    filled.execute("alter table t add extra int default 5", "update t set v = 'changed' where id = 25")
    reader.run_to_now()
    assert {key[0] for key in reader.replayed("t")} == set(range(1, 26))
    assert reader.replayed("t")[(25,)] == {"id": 25, "v": "changed", "extra": 5}


def test_a_table_that_is_rewritten_while_it_is_read_loses_no_row(filled):
    reader = Snapshots(filled, chunk_rows=4)
    signal(filled, data_collections=["public.t"])
    for _ in range(4):
        reader.epochs.run(0.03)
        filled.execute(
            "alter table t alter v type varchar(40)", "alter table t alter v type text using v || ''"
        )
    reader.run_to_now()
    assert {key[0] for key in reader.replayed("t")} == set(range(1, 26))


@pytest.mark.campaign
def test_a_chunk_that_waits_for_the_lock_of_a_rewrite_loses_no_row_and_holds_up_no_change(filled):
    filled.execute(
        "create table other (id int primary key)",
        "insert into t select i, 'v' || i from generate_series(26, 500) i",
    )
    reader = Snapshots(filled, chunk_rows=1)
    signal(filled, data_collections=["public.t"])
    wait_until(lambda: reader.epochs.run(0.05) is None or reader.reads(), "no row comes")
    waiting = (
        "select from pg_locks join pg_class on relation = pg_class.oid where relname = 't' and not granted"
    )
    with psycopg.connect(filled.dsn) as rewriting:
        rewriting.execute("alter table t alter v type text using v || ''")
        wait_until(lambda: reader.epochs.run(0.1) is None or filled.rows(waiting), "no chunk waits")
        filled.execute("insert into other values (1)")
        wait_until(
            lambda: reader.epochs.run(0.1) is None or any(r.table.name == "other" for r in reader.records),
            "a change waits for the chunk",
        )
        assert len(reader.reads("t")) < 500
        rewriting.commit()
    reader.run_to_now()
    assert reader.replayed("t") == contents(filled, "t")


def test_a_bundle_ends_while_a_migration_locks_the_table_of_its_chunk(filled):
    reader = Snapshots(filled, idle_stream_seconds=0)  # each bundle stops its reader at the end
    released = threading.Event()
    with psycopg.connect(filled.dsn) as migration:
        migration.execute("lock table t in access exclusive mode")
        release = threading.Timer(20, lambda: (released.set(), migration.rollback()))
        release.start()
        signal(filled, data_collections=["public.t"])
        for _ in range(4):
            reader.epochs.run(0.3)
        release.cancel()
        assert not released.is_set(), "the end of a bundle waits for the migration"
        assert not reader.reads("t")
    reader.run_to_now()
    assert reader.replayed("t") == contents(filled, "t")


def test_columns_that_change_while_the_reader_is_down_in_the_middle_of_a_snapshot(filled):
    filled.execute("alter table t add gone text default 'gone'")
    reader = Snapshots(filled, chunk_rows=4, idle_stream_seconds=0)  # no connection between two epochs
    signal(filled, data_collections=["public.t"])
    wait_until(lambda: reader.epochs.run(0.1) is None or reader.reads(), "no row comes")
    filled.execute(
        "update t set v = 'before' where id in (2, 24)",
        "alter table t drop gone, add extra int default 5",
        "update t set v = 'after' where id in (1, 25)",
        "delete from t where id = 3",
    )
    reader.run_to_now()
    found, rows = reader.replayed("t"), contents(filled, "t")
    assert found.keys() == rows.keys()
    assert all({name: found[key].get(name, 5) for name in row} == row for key, row in rows.items())
    assert found[(1,)]["extra"] == found[(25,)]["extra"] == 5


def test_rows_have_the_columns_and_conditions_of_the_publication(database):
    database.execute(
        SIGNALS,
        "create table t (id int primary key, v text, hidden text, g int generated always as (id * 2) stored)",
        "insert into t select i, 'v', 'secret' from generate_series(1, 10) i",
    )
    database.publish("for table t (id, v) where (id > 4)")
    reader = Snapshots(database, chunk_rows=3)
    signal(database, data_collections=["public.t"])
    reader.run_to_now()
    assert reader.reads("t") == [(str(n), "v") for n in range(5, 11)]


def test_every_type_is_equal_in_a_row_and_in_the_change_that_wrote_it(database):
    database.execute(
        # Settings of the server must not reach the records: they change how it prints values.
        f"alter database {database.name} set datestyle = 'German'",
        f"alter database {database.name} set intervalstyle = 'sql_standard'",
        f"alter database {database.name} set timezone = 'Asia/Kathmandu'",
        f"alter database {database.name} set bytea_output = 'escape'",
        f"alter database {database.name} set extra_float_digits = 0",
        SIGNALS,
        "create table t (id int primary key, a bool, b int2, c int8, d float4, e float8, f numeric(20,5), g text, "
        "h char(7), i bytea, j date, k time, l timestamptz, m timestamp, n interval, o uuid, p jsonb, q json, "
        'r int[], s text[], t inet, u int4range, v money, w point, x bit(3), y "char", z timetz, zz numeric not null)',
    )
    database.publish()
    database.execute(
        "insert into t values (1, true, -1, 9e15, 'NaN', 1e-300, 1.5, E'tab\t\\\\ \\N', 'pad', '\\x00ff', 'infinity', "
        "'24:00', '0044-03-15 BC', 'infinity', '1 mon -2 days', md5('x')::uuid, '{\"a\": [1]}', '{\"b\" : 1}', "
        "'{1,NULL}', '{\"a,b\",NULL,\"\"}', '::1/64', '[1,5)', 3, '(1,2)', '101', 'x', '10:00+02', 'NaN')",
        "insert into t (id, zz) values (2, 0)",
    )
    reader = Snapshots(database)
    signal(database, data_collections=["public.t"])
    reader.run_to_now()
    inserts = [record for record in reader.records if record.kind is ChangeKind.INSERT]
    reads = [record for record in reader.records if record.kind is ChangeKind.READ]
    assert [record.new for record in reads] == [record.new for record in inserts]
    assert [record.table for record in reads] == [record.table for record in inserts]


def test_a_partitioned_table_is_read_under_the_name_that_its_changes_have(database):
    database.execute(
        SIGNALS,
        "create table p (id int primary key, v text) partition by range (id)",
        "create table p1 partition of p for values from (0) to (10)",
        "create table p2 partition of p for values from (10) to (100)",
        "insert into p select i, 'v' from generate_series(1, 20) i",
        "create publication roots for table p with (publish_via_partition_root)",
    )
    database.publish()
    # This publication does not have the signal table, so it is polled.
    reader = Snapshots(database, publication="roots", signal_table="public.signals")
    signal(database, data_collections=["public.p.*"])
    reader.run_until("COMPLETED")
    assert len(reader.reads("p")) == 20
    assert reader.statuses() == {"public.p": "SUCCEEDED"}


def test_an_initial_snapshot_gives_all_rows_also_of_a_table_without_a_key(filled):
    filled.execute("create table keyless (a int)", "insert into keyless select generate_series(1, 30)")
    reader = Snapshots(filled, snapshot="initial", chunk_rows=7)
    filled.execute("update t set v = 'changed' where id > 20", "delete from t where id = 3")
    reader.epochs.run(0.05, crash=True)
    reader.run_to_now()
    assert reader.replayed("t") == contents(filled, "t")
    assert sorted(int(row[0]) for row in reader.reads("keyless")) == list(range(1, 31))
    assert reader.reports[0]["aggregate_type"] == "Initial Snapshot"
    assert snapshot_flags(reader) == {"true"}


def test_a_bounded_read_ends_after_its_snapshot(filled):
    transform = filled.source(snapshot="initial", chunk_rows=4, end=filled.clock())
    filled.execute("update t set v = 'later' where id = 1")
    records = Epochs(transform).run_to_the_end()
    assert sorted(int(record.new[0]) for record in records) == list(range(1, 26))
    assert {record.kind for record in records} == {ChangeKind.READ}


def test_a_new_snapshot_replaces_changes_that_were_lost(filled):
    reader = Snapshots(filled, snapshot="when_needed")
    reader.run_to_now()
    assert len(reader.reads()) == 25
    filled.wait_for_free_slot()
    filled.execute(
        f"select pg_drop_replication_slot('{filled.slot}')",
        "update t set v = 'while the slot was missing' where id = 5",
    )
    reader.run_until("COMPLETED")
    wait_until(lambda: reader.epochs.run(0.1) is None or reader.types().count("COMPLETED") == 2)
    filled.execute("update t set v = 'after' where id = 6")
    reader.run_to_now()
    assert reader.replayed("t") == contents(filled, "t")
    assert len(reader.reads()) == 50


def test_pulled_changes_are_merged_too(filled):
    reader = Snapshots(filled, protocol="pull", chunk_rows=5)
    signal(filled, data_collections=["public.t"])
    for number in range(5):
        filled.execute(
            f"update t set v = 'new{number}' where id % 5 = {number}",
            f"delete from t where id = {number + 7}",
        )
        reader.epochs.run(0.1, crash=number == 2)
    reader.run_to_now()
    assert reader.replayed("t") == contents(filled, "t")
