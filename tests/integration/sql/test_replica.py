"""The replica in PostgreSQL, by deliveries: it equals the source, and each promise of the page has a test."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import apache_beam as beam
import msgspec
import psycopg
import pytest

from penstock.attempt import DriverToken
from penstock.errors import UsageError
from penstock.event import ChangeEvent, Column, ColumnType, Interval, Kind, Op, TableSchema, Version
from penstock.event.schema_changes import SchemaChangedError
from penstock.event.sharding import shard_of
from penstock.io.sql.errors import SqlTargetError, classify_error
from penstock.io.sql.sender import connect
from penstock.io.sql.target import SqlTarget
from penstock.io.sql.write import WriteToSql, connector_of
from penstock.io.staging.delivery import (
    Delivery,
    LedgerConflictError,
    Refusal,
    RefusalError,
    Sent,
    TargetUnavailableError,
)
from penstock_emulators.postgres import PostgresServer
from tests.integration.postgres.conftest import Database
from tests.integration.sql.conftest import Target
from tests.support.changing_table import SCHEMA, SOURCE, changed_table

INT, TEXT = ColumnType(Kind.INT64), ColumnType(Kind.STRING)


def rows_of(rows: dict[int, dict[str, int]]) -> list[tuple[int, ...]]:
    return [(key, *row.values()) for key, row in sorted(rows.items())]


def batches(events: list[ChangeEvent], rng: random.Random) -> list[list[ChangeEvent]]:
    found, place = [], 0
    while place < len(events):
        size = rng.randrange(1, 40)
        found.append(events[place : place + size])
        place += size
    return found


def event(number: int, op: Op, key: Any, after: dict[str, Any] | None, **options: Any) -> ChangeEvent:
    schema = options.pop("schema", SCHEMA)
    image = None if key is None else {"k": key}
    new = None if after is None else {"k": key, **after}
    return ChangeEvent(SOURCE, op, number, image, options.get("before"), new, Version(number), schema)


def test_replica_equals_the_source_after_every_delivery_and_its_repeats(target: Target) -> None:
    rng, table = random.Random(7), changed_table(7, 300)
    done: list[tuple[int, list[ChangeEvent]]] = []
    place = 0
    for batch in batches(table.events, rng):
        target.deliver(batch)
        done.append((target.epoch, batch))
        epoch, old = rng.choice(done)
        newest = target.epoch
        target.deliver(old, epoch=epoch)
        target.epoch = newest
        place += len(batch)
        assert target.live() == rows_of(table.states[place - 1])


def test_four_shards_that_are_behind_each_other_give_the_source(target: Target) -> None:
    rng, table = random.Random(3), changed_table(3, 300, partial=False)
    parts = [[each for each in table.events if shard_of(each, 4) == shard] for shard in range(4)]
    waiting = [(shard, batches(part, rng)) for shard, part in enumerate(parts)]
    epochs = [0] * 4
    while waiting := [(shard, rest) for shard, rest in waiting if rest]:
        shard, rest = rng.choice(waiting)
        epochs[shard] += 1
        target.deliver(rest.pop(0), epoch=epochs[shard], shard=shard, shards=4)
    assert target.live() == rows_of(table.rows)


def test_older_events_of_another_epoch_change_no_newer_row(target: Target) -> None:
    target.deliver([event(5, Op.CREATE, 1, {"a": 5, "b": 5, "c": 5})])
    target.deliver([event(6, Op.DELETE, 2, None)])
    target.deliver([event(4, Op.READ, 1, {"a": 4, "b": 4, "c": 4}), event(3, Op.CREATE, 2, {"a": 3})])
    assert target.live() == [(1, 5, 5, 5)]


def test_driver_that_wakes_up_in_the_middle_of_a_delivery_changes_nothing(target: Target) -> None:
    # The change log has no version guard: only the ledger keeps the batch from being written twice.
    log = Target(target.database, mode="log")
    batch = [event(1, Op.CREATE, 1, {"a": 1, "b": 1, "c": 1})]
    zombie = connector_of(log.target).open(skip_refused=False)
    log.deliver(batch, epoch=1)
    log.deliver([event(2, Op.UPDATE, 1, {"a": 2})], epoch=2, generation=2)
    for epoch in (1, 3):
        with pytest.raises(LedgerConflictError):
            zombie.send(Delivery("sink", "job", 0, 1, 1, epoch), batch)
    zombie.close()
    assert log.database.rows("select op from orders order by version") == [("CREATE",), ("UPDATE",)]


def test_copy_of_the_checkpoint_with_the_same_numbers_is_refused_and_not_skipped(target: Target) -> None:
    batch = [event(1, Op.CREATE, 1, {"a": 1, "b": 1, "c": 1})]
    target.deliver(batch, epoch=2, drivers=(DriverToken(1, "a"),))
    target.deliver(batch, epoch=2, drivers=(DriverToken(1, "a"),))
    with pytest.raises(LedgerConflictError):
        target.deliver([event(2, Op.UPDATE, 1, {"a": 2})], epoch=2, drivers=(DriverToken(1, "b"),))
    assert target.live() == [(1, 1, 1, 1)]


def test_batch_without_its_ledger_entry_is_not_written(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Target(target.database, mode="log")
    batch = [event(1, Op.CREATE, 1, {"a": 1, "b": 1, "c": 1})]
    log.deliver([])
    # The connection breaks when the ledger is updated, after the rows were written.
    log.database.execute(
        "create function refuse() returns trigger language plpgsql as "
        "$$ begin perform pg_terminate_backend(pg_backend_pid()); return new; end $$",
        "create trigger refuse before update on penstock_ledger for each row execute function refuse()",
    )
    with pytest.raises(TargetUnavailableError):
        log.deliver(batch)
    log.database.execute("drop trigger refuse on penstock_ledger")
    log.deliver(batch, epoch=log.epoch)
    assert log.database.rows("select count(*) from orders") == [(1,)]


def test_refused_row_is_reported_again_by_each_repeat_and_the_others_are_written(target: Target) -> None:
    rows = [event(n, Op.CREATE, n, {"a": n, "b": 1, "c": 1}) for n in range(1, 41)]
    target.deliver([rows[0]])
    target.database.execute("alter table orders add constraint small check (a <> 17)")
    for _ in range(2):
        sent = target.deliver(rows, epoch=2, skip_refused=True)
        assert sent == Sent(
            (Refusal(16, "PostgreSQL says 23514 (CheckViolation, table orders, constraint small)"),)
        )
    assert [key for key, *_ in target.live()] == [n for n in range(1, 41) if n != 17]


def test_refused_change_takes_no_other_change_of_its_row_with_it(target: Target) -> None:
    target.deliver([event(1, Op.CREATE, 1, {"a": 1, "b": 1, "c": 1})])
    target.database.execute("alter table orders add constraint small check (b < 10)")
    changes = [
        event(2, Op.UPDATE, 1, {"a": 2}),
        event(3, Op.UPDATE, 1, {"b": 99}),
        event(4, Op.UPDATE, 1, {"c": 4}),
    ]
    assert [each.index for each in target.deliver(changes, skip_refused=True).refused] == [1]
    assert target.live() == [(1, 2, 1, 4)]


def test_without_error_output_a_refused_row_stops_the_batch_and_is_named(target: Target) -> None:
    schema = TableSchema((*SCHEMA.columns, Column("t", TEXT)))
    good = event(1, Op.CREATE, 1, {"t": "x"}, schema=schema)
    bad = event(2, Op.CREATE, 2, {"t": "a\0b"}, schema=schema)
    with pytest.raises(RefusalError) as caught:
        target.deliver([good, bad])
    assert caught.value.refusal == Refusal(1, "a text has a zero byte, which PostgreSQL cannot store")
    assert target.live() == []
    assert target.database.rows("select epoch from penstock_ledger where epoch >= 0") == []


def test_event_without_a_primary_key_is_refused_by_a_replica(target: Target) -> None:
    keyless = msgspec.structs.replace(event(1, Op.CREATE, 1, {"a": 1}), key=None)
    (refusal,) = target.deliver([keyless, event(2, Op.CREATE, 2, {"a": 2})], skip_refused=True).refused
    assert (refusal.index, "primary key" in refusal.reason) == (0, True)


def test_key_change_with_columns_of_another_shard_is_refused(target: Target) -> None:
    target.deliver([event(1, Op.CREATE, 1, {"a": 1, "b": 1, "c": 1})])
    moved = event(2, Op.UPDATE, 2, {"a": 2}, before={"k": 1})
    (refusal,) = target.deliver([moved], shards=2, skip_refused=True).refused
    assert "shards=1" in refusal.reason
    target.deliver([moved])
    assert target.live() == [(2, 2, 1, 1)]


def test_new_and_wider_columns_follow_the_policy(target: Target) -> None:
    small = TableSchema((Column("k", ColumnType(Kind.INT32), False, 1), Column("a", ColumnType(Kind.INT16))))
    target.deliver([event(1, Op.CREATE, 1, {"a": 1}, schema=small)])
    change = event(2, Op.CREATE, 2, {"a": 2**40, "b": 2, "c": 3})
    with pytest.raises(SchemaChangedError, match="new columns or wider types: b, c"):
        Target(target.database, schema_changes="stop").deliver([change], epoch=2)
    ignoring = Target(target.database, schema_changes="ignore")
    (refusal,) = ignoring.deliver([change], epoch=2, skip_refused=True).refused
    assert "22003" in refusal.reason
    target.deliver([change], epoch=3)
    assert target.live() == [(1, 1, None, None), (2, 2**40, 2, 3)]


def test_values_of_another_type_get_a_column_with_lenient(database: Database) -> None:
    text = TableSchema((SCHEMA.columns[0], Column("a", TEXT), *SCHEMA.columns[2:]))
    target = Target(database, schema_changes=("stop", "orders=lenient"))
    target.deliver([event(n, Op.CREATE, n, {"a": n, "b": 0, "c": 0}) for n in (1, 2)])
    target.deliver(
        [event(3, Op.UPDATE, 1, {"a": 7}), event(4, Op.UPDATE, 1, {"a": "seven", "b": 1}, schema=text)]
    )
    target.deliver([event(5, Op.UPDATE, 2, {"b": 2}, schema=text)])
    target.deliver([event(6, Op.CREATE, 3, {"a": "x", "b": 3, "c": 3}, schema=text)])
    target.deliver([event(7, Op.UPDATE, 3, {"a": 3})])
    rows = [(1, None, 1, 0, "seven"), (2, 2, 2, 0, None), (3, 3, 3, 3, None)]
    assert target.live(columns="k, a, b, c, a__string") == rows


def test_a_type_that_the_user_chose_takes_every_value_with_lenient(database: Database) -> None:
    database.execute("create table orders (k bigint primary key, a varchar(20), b bigint, c bigint)")
    text = TableSchema((SCHEMA.columns[0], Column("a", TEXT), *SCHEMA.columns[2:]))
    target = Target(database, schema_changes="lenient")
    target.deliver([event(1, Op.CREATE, 1, {"a": 1}), event(2, Op.CREATE, 2, {"a": "x"}, schema=text)])
    assert target.live() == [(1, "1", None, None), (2, "x", None, None)]


def test_another_key_of_the_source_is_refused_before_rows_are_written(target: Target) -> None:
    target.deliver([event(1, Op.CREATE, 1, {"a": 1})])
    other = TableSchema(
        (Column("k", SCHEMA.columns[0].type), msgspec.structs.replace(SCHEMA.columns[1], key_position=1))
    )
    change = msgspec.structs.replace(event(2, Op.CREATE, 2, {"a": 2}, schema=other), key={"a": 2})
    with pytest.raises(SqlTargetError, match=r'unique constraint on \("a"\), the key columns of the source'):
        target.deliver([change])
    assert target.live(columns="k, a") == [(1, 1)]


def test_rows_that_the_target_cannot_follow_are_refused_with_try_evolve(database: Database) -> None:
    """Rows of a schema that fits are written, also in the same batch, and a repair helps at the next batch."""
    other = TableSchema((SCHEMA.columns[0], Column("a", ColumnType(Kind.FLOAT64)), *SCHEMA.columns[2:]))
    longer = TableSchema((*SCHEMA.columns, Column("n" * 70, TEXT)))
    target = Target(database, schema_changes=("stop", "orders=try_evolve"))
    batch = [
        event(1, Op.CREATE, 1, {"a": 1}),
        event(2, Op.CREATE, 2, {"a": 2.5}, schema=other),
        event(3, Op.CREATE, 3, {"a": 3}, schema=longer),
        event(4, Op.CREATE, 4, {"a": 2**70}),
        event(5, Op.CREATE, 5, {"a": 5}),
    ]
    refused = target.deliver(batch, skip_refused=True).refused
    assert [each.index for each in refused] == [1, 2, 3]
    assert "column a" in refused[0].reason
    assert "63 bytes" in refused[1].reason
    assert target.live(columns="k, a") == [(1, 1), (5, 5)]
    # The ledger has them: a repeated delivery gives the same answer.
    database.execute("alter table orders alter column a type double precision")
    assert target.deliver(batch, epoch=1, skip_refused=True).refused == refused
    target.deliver([event(6, Op.CREATE, 2, {"a": 2.5}, schema=other)], epoch=2, skip_refused=True)
    assert target.live(columns="k, a") == [(1, 1), (2, 2.5), (5, 5)]


def test_a_role_that_may_not_alter_refuses_the_rows_with_try_evolve(database: Database) -> None:
    Target(database).deliver([event(1, Op.CREATE, 1, {"a": 1})])
    wider = TableSchema((*SCHEMA.columns, Column("d", TEXT)))
    database.execute(
        f"create role writer_{database.name} login",
        f"grant select, insert, update, delete on all tables in schema public to writer_{database.name}",
    )
    target = Target(database, schema_changes="try_evolve")
    target.target = replace(target.target, dsn=f"{database.dsn} user=writer_{database.name}")
    (refusal,) = target.deliver(
        [event(2, Op.CREATE, 2, {"d": "x"}, schema=wider), event(3, Op.CREATE, 3, {"a": 3})],
        epoch=2,
        skip_refused=True,
    ).refused
    assert (refusal.index, "42501" in refusal.reason) == (0, True)
    assert target.live(columns="k, a") == [(1, 1), (3, 3)]


def test_try_evolve_needs_an_error_output() -> None:
    sink = WriteToSql("host=nowhere", schema_changes="try_evolve")
    with pytest.raises(UsageError, match="try_evolve needs an error output"):
        beam.Pipeline() | beam.Create([]) | sink


def test_tombstones_are_removed_after_the_horizon(database: Database) -> None:
    target = Target(database, tombstone_seconds=100)
    second = 10**9
    target.deliver([event(1 * second, Op.DELETE, 1, None), event(90 * second, Op.DELETE, 2, None)])
    assert target.database.rows("select count(*) from orders") == [(2,)]
    target.deliver([event(150 * second, Op.CREATE, 3, {"a": 3})])
    assert target.database.rows("select k from orders order by k") == [(2,), (3,)]


def test_table_of_the_user_is_used_as_it_is(target: Target) -> None:
    target.database.execute(
        "create table orders (k bigint primary key, a text, b numeric, c int, note text, "
        "twice numeric generated always as (b * 2) stored)",
        "insert into orders (k, a, note) values (9, 'old', 'mine')",
    )
    target.deliver(
        [event(1, Op.UPDATE, 9, {"a": 5, "b": 7}), event(2, Op.CREATE, 1, {"a": 1, "b": 1, "c": 1})]
    )
    assert target.live(columns="k, a, b, c, note, twice") == [
        (1, "1", 1, 1, None, 2),
        (9, "5", 7, None, "mine", 14),
    ]


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (
            "create table orders (k bigint primary key, a bigint not null, b bigint, c bigint)",
            "drop not null",
        ),
        ("create table orders (k bigint, a bigint, b bigint, c bigint)", "primary key or unique constraint"),
    ],
)
def test_unsuitable_table_of_the_user_is_an_error_that_names_the_fix(
    target: Target, statement: str, message: str
) -> None:
    target.database.execute(statement)
    with pytest.raises(SqlTargetError, match=message):
        target.deliver([event(1, Op.CREATE, 1, {"a": 1})])


def test_missing_table_is_an_error_if_tables_are_not_created(database: Database) -> None:
    with pytest.raises(SqlTargetError, match="create_tables is false"):
        Target(database, create_tables=False).deliver([event(1, Op.CREATE, 1, {"a": 1})])


def test_two_source_tables_of_one_name_are_an_error(target: Target) -> None:
    other = msgspec.structs.replace(
        event(2, Op.CREATE, 1, {"a": 1}), source=msgspec.structs.replace(SOURCE, schema="archive")
    )
    with pytest.raises(SqlTargetError, match="shop.public.orders and shop.archive.orders"):
        target.deliver([event(1, Op.CREATE, 1, {"a": 1}), other])


VALUES: dict[str, tuple[ColumnType, Any, str]] = {
    "bool": (ColumnType(Kind.BOOL), True, "true"),
    "uint64": (ColumnType(Kind.UINT64), 2**64 - 1, "18446744073709551615"),
    "float64": (ColumnType(Kind.FLOAT64), float("nan"), "NaN"),
    "bytes": (ColumnType(Kind.BYTES), b"\x00\\'\xff", "\\x005c27ff"),
    "date": (ColumnType(Kind.DATE), -719529, "0002-12-31 BC"),
    "infinite_date": (ColumnType(Kind.DATE), float("inf"), "infinity"),
    "time": (ColumnType(Kind.TIME), 86_399_999_999_000, "23:59:59.999999"),
    "timestamp": (ColumnType(Kind.TIMESTAMP), 253402300799999999000, "9999-12-31 23:59:59.999999+00"),
    "local": (ColumnType(Kind.LOCAL_TIMESTAMP), -1000, "1969-12-31 23:59:59.999999"),
    "interval": (
        ColumnType(Kind.INTERVAL),
        Interval(14, -3, -1_500_000_000),
        "1 year 2 mons -3 days -00:00:01.5",
    ),
    "json": (ColumnType(Kind.JSON), '{"b":1.10,"a":[]}', '{"a": [], "b": 1.10}'),
    "uuid": (
        ColumnType(Kind.UUID),
        "a" * 8 + "-0000-0000-0000-" + "b" * 12,
        "aaaaaaaa-0000-0000-0000-bbbbbbbbbbbb",
    ),
    "array": (
        ColumnType(Kind.ARRAY, element=TEXT),
        ['a"b\\', None, "", "NULL"],
        '{"a\\"b\\\\",NULL,"","NULL"}',
    ),
    "text": (TEXT, 'tab\t line\n \\N "é"', 'tab\t line\n \\N "é"'),
    "empty": (TEXT, "", ""),
}


def test_values_keep_their_full_range(target: Target) -> None:
    columns = [Column(name, type_) for name, (type_, _, _) in VALUES.items()]
    schema = TableSchema((SCHEMA.columns[0], *columns))
    values = {name: value for name, (_, value, _) in VALUES.items()}
    target.deliver([event(1, Op.CREATE, 1, values, schema=schema)])
    target.database.execute("set time zone 'UTC'")
    texts = ", ".join(f'"{name}"::text' for name in VALUES)
    assert target.database.rows(f"select {texts} from orders") == [
        tuple(text for *_, text in VALUES.values())
    ]


def test_nanoseconds_are_refused_and_not_rounded_unless_the_column_is_text(target: Target) -> None:
    schema = TableSchema((SCHEMA.columns[0], Column("at", ColumnType(Kind.TIMESTAMP))))
    change = event(1, Op.CREATE, 1, {"at": 1}, schema=schema)
    (refusal,) = target.deliver([change], skip_refused=True).refused
    assert "make it a text column" in refusal.reason
    target.database.execute("alter table orders alter column at type text")
    target.deliver([change])
    assert target.live(columns="at") == [("1970-01-01 00:00:00.000000001+00",)]


def test_change_log_has_every_event_with_not_sent_null_and_empty_apart(database: Database) -> None:
    log = Target(database, mode="log", table="{table}_log")
    schema = TableSchema((*SCHEMA.columns, Column("t", TEXT)))
    log.deliver([event(1, Op.UPDATE, 1, {"a": None, "t": ""}, schema=schema)])
    assert database.rows("select op, after, not_sent from orders_log") == [
        ("UPDATE", {"k": 1, "a": None, "t": ""}, ["b", "c"])
    ]


def test_server_that_crashes_between_deliveries_loses_none(server: PostgresServer, target: Target) -> None:
    with PostgresServer.start() as own:
        with psycopg.connect(own.dsn(), autocommit=True) as session:
            session.execute("alter database postgres set synchronous_commit = off")
        sink = SqlTarget(own.dsn())
        for epoch in range(1, 6):
            sender = connector_of(sink).open(skip_refused=False)
            sender.send(Delivery("s", "j", 0, 1, 1, epoch), [event(epoch, Op.CREATE, epoch, {"a": 1})])
            own.kill()
            with pytest.raises(TargetUnavailableError):
                sender.send(Delivery("s", "j", 0, 1, 1, epoch), [])
            sender.close()
            own.restart()
        with psycopg.connect(own.dsn()) as session:
            assert session.execute("select count(*) from orders").fetchall() == [(5,)]


def test_server_ends_the_transaction_of_a_paused_driver_unless_the_dsn_has_another_limit(
    database: Database,
) -> None:
    def limit(dsn: str) -> str:
        with connect(SqlTarget(dsn)) as session:
            ((found,),) = session.execute("show idle_in_transaction_session_timeout").fetchall()
            return str(found)

    assert limit(database.dsn) == "1min"
    assert limit(f"{database.dsn} options='-c idle_in_transaction_session_timeout=3s'") == "3s"
    # The driver that wakes up then connects again, and finds the ledger of its successor.
    assert isinstance(classify_error("25P03", "terminated", "target"), TargetUnavailableError)


@pytest.mark.parametrize("paused", [True, False], ids=["in a COPY", "in a statement"])
def test_successor_ends_the_session_of_a_driver_that_was_paused_in_a_copy(
    database: Database, paused: bool
) -> None:
    Target(database).deliver([event(1, Op.CREATE, 1, {"a": 1})])
    successor = Target(database)
    successor.target = SqlTarget(f"{database.dsn} options='-c lock_timeout=200ms'")
    with psycopg.connect(database.dsn) as driver, driver.cursor() as cursor:
        cursor.execute("select from penstock_ledger for update")
        if paused:
            # The context manager would wait for the server, and the paused driver does not do this either.
            driver.pgconn.exec_(b"copy orders from stdin")
        else:
            driver.pgconn.send_query(b"select pg_sleep(60)")
        with pytest.raises(TargetUnavailableError):
            successor.deliver([event(2, Op.CREATE, 2, {"a": 2})], epoch=2)
        if paused:
            successor.deliver([event(2, Op.CREATE, 2, {"a": 2})], epoch=2)
            assert successor.live(columns="k, a") == [(1, 1), (2, 2)]
        else:
            # A session that works is not ended: the successor waits for it.
            with pytest.raises(TargetUnavailableError):
                successor.deliver([event(2, Op.CREATE, 2, {"a": 2})], epoch=2)
        driver.close()


def test_wrong_database_is_an_error_and_not_an_outage(server: PostgresServer) -> None:
    with pytest.raises(SqlTargetError, match="check dbname and user"):
        connector_of(SqlTarget(server.dsn("nowhere"))).check()
