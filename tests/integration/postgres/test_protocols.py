"""Every version of the pgoutput protocol gives the same records: streamed, prepared and binary ones too."""

from __future__ import annotations

import psycopg
import pytest

from tests.support.epochs import Epochs

pytestmark = pytest.mark.slow

MODES = {"version 1": "off", "version 2": "on", "version 4": "parallel"}
LARGE = "insert into t select i, repeat('x', 100) from generate_series({}, {}) i"


def slots(database):
    """Create the publication and two slots for each mode: one of them sends prepared transactions early."""
    names = {}
    database.execute(f"create publication {database.publication} for all tables")
    # A small memory makes the server stream transactions that are larger.
    database.execute(f"alter database {database.name} set logical_decoding_work_mem = '64kB'")
    for number, mode in enumerate(MODES.values()):
        for two_phase in (False, True):
            names[mode, two_phase] = name = f"{database.slot}_{number}_{int(two_phase)}"
            create = "select pg_create_logical_replication_slot(%s, 'pgoutput', false, %s)"
            database.session.execute(create, (name, two_phase))
    return names


def write(database):
    """Run large and small transactions side by side, with savepoints, rollbacks and two-phase commits."""
    with psycopg.connect(database.dsn) as large, psycopg.connect(database.dsn, autocommit=True) as small:
        large.execute(LARGE.format(1, 2000))
        small.execute("insert into t values (-1, 'while the large one runs')")
        large.execute("savepoint s")
        large.execute(LARGE.format(2001, 4000))
        large.execute("rollback to s")
        large.execute("alter table t add column w int default 7")
        large.execute("savepoint s")
        large.execute("insert into t select i, 'y', i from generate_series(4001, 6000) i")
        large.commit()
        large.execute(LARGE.format(6001, 8000))
        large.rollback()
        for name, first in (("kept", 10_001), ("dropped", 20_001)):
            large.execute(LARGE.format(first, first + 2000))
            large.execute(f"prepare transaction '{name}'")
            large.commit()
            large.execute(LARGE.format(first + 5000, first + 5001))
            large.execute(f"prepare transaction 'small {name}'")
            large.commit()
        small.execute("insert into t values (-2, 'between prepare and commit')")
        for name in ("dropped", "small dropped"):
            small.execute(f"rollback prepared '{name}'")
        for name in ("small kept", "kept"):
            small.execute(f"commit prepared '{name}'")
        small.execute("insert into t values (-3, 'last')")


def test_every_version_of_the_protocol_gives_the_same_committed_records(database):
    database.execute("create table t (id int primary key, v text)")
    names = slots(database)
    write(database)
    found = {
        key: database.read(slot=name, streaming=key[0])
        for key, name in names.items()
        if key[0] != "parallel" or database.session.info.server_version >= 160_000
    }
    expected = found["off", False]
    ids = [int(record.new[0]) for record in expected]
    assert ids == [
        -1,
        *range(1, 2001),
        *range(4001, 6001),
        -2,
        15_001,
        15_002,
        *range(10_001, 12_002),
        -3,
    ]
    for key, records in found.items():
        assert records == expected, key
    streamed = database.rows(
        "select slot_name, stream_txns from pg_stat_replication_slots where stream_txns > 0"
    )
    assert {name for name, _ in streamed} >= {names[key] for key in found if key[0] != "off"}


@pytest.mark.parametrize("protocol", ["stream", "pull"])
def test_prepared_changes_survive_a_restart_between_prepare_and_commit(database, protocol):
    database.execute("create table t (id int primary key)")
    database.execute(f"create publication {database.publication} for all tables")
    database.execute(f"select pg_create_logical_replication_slot('{database.slot}', 'pgoutput', false, true)")
    options = {"protocol": protocol, "heartbeat_seconds": 0.1, "idle_stream_seconds": 0}
    epochs = Epochs(database.source(**options))
    database.execute(
        "insert into t values (1)",
        "begin; insert into t values (2); prepare transaction 'two'",
        "insert into t values (3)",
    )
    epochs.run_until(database.clock())
    for number in range(4, 8):  # the checkpoint and the acknowledgement move on
        database.execute(f"insert into t values ({number})")
        epochs.run(0.3, crash=number % 2 == 0)
    database.execute("commit prepared 'two'", "insert into t values (8)")
    epochs.run_until(database.clock())
    assert [int(record.new[0]) for record in epochs.committed] == [1, 3, 4, 5, 6, 7, 2, 8]
