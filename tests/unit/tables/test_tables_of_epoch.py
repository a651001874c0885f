"""How the tables of an epoch are published: several at the same time, and each in one commit."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from penstock.errors import UsageError
from penstock.event import Kind, Source
from penstock.io.columnar.replica import TableEvents, raise_refused
from penstock.io.delta.target import DeltaTarget
from penstock.io.iceberg.target import IcebergTarget
from penstock.io.staging import TargetUnavailableError
from penstock.io.staging.table_parking import refusals_of_tables
from tests.support.waiting import PATIENCE_SECONDS
from tests.unit.formats.events import event_of, schema_of
from tests.unit.tables.test_delta import publish, rows

COLUMNS = schema_of({"id": Kind.INT64}, name=Kind.STRING)
TABLES = [TableEvents(Source("postgresql", "", "shop", "public", f"t{n}"), []) for n in range(3)]


def test_tables_are_published_at_the_same_time() -> None:
    together = threading.Barrier(len(TABLES))
    refusals_of_tables(TABLES, lambda table: together.wait(PATIENCE_SECONDS), len(TABLES))


def test_an_error_that_may_pass_ends_the_epoch_and_a_permanent_one_only_after_all_others() -> None:
    published: list[str] = []

    def fail(error: Exception) -> None:
        def attempt(table: TableEvents) -> None:
            if table.source.table == "t1":
                raise error
            published.append(table.source.table)

        raise_refused([each.source for each in TABLES], refusals_of_tables(TABLES, attempt, 2), "evolve")

    with pytest.raises(UsageError, match=r"public\.t1: .*All other tables of the epoch are written"):
        fail(UsageError("no"))
    assert sorted(published) == ["t0", "t2"]
    with pytest.raises(TargetUnavailableError):
        fail(TargetUnavailableError("down"))


@pytest.mark.parametrize("mode", ["current", "history"])
def test_rows_of_two_databases_are_one_commit_of_a_table(tmp_path: Path, mode: str) -> None:
    target = DeltaTarget(str(tmp_path / "t"), mode, "evolve")  # type: ignore[arg-type]
    events = [
        event_of(
            COLUMNS,
            after={"id": number, "name": name},
            source=Source("postgresql", "", name, "public", "orders"),
        )
        for number, name in enumerate(["shop1", "shop2", "shop1"])
    ]
    publish(target, events, 2)
    assert rows(tmp_path / "t", "id, name") == [(0, "shop1"), (1, "shop2"), (2, "shop1")]


@pytest.mark.slow
def test_many_tables_of_a_catalogue_in_a_database_are_written_at_the_same_time(tmp_path: Path) -> None:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/w"}
    target = IcebergTarget("lake.{table}", "c", "current", "evolve", properties)
    events = [
        event_of(
            COLUMNS,
            after={"id": 1, "name": "a"},
            source=Source("postgresql", "", "shop", "public", f"t{n}"),
        )
        for n in range(12)
    ]
    for number in (2, 3):
        publish(target, events, number)  # type: ignore[arg-type]
    catalog = target._load_catalog()
    for n in range(12):
        assert catalog.load_table(f"lake.t{n}").scan().to_arrow()["id"].to_pylist() == [1]
