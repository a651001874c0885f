"""Rows of a Delta table that no change has written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from penstock.event import Kind, Op, Version
from penstock.event.replica import encode_version
from penstock.io.columnar.arrow_rows import new_table_schema
from penstock.io.columnar.whole_rows import rows_of_events
from penstock.io.delta.target import DeltaTarget
from penstock.verify.columnar_table import ColumnarTable
from penstock.verify.keys import NO_KEY, key_values
from penstock.verify.rounds import StoredRow
from penstock.verify.source import SourceRows
from tests.unit.formats.events import event_of, schema_of

SCHEMA = schema_of({"id": Kind.INT64}, name=Kind.STRING)
VERSION = Version(7, "1", "2", 3)


def row(key: str | None, id_: int, name: str | None, *, deleted: bool = False) -> dict[str, Any]:
    return {
        "id": id_,
        "name": name,
        "_penstock_key": key,
        "_penstock_version": encode_version(VERSION),
        "_penstock_deleted": deleted,
    }


def table(folder: Path, *rows: dict[str, Any]) -> ColumnarTable:
    shape = new_table_schema(SCHEMA, "current")
    write_deltalake(str(folder), pa.Table.from_pylist(list(rows), shape))
    target = DeltaTarget(str(folder), "current", "add")
    found = ColumnarTable(target, str(folder), "sink", "job")
    assert found.open(SCHEMA)
    return found


def keys(found: ColumnarTable) -> list[str]:
    return [key for part in found.fingerprints() for key in part.column("key").to_pylist()]


def event(id_: int, name: str | None) -> Any:
    return event_of(SCHEMA, Op.READ, after={"id": id_, "name": name})


def test_a_row_that_stands_twice_has_two_copies_and_a_tombstone_is_not_one(tmp_path: Path) -> None:
    twice = table(tmp_path, row("[1]", 1, "a"), row("[1]", 1, "a"), row("[2]", 2, None, deleted=True))
    look = twice.look({"[1]": event(1, "a"), "[2]": None})
    assert look.rows == {"[1]": StoredRow(VERSION, False, [], 2), "[2]": StoredRow(VERSION, True, (), 0)}
    assert keys(twice) == ["[1]", "[1]"]


def test_equal_rows_have_equal_digests_and_no_different_columns(tmp_path: Path) -> None:
    found = table(tmp_path, row("[1]", 1, "a"), row("[2]", 2, None))
    events = {"[1]": event(1, "a"), "[2]": event(2, None)}
    (stored,) = found.fingerprints()
    assert found.expected(SourceRows.of_events(events)).equals(stored)
    whole = rows_of_events(list(events.values()), SCHEMA)
    assert found.expected(SourceRows(2, dict, whole=lambda: whole)).equals(stored)
    assert all(not each.columns for each in found.look(events).rows.values())
    (difference,) = found.look({"[1]": event(1, None)}).rows["[1]"].columns
    assert difference == ("name", None, "a")


def test_a_row_without_a_key_is_found(tmp_path: Path) -> None:
    found = table(tmp_path, row(None, 1, "a"))
    assert keys(found) == [NO_KEY]
    assert found.look({NO_KEY: None}).rows == {NO_KEY: StoredRow(None, False)}


@pytest.mark.parametrize("key", [NO_KEY, "", "[]", "[1,2]", "{", "1", '["x"]'])
def test_a_text_that_is_no_key_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match=r"key|zip"):
        key_values(SCHEMA, key)
