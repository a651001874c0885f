"""`penstock verify` of a real job, killed while it reads the source within its budget, and continued."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from penstock_emulators.oracle.kill import python
from tests.integration.postgres.conftest import Database
from tests.integration.verify import test_postgres as planting
from tests.integration.verify.jobs import found, running, verify
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.long(seconds=60)]

OURS = "select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"


def rows_read(folder: Path) -> int:
    """Return how many rows of the table orders the digests have."""
    file = folder / "public.orders.digests" / "progress"
    return int(json.loads(file.read_text())["progress"][2]) if file.exists() else 0


def test_a_comparison_that_is_killed_continues_behind_its_last_chunk(
    database: Database, tmp_path: Path
) -> None:
    job = planting.job_of(planting.filled(database), tmp_path, "delta")
    folder = tmp_path / "checkpoint-verify"
    with running(job):
        code, results, messages = verify(job, "--timeout", "3m")
        assert (code, found(results)) == (0, set()), (results, messages)
        assert not folder.exists()
        planting.plant_in_delta(database, tmp_path)
        before = {pid for (pid,) in database.rows(OURS)}
        command = [*python("penstock.cli.main", "verify", str(job)), "--table", "orders"]
        process = subprocess.Popen([*command, "--rows-per-second", "150"], stderr=subprocess.DEVNULL)
        sessions = set[int]()

        def has_read() -> bool:
            now = {pid for (pid,) in database.rows(OURS)} - before
            assert len(now) <= 1, "the source is read through one connection"
            sessions.update(now)
            return rows_read(folder) >= 450

        try:
            wait_until(has_read)
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        assert sessions
        read = rows_read(folder)
        # Chunks have the rows of a second, and most rows were not read.
        assert read % 150 == 0
        assert read < 3 * planting.ROWS
        code, results, messages = verify(job, "--table", "orders", "--continue", "--show-values")
        (result,) = results
        orders = {each for each in planting.PLANTED if each[0] == "public.orders"}
        assert (code, found(results)) == (1, orders), (results, messages)
        assert (result["rows"], bool(result["continued_since"])) == (3 * planting.ROWS, True)
        assert not folder.exists()
