"""Snapshots of real tables: each row once, with every column, in order with the changes of its key."""

from __future__ import annotations

import json
import threading
from typing import Any

import psycopg
import pytest

from penstock.event import Kind
from penstock.io.change_streams.incremental.engine import ChunkRequest
from penstock.io.change_streams.incremental.notifications import NotificationRecord
from penstock.io.postgres.coder import LogRecordCoder
from penstock.io.postgres.events import EventConverter
from penstock.io.postgres.record import ChangeKind, parse_lsn
from penstock.transforms.formats.debezium import DebeziumFormat
from tests.integration.postgres.conftest import Database
from tests.support.epochs import Epochs
from tests.support.waiting import join, wait_until

pytestmark = pytest.mark.slow

SIGNALS = "create table signals (id text primary key, type text, data text)"


def with_notifications(transform: Any) -> Any:
    return transform.with_notifications(None)


def signal(database: Database, type_: str = "execute-snapshot", id_: str = "1", **data: Any) -> None:
    """Insert a signal; names of fields have underscores for hyphens."""
    fields = {name.replace("_", "-"): value for name, value in data.items()}
    database.session.execute("insert into signals values (%s, %s, %s)", (id_, type_, json.dumps(fields)))


class Snapshots:
    """A reader in short epochs, with the rows and reports that it has emitted."""

    def __init__(self, database: Database, **options: Any) -> None:
        self.database = database
        given = {"signal_table": "public.signals", "heartbeat_seconds": 0.1, **options}
        self.epochs = Epochs(with_notifications(database.source(**given)))

    @property
    def progress(self) -> Any:
        ((frontier, _),) = self.epochs.residuals
        return frontier.snapshots[0]

    @property
    def records(self) -> list[Any]:
        return [each for each in self.epochs.committed if not isinstance(each, NotificationRecord)]

    @property
    def reports(self) -> list[dict[str, Any]]:
        return [each.document for each in self.epochs.committed if isinstance(each, NotificationRecord)]

    def types(self) -> list[str]:
        return [report["type"] for report in self.reports if report["type"] != "IN_PROGRESS"]

    def statuses(self) -> dict[str, str]:
        """Return how the scan of each table ended."""
        ended = [each["additional_data"] for each in self.reports if each["type"] == "TABLE_SCAN_COMPLETED"]
        return {each["scanned_collection"]: each["status"] for each in ended}

    def run_until(self, report: str, seconds: float = 0.15) -> None:
        wait_until(lambda: self.epochs.run(seconds) is None or report in self.types(), f"no report {report}")

    def run_to_now(self) -> None:
        """Run until everything that is committed now was read and no snapshot remains."""
        self.epochs.run_until(self.database.clock())
        wait_until(
            lambda: not self.progress.snapshots or self.epochs.run(0.15) is None,
            "the snapshot does not end",
        )

    def reads(self, table: str = "") -> list[tuple[Any, ...]]:
        found = [record for record in self.records if record.kind is ChangeKind.READ]
        return [record.new for record in found if not table or record.table.name == table]

    def replayed(self, table: str) -> dict[Any, dict[str, Any]]:
        """Apply all records of a table in their order."""
        convert, rows = EventConverter(), {}
        for record in self.records:
            if record.table is None or record.table.name != table:
                continue
            (event,) = convert(record)
            if record.kind is ChangeKind.TRUNCATE:
                rows = {}
                continue
            key = tuple(event.key.values())
            if record.kind is ChangeKind.DELETE:
                rows.pop(key, None)
                continue
            old = tuple((event.before or event.key).get(name, event.key[name]) for name in event.key)
            before = rows.pop(old, {}) if record.kind is ChangeKind.UPDATE else {}
            rows[key] = {**before, **event.after}
        return rows


def contents(database: Database, table: str, key: str = "id") -> dict[Any, dict[str, Any]]:
    """Return the rows of a table by key, as the reader gives them."""
    cursor = database.session.execute(f"select * from {table}")
    names = [column.name for column in cursor.description]
    rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return {tuple(row[name] for name in key.split(",")): row for row in rows}


def snapshot_flags(reader: Snapshots) -> set[str]:
    """Return `source.snapshot` of the rows of a snapshot in Debezium's records."""
    convert, format = EventConverter(), DebeziumFormat("shop")
    rows = [record for record in reader.records if record.kind is ChangeKind.READ]
    decode = LogRecordCoder().decode
    values = [
        format(event)[0].value for row in rows for event in convert(decode(LogRecordCoder().encode(row)))
    ]
    return {json.loads(value or b"")["source"]["snapshot"] for value in values}


@pytest.fixture
def filled(database: Database) -> Database:
    database.execute(
        SIGNALS,
        "create table t (id int primary key, v text)",
        "insert into t select i, 'v' || i from generate_series(1, 25) i",
    )
    database.publish()
    return database


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


