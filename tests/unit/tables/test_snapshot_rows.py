"""Rows of a snapshot in tables: rows with new keys are appended and nothing is read; all others are merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from penstock.event import ChangeEvent, Op, Version
from penstock.io.columnar.known_keys import KnownKeys, hashes_of
from penstock.io.columnar.table_rows import Mode
from penstock.io.delta.target import DeltaTarget
from penstock.io.iceberg.target import IcebergTarget
from tests.support.catalogs import catalog_in
from tests.unit.tables.histories import SCHEMA, SOURCE
from tests.unit.tables.test_delta import publish

pytestmark = pytest.mark.slow

SNAPSHOT, LATER_SNAPSHOT = Version(1000), Version(2000)


def row(key: int, amount: int, version: Version = SNAPSHOT, op: Op = Op.READ) -> ChangeEvent:
    after = {"id": key, "name": f"n{key}", "amount": amount}
    return ChangeEvent(SOURCE, op, version.order * 10**9, {"id": key}, None, after, version, SCHEMA)


def rows(keys: Sequence[int], amount: int = 0, version: Version = SNAPSHOT) -> list[ChangeEvent]:
    return [row(key, amount, version) for key in keys]


@dataclass
class Delta:
    """A Delta table: a target for each driver, and what its log says of its commits."""

    folder: Path
    mode: Mode

    vectors = False

    def driver(self) -> Any:
        return DeltaTarget(str(self.folder / "t"), self.mode, "evolve", deletion_vectors=self.vectors)

    def kinds(self) -> list[bool]:
        """Whether each commit with rows only appended, in their order."""
        commits = reversed(DeltaTable(self.folder / "t").history())
        return [each["operation"] == "WRITE" for each in commits if each["operation"] != "CREATE TABLE"]

    def found(self) -> list[tuple[int, int]]:
        query = QueryBuilder().register("t", DeltaTable(self.folder / "t"))
        return live(pa.table(query.execute("select * from t")))


class DeltaVectors(Delta):
    """A Delta table whose rows are replaced by deletion vectors."""

    vectors = True


@dataclass
class Iceberg:
    """An Iceberg table, whose snapshots say what their commits did."""

    folder: Path
    mode: Mode

    @property
    def properties(self) -> dict[str, str]:
        folder = self.folder
        return catalog_in(folder)

    def driver(self) -> Any:
        return IcebergTarget("shop.t", "test", self.mode, "evolve", self.properties)

    def kinds(self) -> list[bool]:
        return [each.summary.operation.value == "append" for each in self._table().snapshots()]

    def found(self) -> list[tuple[int, int]]:
        return live(self._table().scan().to_arrow())

    def _table(self) -> Any:
        return load_catalog("test", **self.properties).load_table("shop.t")


def live(table: Any) -> list[tuple[int, int]]:
    found = [
        each
        for each in table.to_pylist()
        if not each["_penstock_deleted"] and not each.get("_penstock_valid_to")
    ]
    return sorted((each["id"], each["amount"]) for each in found)


@pytest.fixture(
    params=[(kind, mode) for kind in (Delta, DeltaVectors, Iceberg) for mode in ("current", "history")]
)
def table(request: Any, tmp_path: Path) -> Any:
    kind, mode = request.param
    return kind(tmp_path, mode)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The queries of a table that has rows."""
    found: list[str] = []
    scan = Table.scan

    def query(delta: Any, where: str = "true") -> Any:
        found.append(where)
        return original(delta, where)

    def watched(self: Table, *args: Any, **named: Any) -> Any:
        if self.current_snapshot() is not None:
            found.append(str(named))
        return scan(self, *args, **named)

    def opened(self: OpenFile, path: str, stream: Any) -> None:
        found.append(path)
        open_file(self, path, stream)

    import penstock.io.delta.commit as delta_commit
    from penstock.io.columnar.open_file import OpenFile

    open_file = OpenFile.__init__
    monkeypatch.setattr(OpenFile, "__init__", opened)

    original = delta_commit._read
    monkeypatch.setattr(delta_commit, "_read", query)
    monkeypatch.setattr(Table, "scan", watched)
    return found


def test_commits_of_an_initial_snapshot_append_and_read_no_rows(table: Any, reads: list[str]) -> None:
    driver = table.driver()
    for epoch in range(4):
        publish(driver, rows(range(epoch * 10, epoch * 10 + 10)), epoch + 2)
    assert (table.kinds(), reads) == ([True] * 4, [])
    assert table.found() == [(key, 0) for key in range(40)]


def test_changes_after_the_snapshot_are_merged(table: Any) -> None:
    driver = table.driver()
    publish(driver, rows(range(10)), 2)
    publish(driver, [row(3, 7, Version(3000), Op.UPDATE), row(20, 1, Version(3001), Op.CREATE)], 3)
    assert table.kinds() == [True, False]
    assert table.found() == [(key, 7 if key == 3 else 0) for key in range(10)] + [(20, 1)]


def test_a_key_that_comes_again_is_one_row(table: Any) -> None:
    driver = table.driver()
    publish(driver, rows([1, 2, 2]), 2)
    publish(driver, rows([2, 3]), 3)
    publish(driver, rows([4]), 4)
    assert [table.kinds()[number] for number in (0, -1)] == [True, True]
    assert table.found() == [(key, 0) for key in (1, 2, 3, 4)]


def test_another_driver_reads_the_keys_and_appends(table: Any) -> None:
    publish(table.driver(), rows(range(10)), 2)
    driver = table.driver()
    publish(driver, rows(range(10, 20)), 3)
    publish(driver, rows([5, 20]), 4)
    assert table.kinds()[:2] == [True, True]
    assert table.found() == [(key, 0) for key in range(21)]


def test_a_snapshot_that_begins_again_replaces_the_rows(table: Any) -> None:
    driver = table.driver()
    publish(driver, rows(range(10), 1), 2)
    publish(driver, rows(range(15), 2, LATER_SNAPSHOT), 3)
    assert table.found() == [(key, 2) for key in range(15)]


def test_rows_that_another_writer_has_committed_are_seen(table: Any) -> None:
    """The driver has the keys of a version of the table, and another driver commits in between."""
    driver = table.driver()
    publish(driver, rows(range(5)), 2)
    publish(table.driver(), rows(range(5, 10), 1, LATER_SNAPSHOT), 3)
    publish(driver, rows(range(5, 12)), 4)
    assert table.found() == [(key, 0 if key < 5 or key > 9 else 1) for key in range(12)]


def test_rows_that_were_there_before_the_snapshot_are_merged(table: Any) -> None:
    publish(table.driver(), [row(1, 5, Version(3000), Op.CREATE)], 2)
    publish(table.driver(), rows(range(3)), 3)
    assert table.found() == [(0, 0), (1, 5), (2, 0)]


@given(st.lists(st.lists(st.integers(0, 200), max_size=30), max_size=12))
def test_known_keys_are_those_that_were_added(parts: list[list[int]]) -> None:
    known, expected = KnownKeys(), set[str]()
    for part in parts:
        texts = list(map(str, part))
        assert known.has_any(hashes_of(texts)) == bool(expected & set(texts))
        known.add(hashes_of(texts))
        expected |= set(texts)
