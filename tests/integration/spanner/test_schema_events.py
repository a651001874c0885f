"""SCHEMA events of the real emulator: files with the changes of a table whose columns change."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.schema_lines import told_columns, write_lines

pytestmark = [pytest.mark.emulator, pytest.mark.slow]

SHOP = SimpleNamespace(project="p", instance="i", database="shop", change_stream="Changes")


def test_each_shard_is_told_of_new_columns_before_the_first_row_that_has_them(
    database: Any, epochs: Any, tmp_path: Path
) -> None:
    def ddl(statement: str) -> None:
        database.client.update_ddl([statement]).result(30)

    def insert(*keys: int) -> int:
        with database.client.batch() as batch:
            batch.insert_or_update("Accounts", ["Id", "Value"], [(key, "x") for key in keys])
        return int(batch.committed.timestamp()) * 1_000_000_000 + batch.committed.nanosecond

    ddl("ALTER CHANGE STREAM Changes SET OPTIONS (value_capture_type = 'NEW_ROW')")
    driver = epochs(database.reading())
    insert(*range(20))
    ddl("ALTER TABLE Accounts ADD COLUMN Extra BOOL")
    insert(*range(10, 30))
    ddl("ALTER TABLE Accounts DROP COLUMN Version")
    driver.run_until(insert(*range(40)))
    write_lines(tmp_path, driver.committed, "spanner", SHOP, lambda: "NEW_ROW")
    told = told_columns(tmp_path)
    assert set(told) == {"00-of-02", "01-of-02"}
    first, added, dropped = told["00-of-02"]
    assert told["01-of-02"] == [first, added, dropped]
    assert set(added) - set(first) == {"Extra"}
    assert set(added) - set(dropped) == {"Version"}
