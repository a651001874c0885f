"""Rows that change in every round, in a source that can read the past."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from penstock.event import ChangeEvent, Kind, Op, Version
from penstock.io.change_streams.incremental.engine import Chunk, ChunkRequest
from penstock.verify.rounds import ColumnDifference, Finding, Look, Snapshot, SourceRow, StoredRow, findings
from penstock.verify.rounds import Kind as Found
from penstock.verify.source import PostgresSystem, SourceTable, SpannerSystem
from tests.unit.formats.events import event_of, schema_of

SCHEMA = schema_of({"id": Kind.INT64}, value=Kind.INT64)
KEY, COLUMN = "[1]", ColumnDifference("value", None, None)


@dataclass
class HotRow:
    """A row that changes at each look. At the time n it has the value n, and each third time it is deleted.

    `wrong`: the target has another value. `is_faster`: the row also changes between a read of the past and a look.
    """

    wrong: bool = False
    is_faster: bool = False
    reads_past: bool = True
    time: int = 0
    asked: list[int] = field(default_factory=list)

    def _event(self, time: int) -> ChangeEvent | None:
        return event_of(SCHEMA, Op.READ, after={"id": 1, "value": time}) if time % 3 else None

    def rows(self, keys: Sequence[str]) -> Mapping[str, SourceRow]:
        now = self.time
        self.time += 1
        return {KEY: SourceRow(self._event(now), Snapshot(lambda version: version.order <= now, now + 1))}

    def rows_at(self, versions: Mapping[str, Version]) -> Mapping[str, SourceRow]:
        if not self.reads_past or not versions:
            return {}
        at = versions[KEY].order
        self.asked.append(at)
        self.time += self.is_faster
        return {KEY: SourceRow(self._event(at), Snapshot(lambda version: version.order <= at, at + 1))}

    def look(self, rows: Mapping[str, ChangeEvent | None]) -> Look:
        event, time = rows[KEY], self.time
        equal = event is not None and (event.after or {})["value"] == time and not self.wrong
        return Look({KEY: StoredRow(Version(time), not time % 3, () if equal else [COLUMN])})


def found(row: HotRow) -> list[Finding]:
    return list(
        findings([KEY], row, row, lambda until_ns: None, rounds=4, tombstone_seconds=1e9, clock=lambda: 0.0)
    )


@pytest.mark.parametrize("time", range(3))
def test_a_row_that_changes_in_every_round_is_compared_as_of_its_own_version(time: int) -> None:
    row = HotRow(time=time)
    assert found(row) == []
    assert row.asked in ([], [row.time])


def test_a_difference_of_a_row_that_changes_in_every_round_is_found() -> None:
    assert found(HotRow(wrong=True, time=1)) == [Finding(Found.DIFFERENT, KEY, [COLUMN])]


@pytest.mark.parametrize("options", [{"is_faster": True}, {"reads_past": False}])
def test_a_row_that_cannot_be_read_as_of_its_version_is_not_known(options: dict[str, Any]) -> None:
    row = HotRow(wrong=True, time=1, **options)
    assert found(row) == [Finding(Found.CHANGING, KEY)]


class PastReader:
    """Answers with no rows, and notes when they were to be read."""

    def __init__(self) -> None:
        self.asked: list[tuple[tuple[str, ...], int]] = []

    def read_at(self, request: ChunkRequest, timestamp: int) -> Chunk:
        self.asked.append((request.keys, timestamp))
        return Chunk(request, (), timestamp.__ge__, timestamp + 1, False)


def test_spanner_is_read_at_the_time_of_each_version_and_postgres_is_not() -> None:
    versions = {"[1]": Version(7, "a"), "[2]": Version(8, "b"), "[3]": Version(7, "a")}
    reader = PastReader()
    table = SourceTable("T", reader, SpannerSystem(), lambda record: [])  # type: ignore[arg-type]
    table._schema = SCHEMA
    assert {key: row.event for key, row in table.rows_at(versions).items()} == dict.fromkeys(versions)
    assert reader.asked == [(('{"id": "1"}', '{"id": "3"}'), 7), (('{"id": "2"}',), 8)]
    table.system = PostgresSystem()
    assert table.rows_at(versions) == {}
