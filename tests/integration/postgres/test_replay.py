"""Writers, crashes of the reader and of the server: the records that were committed give exactly the tables."""

from __future__ import annotations

import time

import psycopg
import pytest

from penstock_emulators.postgres import PostgresServer
from tests.conftest import CAMPAIGN
from tests.integration.postgres.conftest import VERSIONS, Database
from tests.integration.postgres.workload import CREATE, Replay, Writers, contents
from tests.support.epochs import Epochs

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("protocol", ["stream", "pull"] if CAMPAIGN else ["stream"])
@pytest.mark.parametrize("version", VERSIONS)
def test_replay_equals_the_tables_through_crashes_of_reader_and_server(protocol, version, campaign):
    draw = campaign.random(f"{protocol}/{version}")
    with PostgresServer.start(version=version) as server:
        database = Database(server)
        database.execute(*CREATE)
        database.publish()
        replay = Replay(contents(database.session))
        epochs = Epochs(database.source(protocol=protocol, heartbeat_seconds=0.1))
        writers = Writers(database.dsn, campaign.seed)
        for number in range(campaign.size(12, 100)):
            epochs.run(draw.uniform(0.02, 0.4), crash=draw.random() < 0.3)
            if number % 6 == 5:
                server.kill()
                server.restart()
        writers.stop()
        with psycopg.connect(database.dsn, autocommit=True) as session:
            expected = contents(session)
            ((now,),) = session.execute(
                "select (extract(epoch from clock_timestamp()) * 1e9)::bigint"
            ).fetchall()
        epochs.run_until(now)
        assert_in_order_of_the_log(epochs.committed)
        replay.apply(epochs.committed)
        assert replay.tables == expected
        assert sum(row["balance"] for row in expected["accounts"].values()) == 0
        assert epochs.crashes
        assert writers.transactions > 50
        campaign.record(
            f"postgres-replay-{protocol}-{version}",
            transactions=writers.transactions,
            records=len(epochs.committed),
            crashes=epochs.crashes,
        )


def assert_in_order_of_the_log(records):
    places = [(record.transaction.commit_lsn, record.sequence) for record in records]
    assert places == sorted(set(places)), "records come twice or out of order"
    # Each transaction is whole: 1, 2, … up to its last record.
    following = zip(records, [*records[1:], None], strict=True)
    for record, after in following:
        if record.last:
            assert after is None or after.sequence == 1
        else:
            assert after is not None
            assert after.sequence == record.sequence + 1


def test_the_server_may_drop_its_log_only_up_to_a_committed_position(database):
    database.execute("create table t (id int primary key)")
    database.publish()
    slot = f"select confirmed_flush_lsn - '0/0' from pg_replication_slots where slot_name = '{database.slot}'"
    epochs = Epochs(database.source(heartbeat_seconds=0.1))
    ((before,),) = database.rows(slot)
    for number in range(8):
        database.execute(f"insert into t values ({number})")
        ((position, _),) = epochs.residuals
        epochs.run(0.2, crash=number % 2 == 0)
        ((confirmed,),) = database.rows(slot)
        assert before <= confirmed <= position.positions[database.slot].position[0]
    assert [record.new for record in epochs.committed] == [(str(n),) for n in range(8)]
    deadline = time.monotonic() + 20
    while database.rows(slot)[0][0] <= before:
        assert time.monotonic() < deadline, "the slot never moves"
        epochs.run(0.1)


def test_the_slot_of_an_idle_table_advances_beside_a_busy_one(database):
    database.execute("create table quiet (id int primary key)", "create table busy (id int, v text)")
    database.publish("for table quiet")
    epochs = Epochs(database.source(heartbeat_seconds=0.1))
    ((first, _),) = epochs.residuals
    database.execute("insert into busy select i, repeat('x', 100) from generate_series(1, 2000) i")
    now = database.clock()
    epochs.run_until(now)
    ((last, _),) = epochs.residuals
    assert last.positions[database.slot].position[0] > first.positions[database.slot].position[0] + 100_000
    assert epochs.committed == []


def test_another_worker_takes_the_slot_of_a_parked_reader_at_once(database):
    database.execute("create table t (id int primary key)")
    database.publish()
    source = database.source(idle_stream_seconds=600)
    fn = source.bounded_fn(source._settings)
    frontier = fn.initial_restriction(source.stream)
    # The pools of two worker processes. The first one keeps its connection, and could keep it for ten minutes.
    pools = [fn.open_pool(source.stream) for _ in range(2)]
    database.execute("insert into t values (1)")
    for pool in (pools[0], pools[1], pools[0]):
        with pool.prefetching(frontier) as prefetcher:
            prefetcher.serve(frontier)
            began, batch = time.monotonic(), None
            while batch is None:
                assert time.monotonic() < began + 20, "the slot is not released"
                batch = prefetcher.take(0.1)
    for pool in pools:
        pool._idle_seconds = 0
        with pool.prefetching(frontier) as prefetcher:
            prefetcher.serve(frontier)
