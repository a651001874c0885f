"""Reads from a standby, and failover slots: two servers, one of which repeats the log of the other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from penstock.errors import SetupError
from penstock.io.postgres import ReadFromPostgresChangeStream
from penstock_emulators.postgres import PostgresServer, installed_servers
from tests.conftest import CAMPAIGN
from tests.integration.postgres.conftest import Database
from tests.support.epochs import Epochs
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.campaign]

VERSIONS = sorted(version for version in installed_servers() if version >= 16)
VERSIONS = VERSIONS if CAMPAIGN else VERSIONS[-1:]


@pytest.fixture(params=VERSIONS, ids=lambda version: f"postgres-{version}")
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[PostgresServer, PostgresServer]]:
    """A primary and a standby of it."""
    with PostgresServer.start(version=request.param) as primary:
        with psycopg.connect(primary.dsn(), autocommit=True) as session:
            session.execute("select pg_create_physical_replication_slot('standby')")
        with PostgresServer.standby_of(primary, tmp_path / "standby", slot="standby") as standby:
            yield primary, standby


def replayed(primary: Database, standby: PostgresServer) -> None:
    """Wait until the standby has repeated the log of the primary."""
    ((end,),) = primary.rows("select pg_current_wal_flush_lsn()::text")
    with psycopg.connect(standby.dsn(), autocommit=True) as session:
        caught_up = "select pg_last_wal_replay_lsn() >= %s::pg_lsn"
        wait_until(lambda: bool(session.execute(caught_up, (end,)).fetchone()[0]), "the standby is behind")


def test_changes_are_read_from_a_standby(pair) -> None:
    primary, standby = pair
    database = Database(primary)
    database.execute(
        "create table t (id int primary key, v text)", "create publication changes for all tables"
    )
    replayed(database, standby)
    with psycopg.connect(standby.dsn(database.name), autocommit=True) as session:
        # A slot on a standby begins at a snapshot of running transactions, which the primary must write into its log.
        create = session.cursor()
        thread = threading.Thread(
            target=create.execute,
            args=(f"select pg_create_logical_replication_slot('{database.slot}', 'pgoutput')",),
            daemon=True,
        )
        thread.start()

        def created() -> bool:
            database.execute("select pg_log_standby_snapshot()")
            return not thread.is_alive()

        wait_until(created, "the standby does not create the slot", every=0.2)
    source = ReadFromPostgresChangeStream(
        dsn=standby.dsn(database.name), publication="changes", slot=database.slot, heartbeat_seconds=0.1
    )
    source.check()
    epochs = Epochs(source)
    for number in range(6):
        database.execute(f"insert into t values ({number}, 'x')")
        epochs.run(0.3, crash=number % 3 == 1)
    database.execute("update t set v = 'y' where id = 0")
    epochs.run_until(database.clock())
    assert [record.new[0] for record in epochs.committed] == [*"012345", "0"]
    database.drop()


def test_a_slot_of_the_primary_continues_on_the_standby_after_a_failover(pair) -> None:
    primary, standby = pair
    database = Database(primary)
    if database.session.info.server_version < 170_000:
        with pytest.raises(psycopg.errors.UndefinedFunction):
            database.execute("select pg_create_logical_replication_slot('s', 'pgoutput', failover => true)")
        database.drop()
        return
    database.execute(
        "create table t (id int primary key)",
        "create publication changes for all tables",
        f"select pg_create_logical_replication_slot('{database.slot}', 'pgoutput', failover => true)",
        "alter system set synchronized_standby_slots = 'standby'",
        "select pg_reload_conf()",
    )
    source = database.source(heartbeat_seconds=0.1, idle_stream_seconds=0)
    assert not [warning for warning in source.setup_warnings() if "failover" in warning]
    epochs = Epochs(source)
    for number in range(3):
        database.execute(f"insert into t values ({number})")
        epochs.run(0.3)
    epochs.run_until(database.clock())
    with psycopg.connect(standby.dsn(database.name), autocommit=True) as session:
        synced = "select from pg_replication_slots where slot_name = %s and synced and not temporary"
        for _ in range(100):
            database.execute("select pg_log_standby_snapshot()")
            epochs.run(0.1)  # acknowledges, so that the copy of the slot can move on
            if session.execute(synced, (database.slot,)).fetchone():
                break
        there = ReadFromPostgresChangeStream(
            dsn=standby.dsn(database.name),
            publication="changes",
            slot=database.slot,
            heartbeat_seconds=0.1,
        )
        with pytest.raises(SetupError, match="copy of the slot of the primary"):
            there.check()
        database.execute("insert into t values (3)")
        replayed(database, standby)
        primary.kill()
        session.execute("select pg_promote()")
        session.execute("insert into t values (4)")
    continued = Epochs(there)
    continued.residuals = epochs.residuals
    ((now,),) = (
        psycopg.connect(standby.dsn(database.name))
        .execute("select (extract(epoch from clock_timestamp()) * 1e9)::bigint")
        .fetchall()
    )
    continued.run_until(now)
    ids = [record.new[0] for record in (*epochs.committed, *continued.committed)]
    assert ids == [*"01234"]
