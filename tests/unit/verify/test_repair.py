"""Which rows a repair asks for, and what it says about them afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from penstock.event import Kind, Op, Version
from penstock.verify import job
from penstock.verify.job import Comparison, TableResult, _Table
from penstock.verify.rounds import ColumnDifference, Finding, Look, Snapshot, SourceRow, StoredRow
from penstock.verify.rounds import Kind as Found
from tests.unit.formats.events import event_of, schema_of

SCHEMA = schema_of({"id": Kind.INT64}, value=Kind.INT64)
COLUMN = ColumnDifference("value", "2", None)


@dataclass
class Rows:
    """Source and target. A row whose key is in `stubborn` stays as it is."""

    wrong: set[str]
    stubborn: set[str] = field(default_factory=set)
    asked: list[list[str]] = field(default_factory=list)

    def rows(self, keys: Sequence[str]) -> Mapping[str, SourceRow]:
        snapshot = Snapshot(lambda version: version.order < 10, 1)
        event = event_of(SCHEMA, Op.READ, after={"id": 1, "value": 2})
        return {key: SourceRow(None if key == "[0]" else event, snapshot) for key in keys}

    def rows_at(self, versions: Mapping[str, Version]) -> Mapping[str, SourceRow]:
        return {}

    def request_keys(self, keys: Sequence[str]) -> list[str]:
        return list(keys)

    def look(self, rows: Mapping[str, Any]) -> Look:
        return Look(
            {key: StoredRow(Version(1), False, [COLUMN] if key in self.wrong else []) for key in rows}
        )

    def read_again(self, table: str, keys: Sequence[str]) -> None:
        self.asked.append(list(keys))
        self.wrong -= set(keys) - self.stubborn


def repaired(rows: Rows, *differences: Finding) -> TableResult:
    result = TableResult("public.t", "t", 10, list(differences))
    table: Any = _Table(rows, rows, SCHEMA, "t")  # type: ignore[arg-type]
    Comparison([table], 1e9)._repair(result, table, lambda until_ns: None, rows.read_again, 3)
    return result


def test_rows_are_asked_for_in_batches_and_rows_that_only_the_target_has_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job, "_KEYS_IN_REQUEST", 2)
    differences = [Finding(Found.DIFFERENT, f"[{number}]", [COLUMN]) for number in (1, 2, 3)]
    rows = Rows({"[1]", "[2]", "[3]"}, stubborn={"[2]"})
    result = repaired(rows, Finding(Found.EXTRA, "[0]"), *differences)
    assert rows.asked == [["[1]", "[2]"], ["[3]"]]
    assert [each.key for each in result.repaired] == ["[1]", "[3]"]
    assert result.remaining == [Finding(Found.EXTRA, "[0]"), differences[1]]
    assert not result.is_equal


def test_a_table_whose_differences_are_all_repaired_is_equal_if_it_was_looked_at_as_a_whole() -> None:
    result = repaired(Rows({"[1]"}), Finding(Found.DIFFERENT, "[1]", [COLUMN]))
    assert result.is_equal
    result.stopped = True
    assert not result.is_equal
