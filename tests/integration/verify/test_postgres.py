"""`penstock verify` beside a real job and a writer: it finds each planted fault, and no other difference."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException, ValidationException

from penstock.cli.resolve import resolve
from penstock.io.columnar.table_rows import KEY
from penstock.runner import RemoteJob
from penstock.verify.job import prepared
from tests.integration.postgres.conftest import Database
from tests.integration.verify.jobs import found, job_file, running, verify
from tests.support.catalogs import catalog_in
from tests.support.waiting import wait_until
from tests.support.writers import WriterThreads

pytestmark = [pytest.mark.spark, pytest.mark.long(seconds=60)]

ROWS, PLANTED_FROM, CHANGING_FROM = 400, 1_000, 2_000
COLUMNS = (
    "id int primary key, customer text, total numeric(10,2), paid boolean, at timestamptz, tags text[], "
    "more jsonb"
)
ROW = (
    "select n, 'customer ' || n, n + 0.50, n % 2 = 0, timestamptz '2026-01-31' + n * interval '1 s', array['a', null], "
    """jsonb_build_object('n', n, 'zero', 1.0) from generate_series({}, {}) n"""
)


class Writer(WriterThreads):
    """About 200 changes a second of rows that no test plants a fault in. Values come back, and keys too."""

    def __init__(self, database: Database) -> None:
        super().__init__(2, 0.008)
        self._sessions = [psycopg.connect(database.dsn, autocommit=True) for _ in range(2)]

    def write(self, rng: random.Random, seed: int, number: int) -> None:
        id_ = CHANGING_FROM + 2 * rng.randrange(ROWS // 2) + seed
        statement = rng.choice(
            (
                "update orders set paid = not paid where id = %s",
                "update orders set total = 1 where id = %s",
                "delete from orders where id = %s",
                "insert into orders values (%s, 'new', 1, true) on conflict do nothing",
            )
        )
        self._sessions[seed].execute(statement, (id_,))


def filled(database: Database) -> Database:
    database.execute(
        f"create table orders ({COLUMNS})", "create table lines (id int, sku text, primary key (sku, id))"
    )
    for first in (1, PLANTED_FROM, CHANGING_FROM):
        database.execute(f"insert into orders {ROW.format(first, first + ROWS - 1)}")
    database.execute("insert into lines select n, 'sku' || n from generate_series(1, 50) n")
    database.execute("create table empty (id int primary key)")
    database.publish("for table orders, lines, empty")
    return database


def job_of(database: Database, folder: Path, sink: str) -> Path:
    """Write the job of a sink whose target is empty."""
    source = {"dsn": database.dsn, "publication": database.publication, "slot": database.slot}
    source["signal_folder"] = str(folder / "signals")
    target: dict[str, Any] = {
        "postgresql": {"target_dsn": database.dsn, "target_schema": "replica"},
        "delta": {"uri": f"{folder}/lake/{{table}}"},
        "iceberg": {"target_table": "shop.{table}", "catalog_properties": catalog_in(folder)},
    }[sink]
    return job_file(folder, f"postgres-to-{sink}", **source, **target)


def plant_in_postgres(database: Database, folder: Path) -> None:
    first = PLANTED_FROM
    both = f"{first + 4}, {first + 5}"
    other = f"(select customer from replica.orders other where other.id = {2 * first + 9} - orders.id)"
    database.execute(
        f"delete from replica.orders where id = {first}",
        f"update replica.orders set total = total + 1 where id = {first + 1}",
        f"update replica.orders set more = null where id = {first + 2}",
        f"insert into replica.orders select {first - 1}, customer, total, paid, at, tags, more, _penstock_version, "
        f"false, now() from replica.orders where id = {first + 3}",
        f"update replica.orders set customer = {other} where id in ({both})",
        "insert into replica.lines select 7, 'sku\"8', _penstock_version, false, now() from replica.lines where id = 1",
    )


PLANTED = {
    ("public.orders", f"missing [{PLANTED_FROM}]", ()),
    ("public.orders", f"different [{PLANTED_FROM + 1}]", ("total",)),
    ("public.orders", f"different [{PLANTED_FROM + 2}]", ("more",)),
    ("public.orders", f"extra [{PLANTED_FROM - 1}]", ()),
    ("public.orders", f"different [{PLANTED_FROM + 4}]", ("customer",)),
    ("public.orders", f"different [{PLANTED_FROM + 5}]", ("customer",)),
    ("public.lines", 'extra ["sku\\"8",7]', ()),
}


def planted(orders: pa.Table) -> pa.Table:
    """Return the rows of the table orders with the faults."""
    rows = {row["id"]: row for row in orders.to_pylist()}
    first = PLANTED_FROM
    del rows[first]
    rows[first + 1]["total"] += 1
    rows[first + 2]["more"] = None
    rows[first - 1] = {**rows[first + 3], "id": first - 1, KEY: f"[{first - 1}]"}
    one, other = rows[first + 4], rows[first + 5]
    one["customer"], other["customer"] = other["customer"], one["customer"]
    # No row stands twice: a repeated one has a test of its own.
    return pa.Table.from_pylist(list(rows.values()), schema=orders.schema)


def plant(
    open_: Callable[[str], Any], read: Callable[[Any], pa.Table], write: Callable[[Any, pa.Table], None]
) -> None:
    """Replace the content of two tables. Repeated while the job commits at the same time."""
    for name, change in (("orders", planted), ("lines", with_extra_line)):
        wait_until(lambda name=name, change=change: _replaced(open_(name), read, change, write))


def with_extra_line(lines: pa.Table) -> pa.Table:
    (row,) = [row for row in lines.to_pylist() if row["id"] == 1]
    row |= {"id": 7, "sku": 'sku"8', KEY: '["sku\\"8",7]'}
    return pa.concat_tables([lines, pa.Table.from_pylist([row], schema=lines.schema)])


def _replaced(table: Any, read: Any, change: Any, write: Any) -> bool:
    try:
        write(table, change(read(table)))
    except (CommitFailedError, CommitFailedException, ValidationException):
        return False
    return True


def plant_in_delta(database: Database, folder: Path) -> None:
    properties = CommitProperties(max_commit_retries=0)
    plant(
        lambda name: DeltaTable(f"{folder}/lake/{name}"),
        lambda table: table.to_pyarrow_table(),
        lambda table, rows: write_deltalake(table, rows, mode="overwrite", commit_properties=properties),
    )


def plant_in_iceberg(database: Database, folder: Path) -> None:
    catalog = catalog_in(folder)
    plant(
        lambda name: load_catalog("default", **catalog).load_table(f"shop.{name}"),
        lambda table: table.scan().to_arrow(),
        lambda table, rows: table.overwrite(rows),
    )


def newest_truncate(job: Path) -> int | None:
    """Return which TRUNCATE of the table lines the comparison sees in the target."""
    configuration = resolve(str(job), [], {}, {})
    template, parameters = configuration.template, configuration.parameters
    name = RemoteJob.open(str(job.parent / "checkpoint")).name
    with ExitStack() as stack:
        (table,) = prepared(template.source, template.sink, parameters, name, ["lines"], stack).tables
        table.target.open(table.schema)
        return table.target.look({}).truncated


PLANT = {"postgresql": plant_in_postgres, "delta": plant_in_delta, "iceberg": plant_in_iceberg}


# What is said of tables in Delta, test_spanner.py shows in each run.
@pytest.mark.parametrize(
    "sink", ["postgresql", *(pytest.param(each, marks=pytest.mark.campaign) for each in ("delta", "iceberg"))]
)
def test_planted_faults_are_found_and_none_is_invented_while_rows_change(
    sink: str, database: Database, tmp_path: Path
) -> None:
    filled(database).execute("create schema replica")
    job = job_of(database, tmp_path, sink)
    with running(job):
        with Writer(database):
            code, results, messages = verify(job, "--timeout", "3m")
            assert (code, found(results)) == (0, set()), (results, messages)
        # Between the commits of a job that is busy another writer of its tables hardly comes through.
        PLANT[sink](database, tmp_path)
        with Writer(database):
            code, results, messages = verify(job, "--show-values")
            assert (code, found(results)) == (1, PLANTED), (results, messages)
            extra = {each for each in PLANTED if each[1].startswith("extra")}
            code, results, messages = verify(job, "--show-values", "--repair")
            assert (code, found(results)) == (1, PLANTED), (results, messages)
            assert found(results, "repaired") == PLANTED - extra, (results, messages)
            assert found(results, "not_repaired") == extra, (results, messages)
            database.execute("truncate lines", "insert into lines values (1, 'new')")
            code, results, messages = verify(job, "--table", "lines")
            assert (code, results[0]["rows"]) == (0, 1), (results, messages)
            assert newest_truncate(job)
