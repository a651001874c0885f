"""`penstock verify` with a Spanner source, beside a real job and a writer."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from deltalake import DeltaTable

from penstock_emulators.simulated_spanner import SimulatedSpanner
from tests.integration.postgres.conftest import Database
from tests.integration.verify.jobs import found, job_file, running, verify
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow(seconds=60)]

NAMES = ("my-project", "main", "shop")
DDL = [
    "CREATE TABLE Orders (Shop STRING(MAX) NOT NULL, Id INT64 NOT NULL, Total NUMERIC, At TIMESTAMP, Tags "
    "ARRAY<STRING(MAX)>, More JSON) PRIMARY KEY (Id, Shop)",
    "CREATE TABLE Empty (Code BYTES(MAX) NOT NULL) PRIMARY KEY (Code)",
    "CREATE CHANGE STREAM All FOR ALL OPTIONS (value_capture_type = 'NEW_ROW')",
]
COLUMNS = ("Shop", "Id", "Total", "At", "Tags", "More")
ROWS, STEADY = 2_000, 40
"""Rows, and how many of them are not changed while the tables are compared."""


@pytest.fixture
def spanner(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A simulated service, and a client of its database with rows."""
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import spanner

    with SimulatedSpanner.start(churn_seconds=2, seed=1) as service:
        service.create_database(*NAMES, DDL)
        for name, value in service.environment().items():
            monkeypatch.setenv(name, value)
        client = spanner.Client(NAMES[0], credentials=AnonymousCredentials(), disable_builtin_metrics=True)
        database = client.instance(NAMES[1]).database(NAMES[2])
        rows = [("a", n, None, "2026-01-31T12:00:00.000001Z", ["x", None], '{"n": 1}') for n in range(ROWS)]
        with database.batch() as batch:
            batch.insert("Orders", COLUMNS, rows)
        yield database


@contextmanager
def writing(database: Any, *, hot: bool = False) -> Iterator[None]:
    """Make about 200 changes a second of rows that have no fault, until the end of the block.

    `hot`: the last row gets another value each time.
    """
    stop, rng = threading.Event(), random.Random(7)

    def write() -> None:
        from google.cloud.spanner import KeySet

        while not stop.wait(0.05):
            keys = {rng.randrange(STEADY, ROWS - 1) for _ in range(10)}
            with database.batch() as batch:
                if hot:
                    more = f'{{"n": {rng.randrange(10**9)}}}'
                    batch.insert_or_update("Orders", ("Shop", "Id", "More"), [("a", ROWS - 1, more)])
                if rng.random() < 0.3:
                    batch.delete("Orders", KeySet([(key, "a") for key in keys]))
                else:
                    # Rows come back to values that they had.
                    tags = rng.choice((None, ["x", None]))
                    batch.insert_or_update(
                        "Orders", ("Shop", "Id", "Tags"), [("a", key, tags) for key in keys]
                    )

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)


@pytest.mark.long(seconds=35)
def test_planted_faults_in_delta_are_found_and_none_is_invented(spanner: Any, tmp_path: Path) -> None:
    parameters = dict(zip(("project", "instance", "database"), NAMES, strict=True)) | {"change_stream": "All"}
    parameters |= {"uri": f"{tmp_path}/lake/{{table}}", "signal_folder": str(tmp_path / "signals")}
    job = job_file(tmp_path, "spanner-to-delta", **parameters)
    with running(job), writing(spanner):
        code, results, messages = verify(job, "--timeout", "3m")
        assert (code, found(results)) == (0, set()), (results, messages)
        plant(f"{tmp_path}/lake/Orders")
        code, results, messages = verify(job, "--show-values", "--repair", "--timeout", "3m")
    repaired = {("Orders", 'missing ["a",3]', ()), ("Orders", 'different ["a",4]', ("Tags",))}
    extra = {("Orders", 'extra ["b",5]', ())}
    assert (code, found(results)) == (1, repaired | extra), (results, messages)
    assert (found(results, "repaired"), found(results, "not_repaired")) == (repaired, extra), (
        results,
        messages,
    )