def test_names_without_a_table_and_tables_without_a_key_are_reported(filled):
    filled.execute("create table keyless (a int)")
    reader = Snapshots(filled)
    signal(filled, data_collections=["public.missing", "public.t", "public.(t|keyless)", "public.t"])
    reader.run_to_now()
    assert reader.statuses() == {
        "public.missing": "UNKNOWN_SCHEMA",
        "public.keyless": "NO_PRIMARY_KEY",
        "public.t": "SUCCEEDED",
    }
    assert len(reader.reads()) == 25


def test_an_empty_table_and_a_second_request_are_reported(filled):
    filled.execute("create table empty (id int primary key)")
    reader = Snapshots(filled)
    signal(filled, data_collections=["public.empty"])
    signal(filled, id_="2", data_collections=["public.t"])
    reader.run_to_now()
    assert reader.statuses() == {"public.empty": "EMPTY", "public.t": "SUCCEEDED"}
    assert [report["id"] for report in reader.reports if report["type"] == "COMPLETED"] == ["1", "2"]


def test_a_condition_holds_after_a_restart(filled):
    reader = Snapshots(filled, chunk_rows=2)
    condition = {"data-collection": "public.t", "filter": "id % 2 = 0"}
    signal(filled, data_collections=["public.t"], additional_conditions=[condition])
    reader.run_until("STARTED")
    reader.epochs.run(0.05, crash=True)
    reader.run_to_now()
    assert [int(row[0]) for row in reader.reads()] == list(range(2, 26, 2))


def test_a_pause_lasts_through_a_restart_until_a_resume(filled):
    reader = Snapshots(filled, chunk_rows=1)
    filled.execute("begin")
    signal(filled, data_collections=["public.t"])
    signal(filled, "pause-snapshot", "2")
    filled.execute("commit")
    reader.run_until("PAUSED")
    reader.epochs.run(0.2)
    reader.epochs.run(0.2, crash=True)  # the next epoch begins with new threads
    reader.epochs.run(0.2)
    assert len(reader.reads()) < 5
    signal(filled, "resume-snapshot", "3")
    reader.run_to_now()
    assert reader.types()[-3:] == ["RESUMED", "TABLE_SCAN_COMPLETED", "COMPLETED"]
    assert len(reader.reads()) == 25


def test_a_stop_ends_one_table_or_all(filled):
    filled.execute("create table u (id int primary key)", "insert into u select generate_series(1, 9)")
    reader = Snapshots(filled, chunk_rows=1, parallel_tables=1)
    filled.execute("begin")
    signal(filled, data_collections=["public.t", "public.u"])
    signal(filled, id_="2", data_collections=["public.u"])
    filled.execute("commit")
    reader.run_until("STARTED")
    signal(filled, "stop-snapshot", "3", data_collections=["public.t"])
    signal(filled, "stop-snapshot", "4")
    reader.run_to_now()
    assert reader.types()[-1] == "ABORTED"
    assert reader.statuses()["public.t"] == "STOPPED"
    assert reader.progress.snapshots == ()


def test_a_condition_that_the_server_refuses_ends_the_table_and_not_the_pipeline(filled):
    reader = Snapshots(filled)
    condition = {"data-collection": "public.t", "filter": "no_such_column > 1"}
    signal(filled, data_collections=["public.t"], additional_conditions=[condition])
    reader.run_to_now()
    assert reader.statuses() == {"public.t": "SQL_EXCEPTION"}
    filled.execute("insert into t values (99, 'after')")
    reader.run_to_now()
    assert reader.records[-1].new == ("99", "after")


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


def test_signals_come_from_a_file_and_a_folder_once(filled, tmp_path):
    from penstock.io.change_streams.incremental.signal_folder import write_signal

    file = tmp_path / "signals.jsonl"
    # Each epoch begins with new threads, as after a restart.
    options = {"signal_table": None, "signal_file": str(file), "signal_folder": str(tmp_path / "folder")}
    options["idle_stream_seconds"] = 0
    request = {"type": "execute-snapshot", "data": {"data-collections": ["public.t"]}}
    file.write_text("not a signal\n" + json.dumps(request) + "\n")
    reader = Snapshots(filled, **options)
    reader.run_until("COMPLETED")
    write_signal(tmp_path / "folder", "from-folder", request["type"], request["data"], 1)
    wait_until(lambda: reader.epochs.run(0.1) is None or reader.types().count("COMPLETED") == 2)
    reader.epochs.run(0.1, crash=True)
    reader.epochs.run(1.2)
    assert reader.types().count("STARTED") == 2
    assert reader.reports[-1]["id"] == "from-folder"


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
