"""Parked tables of PostgreSQL on the real driver, tasks and checkpoint, in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest

from penstock.io.sql import WriteToSql
from penstock.runner.protocol.complete import complete_until_us
from penstock.runner.protocol.errors import EpochFailedError
from tests.integration.postgres.conftest import Database
from tests.simulation.sinks.test_parked_tables_on_the_runner import (
    TABLES,
    Job,
    epochs,
    parked_changes,
    rows,
)


class Postgres:
    """The sink, and tables of which one cannot have texts."""

    def __init__(self, database: Database) -> None:
        self.database = database
        # A text is no array of numbers, and a person makes it a text.
        database.execute("create table bad (k bigint primary key, v bigint[])")

    def write(self, mode: Any, **options: Any) -> beam.PTransform:
        return WriteToSql(self.database.dsn, mode=mode, **options)

    def rows(self, table: str) -> dict[int, str]:
        if not self.database.rows(f"select to_regclass('{table}')")[0][0]:
            return {}
        return {key: str(value) for key, value in self.database.rows(f"select k, v from {table}")}

    def make_text(self, table: str) -> None:
        self.database.execute(f"alter table {table} alter v type text")


@pytest.fixture
def target(database: Database) -> Postgres:
    return Postgres(database)


@pytest.mark.long_cases("1", seconds=5)
@pytest.mark.parametrize("shards", [1, 3])
def test_a_refused_table_is_parked_and_exact_after_its_resume(
    target: Postgres, tmp_path: Path, shards: int
) -> None:
    events = epochs(range(0), 16)
    job = Job(target, events, tmp_path, "current")
    job.run_until_parked(6, shards=shards)
    (parked,) = job.remote.parked()
    assert parked.source == "public.bad"
    assert "bad" in parked.reason
    assert target.rows("bad") == {}
    assert len(target.rows("a")) == len(target.rows("b")) == 5
    target.make_text("bad")
    # A start without a request changes nothing, although the table would take the changes now.
    job.run_until_parked(9, shards=shards)
    assert target.rows("bad") == {}
    job.ask("resume")
    assert job.run(shards=shards).state.done
    assert [target.rows(table) for table in TABLES] == [rows(events, table) for table in TABLES]
    assert not list(tmp_path.rglob("*.parked"))


def test_a_table_is_skipped_and_goes_on(target: Postgres, tmp_path: Path) -> None:
    events = epochs(range(0), 16)
    job = Job(target, events, tmp_path, "log")
    target.database.execute(
        "drop table bad",
        "create table bad (event_id int)",  # no log of the sink
    )
    job.run_until_parked(4)
    target.database.execute("drop table bad")
    job.ask("skip")
    assert job.run().state.done
    written = [each for (each,) in target.database.rows("select event_id from bad order by version")]
    made = [each.id for epoch in events for each in epoch if each.source.table == "bad"]
    assert written == made[4:]


def test_a_program_that_parks_nothing_is_refused_while_a_table_is_parked_and_skips_it_if_told(
    target: Postgres, tmp_path: Path
) -> None:
    job = Job(target, epochs(range(0), 9), tmp_path, "current")
    job.run_until_parked(3)
    with pytest.raises(EpochFailedError, match=r"tables are parked \(public\.bad\).*on_refused_table='park'"):
        job.run(on_refused_table="stop")
    assert parked_changes(job.remote.last()) == 3
    target.make_text("bad")
    job.ask("skip")
    assert job.run(on_refused_table="stop").state.done


def test_the_time_of_the_target_stands_still_while_a_table_is_parked(
    target: Postgres, tmp_path: Path
) -> None:
    job = Job(target, epochs(range(0), 12), tmp_path, "current")
    job.run_until_parked(6, mark_complete=True)
    parked = [record for record in job.records if record.state.parked]
    step = parked[0].state.parked[0].transform
    assert len({complete_until_us(each.state)[step] for each in parked}) == 1
    target.make_text("bad")
    job.ask("resume")
    assert job.run(mark_complete=True).state.done
