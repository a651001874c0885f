"""A server whose transaction ids need more than 32 bits: its log has them without the epoch, snapshots with it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock_emulators.postgres import PostgresServer, _as_ordinary_user, find_programs
from tests.integration.postgres.conftest import VERSIONS, Database
from tests.integration.postgres.snapshot_readers import Snapshots, contents, fill, signal

pytestmark = [pytest.mark.slow, pytest.mark.campaign]

EPOCH = 3


@pytest.fixture(params=VERSIONS, ids=lambda version: f"postgres-{version}")
def old_database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A database of a server with the epoch 3."""
    with PostgresServer.start(tmp_path / "data", version=request.param) as server:
        server.stop()
        program = find_programs(request.param) / "pg_resetwal"
        command = [program, "-D", tmp_path / "data", "-e", EPOCH]
        subprocess.run(_as_ordinary_user(command), check=True, capture_output=True, timeout=120)
        server.restart()
        database = fill(Database(server))
        yield database
        database.drop()


@pytest.mark.parametrize("snapshot", ["never", "initial"])
def test_rows_and_changes_are_in_order_when_transaction_ids_have_an_epoch(old_database, snapshot):
    reader = Snapshots(old_database, chunk_rows=3, snapshot=snapshot)
    if snapshot == "never":
        signal(old_database, data_collections=["public.t"])
    for number in range(6):
        old_database.execute(
            f"update t set v = 'new{number}' where id % 6 = {number}",
            f"delete from t where id = {4 * number + 1}",
            f"update t set id = id + 200 where id = {4 * number + 2}",
        )
        reader.epochs.run(0.06, crash=number % 2 == 1)
    reader.run_to_now()
    assert reader.replayed("t") == contents(old_database, "t")
    old_database.execute("insert into t values (1000, 'last')")
    reader.run_to_now()
    assert reader.records[-1].transaction.id >> 32 == EPOCH
