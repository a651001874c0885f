"""The statements of chunks, their cursors, and what a snapshot of the server says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.event.column_types import ColumnType, Kind
from penstock.io.change_streams.incremental.channels import FileChannel
from penstock.io.change_streams.incremental.engine import ChunkRequest
from penstock.io.postgres.incremental.chunks import (
    ChunkLines,
    ChunkStatement,
    end_of_records,
    parse_snapshot,
    published_columns,
)
from penstock.io.postgres.record import Table, TableColumn

BLOCK, SEGMENT = 8192, 16 << 20
TEXT = ColumnType(Kind.STRING, "text")


def table(*key: str) -> Table:
    columns = [
        TableColumn(name, TEXT, 25, name in key, key.index(name) + 1 if name in key else None)
        for name in ("a", "b", "c")
    ]
    return Table(1, "public", "t", "DEFAULT", tuple(columns))


def statement(of: Table, cursor: str = "", **request: Any) -> ChunkStatement:
    given = {"condition": "", "surrogate_key": (), "size": 10, **request}
    conditions = given.pop("conditions", [])
    return ChunkStatement(
        of, ChunkRequest(1, "public.t", cursor=cursor, **given), kind="r", file=77, conditions=conditions
    )


def test_a_snapshot_sees_what_ended_before_it():
    visible = parse_snapshot("10:20:12,15")
    assert [number for number in range(8, 22) if visible.sees(number)] == [
        8,
        9,
        10,
        11,
        13,
        14,
        16,
        17,
        18,
        19,
    ]
    assert parse_snapshot("10:10:").sees(9)
    assert not parse_snapshot("10:10:").sees(10)


def test_a_snapshot_compares_whole_transaction_ids_after_an_epoch():
    epoch = 1 << 32
    visible = parse_snapshot(f"{epoch + 3}:{epoch + 9}:{epoch + 5}")
    assert [visible.sees(epoch + n) for n in (2, 4, 5, 9)] == [True, True, False, False]
    assert visible.sees(epoch - 1)


@pytest.mark.parametrize(
    ("insert", "end"),
    [
        (5 * SEGMENT + 40, 5 * SEGMENT),
        (5 * SEGMENT + BLOCK + 24, 5 * SEGMENT + BLOCK),
        (5 * SEGMENT + BLOCK + 40, 5 * SEGMENT + BLOCK + 40),
        (5 * SEGMENT + BLOCK + 25, 5 * SEGMENT + BLOCK + 25),
    ],
)
def test_the_header_of_an_empty_page_is_not_waited_for(insert, end):
    assert end_of_records(insert, BLOCK, SEGMENT) == end


def test_the_key_stands_in_where_and_order_by_as_the_same_columns():
    first = statement(table("b", "a"), condition="c > 'x'", conditions=["c is not null"])
    assert first.rows_after().as_string() == (
        'copy (select "a", "b", "c" from only "public"."t" '
        'where (c is not null) and (c > \'x\') order by "b", "a" limit 10) to stdout'
    )
    row = first.chunk_row(("1", "2'", "3"))
    assert (row.key, row.value.row) == (("2'", "1"), ("1", "2'", "3"))
    following = statement(table("b", "a"), row.cursor).rows_after().as_string()
    assert """where ("b", "a") > ('2''', '1') order by "b", "a" limit 10""" in following


LINES = b"1\t2\\t\t\\N\n3\t4\t5\n"


def test_rows_are_made_of_the_lines_of_an_answer_when_they_are_asked_for():
    rows = ChunkLines(statement(table("b", "a")), LINES, 2)
    assert (len(rows), rows[-1].key) == (2, ("4", "3"))
    assert [row.value.row for row in rows] == [("1", "2\t", None), ("3", "4", "5")]
    assert rows[-1] == rows[1]
    (only,) = ChunkLines(statement(table("a")), b"1\t2\t3\n", 1)
    assert ChunkLines(statement(table("a")), b"1\t2\t3\n", 1)[-1] == only


def test_columns_of_an_order_that_are_not_published_are_read_too():
    surrogate = statement(table("a"), surrogate_key=("d", "b"))
    assert surrogate.selects_more
    assert 'select "a", "b", "c", "d" from' in surrogate.rows_after().as_string()
    row = surrogate.chunk_row(("1", "2", "3", "4"))
    assert (row.value.row, json.loads(row.cursor)[1]) == (("1", "2", "3"), ["4", "2"])
    assert not statement(table("a")).selects_more


def test_rows_are_read_by_their_keys():
    again = statement(table("a"), keys=('["1"]', '["2"]')).rows_of_keys().as_string()
    assert """where ("a") in (('1'), ('2'))""" in again


def test_a_surrogate_key_reads_equal_values_together_and_nulls_at_the_end():
    surrogate = statement(table("a"), surrogate_key=("c",))
    assert (
        """where "c" is not null order by "c" fetch first 10 rows with ties"""
        in surrogate.rows_after().as_string()
    )
    assert 'where ("c" is null)' in surrogate.rows_with_null().as_string()


def test_a_table_with_another_key_is_read_from_its_beginning():
    row = statement(table("a")).chunk_row(("1", "2", "3"))
    assert not statement(table("a"), row.cursor).restarted
    changed = statement(table("b"), row.cursor)
    assert changed.restarted
    assert "where" not in changed.rows_after().as_string()


def test_a_table_without_a_key_is_read_again_after_a_rewrite():
    row = statement(table()).chunk_row(("1", "2", "3", "(0,1)"))
    assert row.key is None
    assert json.loads(row.cursor) == [["ctid", "77"], ["(0,1)"]]
    rewritten = ChunkStatement(
        table(), ChunkRequest(1, "public.t", "", (), 10, row.cursor), kind="r", file=78, conditions=[]
    )
    assert rewritten.restarted


def test_columns_are_those_that_any_publication_sends():
    columns = [("a", 23, -1, False, True), ("b", 25, -1, False, False), ("g", 25, -1, True, False)]
    assert [column[0] for column in published_columns(columns, [None])] == ["a", "b"]
    assert [column[0] for column in published_columns(columns, [["a"], ["g"]])] == ["a", "g"]


def test_a_line_of_signals_is_read_once_when_it_is_complete(tmp_path):
    path = tmp_path / "signals"
    channel = FileChannel(str(path))
    assert channel.poll(None) is None
    path.write_text('{"type": "pause-snapshot"}\n{"type": "resume')
    first = channel.poll(None)
    assert first is not None
    assert [type(signal).__name__ for signal in first.signals] == ["PauseSnapshot"]
    assert channel.poll(first.position) is None
    path.write_text('{"type": "pause-snapshot"}\n{"type": "resume-snapshot"}\n')
    second = channel.poll(first.position)
    assert second is not None
    assert [type(signal).__name__ for signal in second.signals] == ["ResumeSnapshot"]
    path.write_text('{"type": "stop-snapshot"}\n')  # the file was replaced by a shorter one
    third = channel.poll(second.position)
    assert third is not None
    assert [type(signal).__name__ for signal in third.signals] == ["StopSnapshot"]
