"""Snapshots that are merged with a stream, over random histories with crashes, against the table itself."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from penstock.io.change_streams.incremental import engine
from penstock.io.change_streams.incremental.progress import SnapshotProgress
from tests.property.change_streams.database import Change, Database
from tests.property.change_streams.merging import (
    Read,
    Reader,
    assert_rows_follow_only_what_they_see,
    replayed,
)

KINDS = ("insert", "insert", "update", "touch", "touch", "delete", "move", "truncate")
WEIGHTS = (3, 3, 3, 3, 3, 2, 2, 1)


def write(database: Database, draw: random.Random) -> None:
    """Do one of the things that writers do next."""
    action = draw.random()
    if not database.open or (action < 0.2 and len(database.open) < 4):
        database.begin()
        return
    transaction = draw.choice(database.open)
    if transaction.committed:
        database.show(transaction)
    elif action < 0.7:
        kind = draw.choices(KINDS, WEIGHTS)[0]
        database.write(transaction, kind, draw.randrange(12), draw.randrange(12))
    elif action < 0.95:
        database.commit(transaction)
    else:
        database.roll_back(transaction)


def run_history(seed: int, *, surrogate_key: bool) -> Reader:
    """Run writers and a reader that crashes; both come to an end."""
    draw = random.Random(seed)
    rows = {key: (key, f"first{key}") for key in draw.sample(range(12), draw.randrange(12))}
    database = Database(rows)
    reader = Reader(database, chunk_rows=draw.choice((1, 2, 3, 5, 20)), surrogate_key=surrogate_key)
    pace = draw.uniform(0.2, 0.8)
    for _ in range(draw.randrange(40, 220)):
        if draw.random() < pace:
            write(database, draw)
        else:
            reader.step(draw)
        if draw.random() < 0.02:
            reader.crash()
    while database.open:
        transaction = database.open[0]
        database.commit(transaction)
        database.show(transaction)
    for _ in range(10_000):
        reader.step(draw)
        if reader.engine.is_idle and reader.position == len(database.log):
            return reader
    raise AssertionError("the snapshot does not end")


def test_replaying_a_merged_snapshot_gives_the_table_through_crashes(campaign):
    counts = Counter()

    @settings(max_examples=campaign.size(200, 2_000), database=None)
    @seeded(campaign.seed)
    @given(st.integers(0, 2**32), st.booleans())
    def gives_the_table(seed, surrogate_key):
        reader = run_history(seed, surrogate_key=surrogate_key)
        assert replayed(reader.output) == reader.database.rows
        assert_rows_follow_only_what_they_see(reader.output)
        changes = [item for item in reader.output if isinstance(item, Change)]
        assert changes == reader.database.log, "the changes of the stream are not whole and in their order"
        counts.update(histories=1, crashes=reader.crashes, changes=len(changes))
        counts.update(rows=len(reader.output) - len(changes))

    gives_the_table()
    campaign.record("snapshot-histories-postgres", **counts)


def test_a_table_that_is_read_again_for_its_moved_rows_is_whole(monkeypatch):
    again = []
    restarted = SnapshotProgress.restarted
    monkeypatch.setattr(engine, "MAX_REPAIRS", 1)
    monkeypatch.setattr(
        SnapshotProgress, "restarted", lambda self, table: again.append(table) or restarted(self, table)
    )
    for seed in range(100):
        reader = run_history(seed, surrogate_key=bool(seed % 2))
        assert replayed(reader.output) == reader.database.rows, seed
        assert_rows_follow_only_what_they_see(reader.output)
    assert len(again) > 5


def test_the_histories_reach_every_rule():
    readers = [run_history(seed, surrogate_key=False) for seed in range(60)]
    reads = [item for reader in readers for item in reader.output if isinstance(item, Read)]
    changes = [item for reader in readers for item in reader.output if isinstance(item, Change)]
    assert len(reads) > 200
    assert sum(not change.whole for change in changes) > 50
    assert sum(change.key is None for change in changes) > 5