@pytest.mark.campaign
def test_a_row_that_changes_all_the_time_is_known_to_be_equal(spanner: Any, tmp_path: Path) -> None:
    parameters = dict(zip(("project", "instance", "database"), NAMES, strict=True)) | {"change_stream": "All"}
    job = job_file(tmp_path, "spanner-to-delta", **parameters, uri=f"{tmp_path}/lake/{{table}}")
    with running(job), writing(spanner, hot=True):
        code, results, messages = verify(job, "--timeout", "3m")
    assert (code, [each["changing"] for each in results]) == (0, [[], []]), (results, messages)


def plant(uri: str) -> None:
    """Delete, change and copy rows of the target, beside the job."""

    def changed(change: Any) -> bool:
        from deltalake.exceptions import CommitFailedError

        try:
            change(DeltaTable(uri))
        except CommitFailedError:
            return False
        return True

    def copy(table: DeltaTable) -> None:
        from deltalake import write_deltalake

        (row,) = [each for each in table.to_pyarrow_table().to_pylist() if each["Id"] == 5]
        rows = pa.Table.from_pylist(
            [{**row, "Shop": "b", "_penstock_key": '["b",5]'}], pa.schema(table.schema())
        )
        write_deltalake(table, rows, mode="append")

    wait_until(lambda: changed(lambda table: table.delete("Id = 3")))
    wait_until(lambda: changed(lambda table: table.update(predicate="Id = 4", updates={"Tags": "null"})))
    wait_until(lambda: changed(copy))


@pytest.mark.campaign
def test_a_replica_in_postgres_is_equal_while_rows_change(
    spanner: Any, database: Database, tmp_path: Path
) -> None:
    parameters = dict(zip(("project", "instance", "database"), NAMES, strict=True)) | {"change_stream": "All"}
    job = job_file(tmp_path, "spanner-to-postgresql", **parameters, target_dsn=database.dsn)
    with running(job), writing(spanner):
        code, results, messages = verify(job, "--timeout", "3m")
        assert (code, found(results)) == (0, set()), (results, messages)
        database.execute(
            'update "Orders" set "At" = now() where "Id" = 7', 'delete from "Orders" where "Id" = 8'
        )
        code, results, messages = verify(job, "--show-values")
    assert (code, found(results)) == (
        1,
        {("Orders", 'different ["a",7]', ("At",)), ("Orders", 'missing ["a",8]', ())},
    ), (results, messages)


def plant_in_parquet(folder: Path) -> None:
    (file,) = [
        each
        for each in folder.rglob("*.parquet")
        if any(row["Id"] == 3 for row in parquet.read_table(each, partitioning=None)["key"].to_pylist())
    ]
    rows = parquet.read_table(file, partitioning=None)
    kept = [row for row in rows.to_pylist() if row["key"]["Id"] != 3]
    parquet.write_table(pa.Table.from_pylist(kept, rows.schema), file)


def plant_in_lines(folder: Path) -> None:
    for file in folder.rglob("*.jsonl"):
        lines = file.read_text().splitlines(keepends=True)
        file.write_text("".join(line for line in lines if json.loads(line)["keys"]["Id"] != "3"))


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("sink", "plant_in_files"),
    [("parquet", plant_in_parquet), ("files", plant_in_lines)],
    ids=["parquet", "native"],
)
def test_replayed_files_are_equal_while_rows_change(
    sink: str, plant_in_files: Callable[[Path], None], spanner: Any, tmp_path: Path
) -> None:
    parameters = dict(zip(("project", "instance", "database"), NAMES, strict=True)) | {"change_stream": "All"}
    job = job_file(tmp_path, f"spanner-to-{sink}", **parameters, output=str(tmp_path / "lake"))
    with running(job), writing(spanner):
        code, results, messages = verify(job, "--timeout", "3m")
        assert (code, found(results)) == (0, set()), (results, messages)
        plant_in_files(tmp_path / "lake" / "Orders")
        code, results, messages = verify(job, "--show-values", "--timeout", "3m")
    assert (code, found(results)) == (1, {("Orders", 'missing ["a",3]', ())}), (results, messages)
