"""The cursors, keys and queries of chunks."""

from __future__ import annotations

import json

import pytest

from penstock.errors import SetupError
from penstock.io.change_streams.incremental.engine import ChunkRequest
from penstock.io.spanner.incremental.chunks import (
    ChunkQuery,
    SnapshotRow,
    chunk_rows,
    key_of,
    key_range,
    key_values,
    records,
)
from penstock.io.spanner.initial_scan.frontier import KeyRange, Table
from penstock.io.spanner.record import ColumnType, DataChangeRecord, Mod, Mods

TABLE = Table("sales.T", ("A", "B", "V"), (2, 1, 3), 2)
COLUMNS = (
    ColumnType("A", '{"code":"FLOAT64"}', True, 2),
    ColumnType("B", '{"code":"STRING"}', True, 1),
    ColumnType("V", '{"code":"STRING"}', False, 3),
)


def record(*rows: tuple[object, object, object], timestamp: int = 5) -> DataChangeRecord:
    mods = Mods.of(Mod(json.dumps({"A": a, "B": b}), json.dumps({"V": v}), "{}") for a, b, v in rows)
    return DataChangeRecord(
        timestamp, "", "", True, "sales.T", COLUMNS, mods, "READ", "NEW_ROW", 1, 1, "", False
    )


def request(cursor: str = "", **options: object) -> ChunkRequest:
    given = {"condition": "", "surrogate_key": (), "size": 10, "cursor": cursor, **options}
    return ChunkRequest(1, "sales.T", **given)  # type: ignore[arg-type]


def query(values: list[object], *, postgresql: bool = False) -> tuple[str, dict[str, object]]:
    """Return the condition and the parameters for rows after these values of V, A, B."""
    cursor = json.dumps([["V", "A", "B"], ["STRING", "FLOAT64", "STRING"], values])
    asked = ChunkQuery(TABLE, request(cursor, surrogate_key=("V",)), postgresql=postgresql)
    sql, params = asked.rows_after()
    return sql.partition(" WHERE ")[2].partition(" ORDER BY")[0], params


def test_keys_are_equal_whatever_the_order_of_their_columns():
    assert key_of('{"A":"1","B":null}') == key_of('{"B": null, "A": "1"}') == ("1", None)
    assert key_values(TABLE, '{"B": "x", "A": 1.5}') == '[1.5, "x"]'


def test_a_plain_read_continues_after_the_last_key():
    assert key_range(TABLE, request()) == KeyRange(0)
    cursor = chunk_rows(record((1.5, "x", "v")))[0].cursor
    assert key_range(TABLE, request(cursor)) == KeyRange(0, '[1.5, "x"]', "", True)


def test_a_query_orders_by_the_surrogate_key_and_then_by_the_primary_key():
    asked = ChunkQuery(
        TABLE, request(surrogate_key=("V",), condition="V > 'a' OR V IS NULL"), postgresql=False
    )
    assert asked.rows_after().sql == (
        "SELECT `A`, `B`, `V` FROM `sales`.`T` WHERE (V > 'a' OR V IS NULL) ORDER BY `V`, `A`, `B` LIMIT 10"
    )
    rows = chunk_rows(record((1.5, "x", None), (2.5, "y", "v")), asked.order)
    following = ChunkQuery(TABLE, request(rows[0].cursor, surrogate_key=("V",)), postgresql=False)
    condition = (
        "(`V` IS NOT NULL) OR (`V` IS NULL AND `A` > @p1) OR (`V` IS NULL AND `A` = @p3 AND `B` > @p2)"
    )
    statement = following.rows_after()
    assert f"WHERE ({condition}) ORDER BY" in statement.sql
    assert statement.params == {"p1": 1.5, "p2": "x", "p3": 1.5}
    assert not following.restarted


def test_values_with_a_place_of_their_own_in_the_order_are_not_left_out():
    condition, _ = query(["v", "NaN", None])
    assert condition == (
        "((`V` > @p1) OR (`V` = @p2 AND NOT IS_NAN(`A`)) OR (`V` = @p3 AND IS_NAN(`A`) AND `B` IS NOT NULL))"
    )
    condition, params = query(["NaN", 1.0, None], postgresql=True)
    assert condition == '((("V" > $1 OR "V" IS NULL)) OR ("V" = $3 AND ("A" > $2 OR "A" IS NULL)))'
    assert params == {"p1": "NaN", "p2": 1.0, "p3": "NaN"}
    assert query([None, None, None], postgresql=True) == ("(FALSE)", {})


def test_a_cursor_of_other_columns_begins_again():
    cursor = json.dumps([["W"], ["STRING"], ["w"]])
    asked = ChunkQuery(TABLE, request(cursor, surrogate_key=("V",)), postgresql=False)
    assert asked.restarted
    assert "WHERE" not in asked.rows_after().sql


def test_rows_are_read_by_their_keys_under_the_condition():
    asked = ChunkQuery(TABLE, request(condition="V = 'a'"), postgresql=True)
    statement = asked.rows_of_keys(['{"A":1,"B":"x"}', '{"A":2,"B":null}'])
    assert statement.sql.endswith(
        """WHERE (("A" = $1 AND "B" = $2) OR ("A" = $3 AND "B" IS NULL)) AND (V = 'a')"""
    )


def test_a_surrogate_key_must_be_watched():
    with pytest.raises(SetupError, match="no watched column 'W'"):
        ChunkQuery(TABLE, request(surrogate_key=("W",)), postgresql=False)


def test_rows_of_one_table_and_time_become_one_record():
    first, second = record((1, "a", "v"), (2, "b", "w")), record((3, "c", "x"), timestamp=6)
    rows = [SnapshotRow(each, mod) for each in (first, second) for mod in each.mods]
    assert records(rows) == [first, second]
    assert records(rows[1:]) == [record((2, "b", "w")), second]
