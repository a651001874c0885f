"""PostgreSQL into tables of Delta and Iceberg under SIGKILL of every process: log, current rows and history.

Four writers make inserts, updates, deletes, changes of keys, large values that are not sent, TRUNCATE and DDL. At the
end DuckDB and Spark read the tables. Current rows equal the source, the log and the history equal what triggers noted.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from pyiceberg.catalog import load_catalog

from penstock.compat import UTC
from penstock_emulators.oracle.kill import python
from penstock_emulators.postgres import PostgresServer
from tests.integration.postgres.conftest import VERSIONS, Database
from tests.integration.sinks.audited_tables import current_faults, history_faults, log_faults
from tests.integration.sinks.audited_writers import KEYS as TABLES
from tests.integration.sinks.audited_writers import (
    SETTINGS,
    Audit,
    AuditedWriters,
    Key,
    Row,
    create_tables,
    source_rows,
)
from tests.integration.sinks.disturbances import ALL, DRIVER, EXECUTOR, JVM, WORKER, Disturbance, Disturbed
from tests.integration.sinks.lake_program import DELTA, ICEBERG
from tests.support.catalogs import catalog_in
from tests.support.table_readers import READERS, Place, read_tables

pytestmark = [pytest.mark.spark, pytest.mark.slow(seconds=150), pytest.mark.campaign]

KILLS = int(os.environ.get("PENSTOCK_TABLE_KILLS", "30"))


def schedule(rng: random.Random, kills: int, kinds: tuple[str, ...]) -> list[Disturbance]:
    """Return kills of the kinds in turn, most of them while the driver writes the commits of the tables."""
    moments = ("after the commit", "after the commit", "at random")
    return [
        Disturbance(kinds[number % len(kinds)], rng.choice(moments), rng.random() * 1.5)
        for number in range(kills)
    ]


def test_kills_leave_tables_that_equal_the_source_and_its_audit(tmp_path: Path, campaign: Any) -> None:
    rng = campaign.random("table kills")
    hooks, checkpoint, lake = (tmp_path / name for name in ("hooks", "checkpoint", "lake"))
    hooks.mkdir()
    lake.mkdir()
    kinds = (WORKER, JVM, EXECUTOR, ALL, DRIVER) if campaign.full else (WORKER, JVM, ALL, DRIVER)
    with PostgresServer.start(version=VERSIONS[-1], settings=SETTINGS) as server:
        database = Database(server)
        create_tables(database)
        configuration = tmp_path / "configuration.json"
        given = {
            "checkpoint": str(checkpoint),
            "master": "local-cluster[1,2,1024]" if campaign.full else "local[2,4]",
            "lake": str(lake),
            "source": {"dsn": database.dsn, "publication": database.publication, "slot": database.slot},
        }
        configuration.write_text(json.dumps(given))
        writers = AuditedWriters(database.dsn, campaign.seed, pause=0.25)
        command = python("tests.integration.sinks.lake_program", str(configuration))
        with Disturbed(command, checkpoint, hooks, tmp_path, (), rng) as run:
            for each in schedule(rng, campaign.size(4, KILLS), kinds):
                run.perform(each)
            writers.stop()
            run.drain_at(datetime.fromtimestamp(database.clock() / 1e9, UTC))
        audits = {table: Audit.read(database.dsn, table) for table in TABLES}
        source = {table: source_rows(database.dsn, table) for table in TABLES}
    places = dict(places_of(lake))
    faults = [*unnamed_files(lake)]
    for reader in READERS:
        rows = read_tables(reader, places, tmp_path)
        for name in places:
            _, mode, table = name.split()
            found = faults_of(mode, audits[table], source[table], rows[name])
            faults += [f"{name}, read by {reader}: {each}" for each in found]
    assert not faults, "\n".join(faults)
    truncates = sum(each.kind == "TRUNCATE" for each in audits["notes"].changes)
    columns = {name for each in audits["notes"].changes for name in each.new or ()}
    assert truncates, "no writer has emptied the table"
    assert len(columns) > 3, "no writer has added a column"
    campaign.record(
        "table-kills",
        **{kind: run.done[kind] for kind in kinds},
        kills=sum(run.done.values()),
        processes=run.processes,
        transactions=writers.transactions,
        changes=sum(len(each.changes) for each in audits.values()),
        truncates=truncates,
        columns=len(columns),
        tables=len(places),
    )


def places_of(lake: Path) -> Iterator[tuple[str, Place]]:
    """Return the tables by format, mode and name in the source."""
    for mode in DELTA:
        for table in TABLES:
            yield f"delta {mode} {table}", ("delta", str(lake / "delta" / mode / table))
    catalog = load_catalog("default", **catalog_in(lake))
    for mode in ICEBERG:
        for table in TABLES:
            place = catalog.load_table(f"{mode}.{table}").metadata_location
            yield f"iceberg {mode} {table}", ("iceberg", place.removeprefix("file://"))


def faults_of(mode: str, audit: Audit, source: dict[Key, Row], rows: list[Row]) -> list[str]:
    match mode:
        case "log":
            return log_faults(audit, rows)
        case "history":
            return history_faults(audit, rows)
        case _:
            return current_faults(audit.table, source, rows)


def unnamed_files(lake: Path) -> Iterator[str]:
    """Return the data files of logs that tasks wrote and no commit ever named.

    Files that a commit removed stay: a wider column writes a table of Delta again.
    """
    catalog = load_catalog("default", **catalog_in(lake))
    for table in TABLES:
        folder = lake / "delta" / "log" / table
        yield from _unnamed(folder, set(_added(folder)))
        iceberg = catalog.load_table(f"log.{table}")
        named = iceberg.inspect.all_data_files().column("file_path").to_pylist()
        yield from _unnamed(Path(iceberg.location().removeprefix("file://"), "data"), set(named))


def _added(folder: Path) -> Iterator[str]:
    for entry in folder.glob("_delta_log/*.json"):
        actions = map(json.loads, entry.read_text().splitlines())
        yield from (unquote(each["add"]["path"]) for each in actions if "add" in each)


def _unnamed(folder: Path, named: set[str]) -> Iterator[str]:
    names = {each.rpartition("/")[2] for each in named}
    files = (path for path in folder.rglob("*.parquet") if "_delta_log" not in path.parts)
    yield from (f"no commit names {path}" for path in files if path.name not in names)
