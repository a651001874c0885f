"""`spanner-to-files` over Google's emulator under churn: every column type and capture type, both dialects.

A campaign reads 20,000 mods of four writers in each case, on each kind of runner. `make test` reads a few on Beam's own
runner. On Spark the watermark of each checkpoint is compared with the files; Beam's own runner has no checkpoints.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from penstock.compat import UTC
from penstock.pipelines.spanner_to_files import spanner_to_files
from penstock_emulators.oracle.change import Change, changes_of
from penstock_emulators.oracle.kill import Run, python
from penstock_emulators.oracle.lines import read_lines
from penstock_emulators.oracle.replay import differences, read_table, replay
from penstock_emulators.oracle.rules import broken_rules
from tests.conftest import CAMPAIGN
from tests.integration.formats.database import COLUMNS, value_of
from tests.integration.spanner.conftest import GOOGLESQL, INSTANCE, POSTGRESQL, PROJECT, nanoseconds_of
from tests.support.oracle.watermarks import broken_watermarks, staged_files
from tests.support.watermark_observer import WatermarkObserver
from tests.support.writers import WriterThreads

pytestmark = [pytest.mark.emulator, pytest.mark.spark, pytest.mark.slow]

TABLES = ("Things", "Others")
PG_TYPES = {
    "STRING(MAX)": "varchar",
    "INT64": "bigint",
    "NUMERIC": "numeric",
    "FLOAT64": "double precision",
    "BOOL": "boolean",
    "BYTES(MAX)": "bytea",
    "DATE": "date",
    "TIMESTAMP": "timestamptz",
    "JSON": "jsonb",
    "ARRAY<STRING(MAX)>": "varchar[]",
    "ARRAY<INT64>": "bigint[]",
}
TYPES = {"Id": "INT64", **{name: kind.replace("(MAX)", "") for name, kind in COLUMNS.items()}}
DIRECT, LOCAL, CLUSTER = "beam", "local[2,4]", "local-cluster[2,1,1024]"
SMALL = (DIRECT, GOOGLESQL, "OLD_AND_NEW_VALUES")
FULL = [
    SMALL,
    (DIRECT, POSTGRESQL, "NEW_ROW"),
    (LOCAL, GOOGLESQL, "NEW_ROW_AND_OLD_VALUES"),
    (LOCAL, POSTGRESQL, "NEW_VALUES"),
    (CLUSTER, GOOGLESQL, "NEW_VALUES"),
    (CLUSTER, POSTGRESQL, "NEW_ROW_AND_OLD_VALUES"),
]
"""Runner, dialect and capture type. Together they have each capture type, and each dialect on each runner."""


def ddl(dialect: str, capture: str) -> list[str]:
    if dialect == POSTGRESQL:
        columns = ", ".join(f'"{name}" {PG_TYPES[kind]}' for name, kind in COLUMNS.items())
        tables = [f'CREATE TABLE "{t}" ("Id" bigint NOT NULL PRIMARY KEY, {columns})' for t in TABLES]
        return [*tables, f"CREATE CHANGE STREAM \"Changes\" FOR ALL WITH (value_capture_type = '{capture}')"]
    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    tables = [f"CREATE TABLE {t} (Id INT64 NOT NULL, {columns}) PRIMARY KEY (Id)" for t in TABLES]
    return [*tables, f"CREATE CHANGE STREAM Changes FOR ALL OPTIONS (value_capture_type = '{capture}')"]


class TypedWriters(WriterThreads):
    """Threads that insert, update and delete rows with every column type. `commits` are those that wrote a row."""

    def __init__(self, database: Any, threads: int, pause: float) -> None:
        super().__init__(threads, pause)
        self.commits: list[int] = []
        self.mods = 0
        self._client = database.client

    def write(self, rng: random.Random, seed: int, number: int) -> None:
        from google.api_core.exceptions import Aborted
        from google.cloud.spanner import KeySet

        wrote = 0
        try:
            with self._client.batch() as batch:
                for table in rng.sample(TABLES, rng.choice((1, 2))):
                    for key in rng.sample(range(400), rng.choice((1, 3, 20))):
                        if rng.random() < 0.15:
                            batch.delete(table, KeySet(keys=[[key]]))
                            continue
                        names = rng.sample(sorted(COLUMNS), rng.choice((2, len(COLUMNS))))
                        row = (key, *(value_of(name, rng) for name in names))
                        batch.insert_or_update(table, ("Id", *names), [row])
                        wrote += 1
        except Aborted:  # by the emulator, which runs one transaction at a time; nothing was written
            return
        if wrote:
            with self._lock:
                self.commits.append(nanoseconds_of(batch.committed))
                self.mods += wrote


@pytest.mark.parametrize(("runner", "dialect", "capture"), FULL if CAMPAIGN else [SMALL])
def test_files_replay_to_the_tables_with_every_type_through_churn(
    emulator: Any,
    new_database: Callable[..., Any],
    tmp_path: Path,
    campaign: Any,
    runner: str,
    dialect: str,
    capture: str,
) -> None:
    database = new_database(emulator, ddl(dialect, capture), dialect)
    begun, wanted = time.time(), campaign.size(200, 20_000)
    writers = TypedWriters(database, 4, campaign.size(50, 5) / 1000)
    given = {
        "project": PROJECT,
        "instance": INSTANCE,
        "database": database.name,
        "change_stream": "Changes",
        "output": str(tmp_path / "out"),
        "start": rfc3339(begun),
    }
    if runner == DIRECT:
        with writers:
            wait_for_mods(writers, wanted, lambda: True)
        given["lineage_log"] = str(tmp_path / "lineage")
        announced = read_bounded(given, end=rfc3339(time.time() + 0.5))
        assert events_in(tmp_path / "lineage").count("announced") >= announced
    else:
        options = ["--checkpoint-dir", str(tmp_path / "checkpoint"), "--master", runner]
        given |= {"lineage_log": str(tmp_path / "lineage"), "roll_seconds": "0", "shards": "2"}
        sets = [f"--set={name}={value}" for name, value in given.items()]
        command = python("penstock.cli.main", "run", "spanner-to-files", *sets, *options)
        observer = WatermarkObserver(tmp_path / "checkpoint")
        with observer, Run(command, log=tmp_path / "log", environment=emulator.environment()) as run:
            with writers:
                wait_for_mods(writers, wanted, run.alive)
            wait_for_commits(tmp_path / "out", writers.commits, run.alive)
        announced = events_in(tmp_path / "lineage").count("announced")
        assert len(observer.reports) > 10
        assert broken_watermarks(observer.reports, staged_files(tmp_path / "out")) == []
    found = changes_in(tmp_path / "out")
    check(database, found, writers.commits)
    assert announced >= campaign.size(2, 15)
    name = f"spanner-full-churn-{runner.partition('[')[0]}-{dialect.partition('_')[0].lower()}"
    campaign.record(
        name,
        capture_type=capture,
        mods=len(found),
        transactions=len(writers.commits),
        partitions_announced=announced,
        column_types=sorted(set(COLUMNS.values())),
    )


def check(database: Any, found: list[Change], commits: list[int]) -> None:
    lost = set(commits) - {change.version[0] for change in found}
    assert not lost, f"{len(lost)} of {len(commits)} transactions are not in the files"
    assert broken_rules(found) == []
    tables = {table: read_table(database.client, table, TYPES, ("Id",)) for table in TABLES}
    assert differences(replay(found), tables, dict.fromkeys(TABLES, TYPES)) == []


def changes_in(folder: Path) -> list[Change]:
    return list(changes_of(read_lines(folder)))


def events_in(folder: Path) -> list[str]:
    return [line.content["event"] for line in read_lines(folder)]


def read_bounded(given: dict[str, str], end: str) -> int:
    """Run the pipeline to its end on Beam's own runner; return how many partitions were announced."""
    pipeline = beam.Pipeline(FnApiRunner())
    spanner_to_files(pipeline, **given, end=end)
    result = pipeline.run()
    result.wait_until_finish()
    counters = result.metrics().query()["counters"]
    return sum(each.committed for each in counters if each.key.metric.name == "partitions_announced")


def wait_for_mods(writers: TypedWriters, wanted: int, alive: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 1200
    while writers.mods < wanted:
        assert alive(), "the pipeline has ended"
        assert not writers.errors, writers.errors[0]
        assert time.monotonic() < deadline, f"{writers.mods} mods were written"
        time.sleep(0.2)


def wait_for_commits(folder: Path, commits: list[int], alive: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 600
    while missing := set(commits) - {change.version[0] for change in changes_in(folder)}:
        assert alive(), "the pipeline has ended"
        assert time.monotonic() < deadline, f"{len(missing)} transactions are not in the files"
        time.sleep(2)


def rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
