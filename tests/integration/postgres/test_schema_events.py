"""SCHEMA events of a real server: files with the changes of a table whose columns change."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.integration.postgres.conftest import Database
from tests.support.schema_lines import told_columns, write_lines

pytestmark = pytest.mark.slow


def test_each_shard_is_told_of_new_columns_before_the_first_row_that_has_them(
    database: Database, tmp_path: Path
) -> None:
    rows = "from generate_series(1, 20) n"
    database.execute("create table t (id int primary key, v int)")
    database.publish()
    database.execute(
        f"insert into t select n, n {rows}",
        "alter table t add column w int default 2",
        "alter table t alter column v set not null",
        f"insert into t select n + 20, n {rows}",
        "alter table t rename column v to x",
        "update t set id = id + 100",
        "alter table t alter column w type bigint",
        "alter table t drop column x",
        "truncate t",
        f"insert into t select n + 40, n {rows}",
    )
    stream = SimpleNamespace(database=database.name, publication=database.publication, slot=database.slot)
    write_lines(tmp_path, database.read(), "postgres", stream, lambda: "DEFAULT")
    expected = [["id", "v"], ["id", "v", "w"], ["id", "x", "w"], ["id", "w"]]
    assert told_columns(tmp_path) == {"00-of-02": expected, "01-of-02": expected}
