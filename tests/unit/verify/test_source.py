"""Rows of a source become what the sink gets: chosen, renamed and masked columns, and keys that are found again."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from penstock.errors import UsageError
from penstock.event import Version
from penstock.event.column_types import ColumnType, Kind
from penstock.io.change_streams.incremental.engine import Chunk, ChunkRequest, ChunkRow
from penstock.io.postgres.incremental.chunks import ChunkLines, ChunkStatement, SnapshotRow
from penstock.io.postgres.record import Table, TableColumn, read_record
from penstock.io.postgres.source import ChangeStream
from penstock.pipelines.event_lines import ToEvents
from penstock.pipelines.event_options import EventOptions
from penstock.verify.budget import RowBudget
from penstock.verify.source import PostgresSystem, SourceTable

TABLE = Table(
    1,
    "public",
    "orders",
    "DEFAULT",
    (
        TableColumn("id", ColumnType(Kind.INT64), 20, True, 1),
        TableColumn("code", ColumnType(Kind.BYTES), 17, True, 2),
        TableColumn("name", ColumnType(Kind.STRING), 25, False),
        TableColumn("total", ColumnType(Kind.DECIMAL), 1700, False),
    ),
)
ROWS = {("1", "\\x00ff"): ("Ada", "1.50"), ("2", "\\x61"): ("Bob", None)}
STREAM = ChangeStream("shop", "all", "penstock", 0, None)


class Reader:
    """A table with two rows, in chunks of one row. Its snapshot sees the transactions below 100."""

    def read(self, request: ChunkRequest) -> Chunk:
        keys = [tuple(json.loads(key)) for key in request.keys]
        rows = [
            ChunkRow(key, str(number), "", SnapshotRow(TABLE, (*key, *values)))
            for number, (key, values) in enumerate(ROWS.items(), 1)
            if (key in keys if keys else number == int(request.cursor or 0) + 1)
        ]
        return Chunk(request, rows, (100).__gt__, 77, not keys and not rows)

    def null_row(self, name: str) -> Any:
        return read_record(TABLE, (None,) * 4)

    def now(self) -> int:
        return 1_000


def source(budget: RowBudget | None = None, **options: Any) -> SourceTable:
    to_events = ToEvents(EventOptions(**options), "postgres", STREAM)
    return SourceTable(
        "public.orders", Reader(), PostgresSystem(), to_events.of_record, budget or RowBudget()
    )


def test_rows_have_the_columns_and_values_that_the_sink_gets() -> None:
    table = source(
        without_columns=["total"], rename_columns={"name": "customer"}, mask_columns={"name": "redact"}
    )
    schema = table.open()
    assert schema is not None
    assert schema.names == ("id", "code", "customer")
    found = {key: event.after for chunk in table.chunks() for key, event in chunk.rows.events.items()}
    assert found == {
        '[1,"AP8="]': {"id": 1, "code": b"\x00\xff", "customer": "***"},
        '[2,"YQ=="]': {"id": 2, "code": b"a", "customer": "***"},
    }


def test_rows_are_read_again_by_the_keys_of_the_target_also_if_key_columns_are_renamed() -> None:
    table = source(rename_columns={"id": "number"})
    table.open()
    keys = ['[1,"AP8="]', '[3,"AP8="]', '["x"]']
    rows = table.rows(keys)
    assert [key for key in keys if rows[key].event is not None] == ['[1,"AP8="]']


def test_the_snapshot_tells_transactions_and_the_time_after_it() -> None:
    table = source()
    table.open()
    snapshot = next(table.chunks()).snapshot
    assert (snapshot.until_ns, snapshot.truncate_order) == (1_001, 77)
    assert [snapshot.sees(Version(1, text)) for text in ("99", "100", "")] == [True, False, None]


def test_a_table_whose_rows_the_pipeline_leaves_out_has_no_columns() -> None:
    assert source(operations=["DELETE"]).open() is None


def test_a_masked_key_is_refused_because_rows_could_not_be_found_again() -> None:
    table = source(mask_columns={"code": "redact"})
    table.open()
    with pytest.raises(UsageError, match="a mask hides a column of the primary key"):
        next(table.chunks())


def test_chunks_continue_behind_a_cursor() -> None:
    table = source()
    table.open()
    first, *_ = table.chunks()
    rest = [key for chunk in table.chunks(first.cursor) for key in chunk.rows.events]
    assert (list(first.rows.events), rest) == (['[1,"AP8="]'], ['[2,"YQ=="]'])


LINES = {"": b"7\tZ\\n\n", "7": b"8\t\\N\n", "8": b""}
PLAIN = msgspec.structs.replace(TABLE, columns=(TABLE.columns[0], TABLE.columns[2]))


class LineReader(Reader):
    """A table whose chunks are lines of the server."""

    def read(self, request: ChunkRequest) -> Chunk:
        statement = ChunkStatement(PLAIN, request, kind="r", file=1, conditions=[])
        after = json.loads(request.cursor)[1][0] if request.cursor else ""
        lines = LINES[after]
        return Chunk(request, ChunkLines(statement, lines, lines.count(b"\n")), (100).__gt__, 77, not lines)

    def null_row(self, name: str) -> Any:
        return read_record(PLAIN, (None,) * 2)


@pytest.mark.parametrize("has_steps", [False, True])
def test_rows_are_given_in_columns_unless_a_step_changes_them(has_steps: bool) -> None:
    to_events = ToEvents(EventOptions(), "postgres", STREAM).of_record
    table = SourceTable(
        "public.orders", LineReader(), PostgresSystem(), to_events, RowBudget(), has_steps=has_steps
    )
    table.open()
    first, second, last = (chunk.rows for chunk in table.chunks())
    assert (len(first), len(second), len(last)) == (1, 1, 0)
    assert {key: each.after for key, each in first.events.items()} == {"[7]": {"id": 7, "name": "Z\n"}}
    assert list(second.events) == ["[8]"]
    if has_steps:
        assert (first.texts, first.whole) == (None, None)
        return
    assert first.texts is not None
    assert [column.to_pylist() for column in first.texts.columns] == [["7"], ["Z\n"]]
    assert first.whole is not None
    assert first.whole.select(["_penstock_key", "id", "name"]).to_pylist() == [
        {"_penstock_key": "[7]", "id": 7, "name": "Z\n"}
    ]


def test_every_read_of_the_source_is_within_the_budget() -> None:
    time = [0.0]

    def pause(seconds: float) -> None:
        time[0] += seconds

    table = source(RowBudget(2, lambda: time[0], pause))
    table.open()
    assert len(list(table.chunks())) == 3  # 2 rows, and the end
    assert time[0] == 1.0
    table.rows(['[1,"AP8="]', '[2,"YQ=="]'])
    assert time[0] == 2.0


def test_a_read_that_was_slow_is_not_made_up_for() -> None:
    pauses: list[float] = []
    times = iter([0.0, 60.0, 60.0, 60.5, 61.0, 61.0])
    budget = RowBudget(100, lambda: next(times), pauses.append)
    for _ in range(3):
        assert budget.begin(5_000) == 100
        budget.end(100)
    assert pauses == [0.0, 0.5, 1.0]
    assert RowBudget().begin(5_000) == 5_000
