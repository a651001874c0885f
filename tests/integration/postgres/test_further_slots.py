"""Several slots of one database, read as partitions of one read, in parallel and over crashes."""

from __future__ import annotations

import pytest

from penstock.errors import PositionLostError, SetupError
from penstock.io.postgres import parse_lsn
from penstock.io.postgres.position import Position
from penstock.io.postgres.record import ChangeKind
from tests.support.epochs import Epochs
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


def divide(database, tables):
    """Create a table, a publication and a slot for each name; return the arguments of the source."""
    for name in tables:
        database.execute(
            f"create table {name} (id int primary key)",
            f"create publication of_{name} for table {name}",
            f"select pg_create_logical_replication_slot('{database.slot}_{name}', 'pgoutput')",
        )
    first, *others = tables
    return {
        "publication": f"of_{first}",
        "slot": f"{database.slot}_{first}",
        "further_slots": {f"{database.slot}_{name}": f"of_{name}" for name in others},
        "heartbeat_seconds": 0.1,
    }


def confirmed(database):
    found = database.rows("select slot_name, confirmed_flush_lsn::text from pg_replication_slots")
    return {name: parse_lsn(lsn) for name, lsn in found if name.startswith(database.slot)}


def test_slots_are_partitions_of_one_read_and_each_is_acknowledged_behind_its_checkpoint(database):
    epochs = Epochs(database.source(**divide(database, "abc")), parts=2)
    before = confirmed(database)
    for number in range(8):
        # One transaction changes tables of all slots.
        database.execute(f"begin; insert into a values ({number}); insert into b values ({number}); commit")
        database.execute(f"insert into c values ({number})")
        epochs.run(0.3, crash=number % 3 == 1)
        committed = {
            slot: at.position[0] for part, _ in epochs.residuals for slot, at in part.positions.items()
        }
        acknowledged = confirmed(database)
        assert all(acknowledged[slot] <= lsn for slot, lsn in committed.items()), (
            "the server may drop too much"
        )
    assert epochs.widest == 2
    epochs.run_until(database.clock())
    for name in "abc":
        ids = [int(record.new[0]) for record in epochs.committed if record.table.name == name]
        assert ids == list(range(8)), name
    epochs.run(0.3)
    assert all(lsn > before[slot] for slot, lsn in confirmed(database).items())


@pytest.mark.parametrize("idle_stream_seconds", [3, 0.05])
def test_an_initial_snapshot_of_several_slots_reads_the_tables_of_each_before_their_changes(
    database, idle_stream_seconds
):
    """`idle_stream_seconds`: with less than an epoch takes, other readers continue in many epochs."""
    options = divide(database, "ab")
    for name in "ab":
        # The log of each slot has these inserts. The rows contain them, so they are not emitted.
        database.execute(
            f"alter table {name} add n int not null default 0",
            f"insert into {name} select generate_series(1, 20)",
        )
    reading = database.source(
        **options, snapshot="initial", chunk_rows=2, idle_stream_seconds=idle_stream_seconds
    )
    epochs = Epochs(reading, parts=2)

    def positions():
        # While rows are read, one part has the log of all slots.
        logs = [getattr(part, "stream", part) for part, _ in epochs.residuals]
        return [at.position for log in logs if log is not None for at in log.positions.values()]

    # The snapshots are in a checkpoint first. Then rows change that are read already, and others.
    while any(Position(*position).initial is None for position in positions()):
        epochs.run(0.1, steps=1)
    number = 0
    while any(position[4].snapshots for position in positions()):
        epochs.run(0.1, steps=1, crash=number in (1, 4))
        changes = (f"update {name} set n = n + 1 where id % 5 = {number % 5}" for name in "ab")
        database.execute(f"begin; {'; '.join(changes)}; commit")
        number += 1
        assert number < 100, "the snapshots do not end"
    assert number > 2, "nothing changed while rows were read"
    epochs.run_until(database.clock())
    assert epochs.widest == 2
    seen = {}
    for record in epochs.committed:
        key, n = (record.table.name, int(record.new[0])), int(record.new[1])
        assert record.kind is (ChangeKind.UPDATE if key in seen else ChangeKind.READ), key
        assert n == seen.get(key, -1) + 1, f"the value of {key} before this one is missing"
        seen[key] = n
    for name in "ab":
        assert sorted(database.rows(f"select id, n from {name}")) == sorted(
            (id_, n) for (table, id_), n in seen.items() if table == name
        )
    # Otherwise it holds back the removal of old rows for `HOLD_SECONDS`.
    held = "select from pg_stat_activity where application_name like 'penstock snapshot %' and datname = '{}'"
    wait_until(
        lambda: epochs.run(0.1) is None or not database.rows(held.format(database.name)),
        "the server still holds a snapshot",
    )


def test_check_names_the_slot_that_is_missing_and_the_table_that_two_slots_have(database):
    options = divide(database, "ab")
    database.source(**options).check()
    database.execute("alter publication of_b add table a")
    with pytest.raises(SetupError, match=r"the table a is in publications of the slots .*_a and .*_b"):
        database.source(**options).check()
    database.execute(
        "alter publication of_b drop table a", f"select pg_drop_replication_slot('{database.slot}_b')"
    )
    with pytest.raises(PositionLostError, match="read through slot slot_.*_b: the slot does not exist"):
        database.source(**options).check()


def test_a_partition_and_its_parent_are_one_table_for_two_slots(database):
    options = divide(database, "ab")
    database.execute(
        "create table whole (id int primary key) partition by range (id)",
        "create table part partition of whole for values from (0) to (10)",
        "alter publication of_a add table whole",
        "alter publication of_b add table part",
    )
    with pytest.raises(SetupError, match="the table part is in publications of the slots"):
        database.source(**options).check()
