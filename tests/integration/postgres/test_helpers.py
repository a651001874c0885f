"""A backlog of one slot: the idle task of the other slot formats a part of it, and may die."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest

from penstock.compat import UTC
from penstock_emulators.oracle.kill import Run, python
from penstock_emulators.oracle.lines import read_lines
from penstock_emulators.postgres import PostgresServer
from tests.integration.postgres.conftest import VERSIONS, Database
from tests.integration.postgres.test_kills import kill_python_worker
from tests.support.waiting import RUN_PATIENCE_SECONDS, end_of, wait_for_run, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow(seconds=30)]

ROWS = 200_000
IN_TRANSACTION = 500


def helped_calls(timeline: Path) -> int:
    """Return how many calls helpers have made."""
    if not timeline.exists():
        return 0
    entries = [json.loads(line) for line in timeline.read_text().splitlines() if '"helped"' in line]
    return sum(entry["calls"] for entry in entries)


@pytest.mark.long(seconds=25)
def test_an_idle_task_helps_to_format_and_its_death_changes_nothing(tmp_path: Path) -> None:
    with PostgresServer.start(version=VERSIONS[-1]) as server:
        database = Database(server)
        database.execute("create table t (id int primary key, name text, at timestamptz)")
        database.publish()
        for first in range(1, ROWS, IN_TRANSACTION):
            last = first + IN_TRANSACTION - 1
            database.execute(
                f"insert into t select i, 'name ' || i, now() from generate_series({first}, {last}) i"
            )
        given = {
            "dsn": database.dsn,
            "publication": database.publication,
            "slot": database.slot,
            "output": str(tmp_path / "out"),
            "format": "debezium",
            "end": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        }
        sets = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
        options = ["--checkpoint-dir", str(tmp_path / "checkpoint"), "--master", "local[2,4]"]
        # Short epochs, so that there are several: the first ones do not know yet that the reader is behind.
        command = python(
            "penstock.cli.main", "run", "postgres-to-files", *sets, *options, "--epoch-seconds=0.3"
        )
        timeline, log = tmp_path / "timeline", tmp_path / "log"
        with Run(command, log=log, environment={"PENSTOCK_TIMELINE": str(timeline)}) as run:
            wait_for_run(run, lambda: helped_calls(timeline), "a task has helped", log)
            # The reader or the helper: Spark runs the task again, or another attempt of the epoch reads the same.
            wait_until(lambda: kill_python_worker(tmp_path), "the pipeline has no Python worker")
            assert run.wait(RUN_PATIENCE_SECONDS) == 0, end_of(log)
        assert helped_calls(timeline) > 1
        lines = list(read_lines(tmp_path / "out"))
    assert [line.content["after"]["id"] for line in lines] == list(range(1, ROWS + 1))
