"""The plan of a snapshot: every column and every key of the chosen tables, once."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import SetupError
from penstock.io.change_streams.incremental.new_tables import KnownTables
from penstock.io.spanner.initial_scan import plan
from penstock.io.spanner.initial_scan.frontier import KeyRange, Table
from penstock.timestamps import NANOS

ROWS: dict[str, list[list[Any]]] = {
    plan.DIALECT: [["GOOGLE_STANDARD_SQL"]],
    plan.TABLES: [
        ["", "Orders", "BASE TABLE"],
        ["sales", "Items", "BASE TABLE"],
        ["", "Keys", "BASE TABLE"],
        ["", "AView", "VIEW"],
        ["INFORMATION_SCHEMA", "TABLES", "BASE TABLE"],
    ],
    plan.COLUMNS: [
        ["", "Orders", "Total", "3", "NEVER", "INT64"],
        ["", "Orders", "Customer", "1", "NEVER", "STRING(MAX)"],
        ["", "Orders", "Id", "2", "NEVER", "INT64"],
        ["", "Orders", "Twice", "4", "ALWAYS", "INT64"],
        ["", "Orders", "Words", "5", "ALWAYS", "TOKENLIST"],
        ["sales", "Items", "Id", "1", "NEVER", "INT64"],
        ["sales", "Items", "Name", "2", "NEVER", "STRING(MAX)"],
        ["", "Keys", "K", "1", "NEVER", "INT64"],
        ["", "Keys", "V", "2", "NEVER", "INT64"],
        ["INFORMATION_SCHEMA", "TABLES", "TABLE_NAME", "1", "NEVER", None],
    ],
    plan.KEY_COLUMNS: [
        ["", "Orders", "Id", "1"],
        ["", "Orders", "Customer", "2"],
        ["sales", "Items", "Id", "1"],
        ["", "Keys", "K", "1"],
    ],
    plan.STREAM_TABLES: [
        ["Some", "sales", "Items", True],
        ["Some", "", "Keys", False],
        ["Some", "", "Orders", False],
        ["Other", "", "Orders", True],
    ],
    plan.STREAM_COLUMNS: [["Some", "", "Orders", "Total"], ["Other", "", "Keys", "V"]],
    plan.CHANGE_STREAMS["GOOGLE_STANDARD_SQL"]: [["All", True], ["Some", False], ["Other", False]],
}


def query(sql: str) -> list[list[Any]]:
    return ROWS[sql]


def watched(stream: str) -> dict[str, tuple[str, ...]]:
    return {table.name: table.columns for table in plan.watched_tables(query, stream)}


def test_known_tables_are_those_that_the_stream_watches_and_the_others() -> None:
    every = frozenset(["Orders", "sales.Items", "Keys"])
    assert plan.known_tables(query, "All") == KnownTables(every, frozenset(), True)
    assert plan.known_tables(query, "other") == KnownTables(
        frozenset(["Orders"]), frozenset(["sales.Items", "Keys"])
    )


def test_columns_are_the_key_in_its_order_and_then_the_table_s_order() -> None:
    found = plan.tables_of(query)
    assert found.keys() == {"Orders", "sales.Items", "Keys"}
    (orders,) = plan.chosen_tables(found, [("Orders", ())], "db")
    assert orders == Table("Orders", ("Id", "Customer", "Total", "Twice"), (2, 1, 3, 4), 2)


def test_a_stream_for_all_watches_every_column_that_is_not_generated() -> None:
    assert watched("All") == {
        "Keys": ("K", "V"),
        "Orders": ("Id", "Customer", "Total"),
        "sales.Items": ("Id", "Name"),
    }


def test_a_stream_of_some_tables_watches_whole_tables_single_columns_and_keys_only() -> None:
    assert watched("some") == {
        "Keys": ("K",),
        "Orders": ("Id", "Customer", "Total"),
        "sales.Items": ("Id", "Name"),
    }
    assert watched("Other") == {"Orders": ("Id", "Customer", "Total")}


def test_yes_and_no_are_the_booleans_of_postgresql() -> None:
    rows = ROWS | {
        plan.DIALECT: [["POSTGRESQL"]],
        plan.CHANGE_STREAMS["POSTGRESQL"]: [["s", "NO"]],
        plan.TABLES: [["public", "Orders", "BASE TABLE"], ["public", "Keys", "BASE TABLE"]],
        plan.COLUMNS: [
            ["public", "Orders", "Id", "1", "NEVER", "bigint"],
            ["public", "Keys", "k", "1", "NEVER", "bigint"],
        ],
        plan.KEY_COLUMNS: [["public", "Orders", "Id", "1"], ["public", "Keys", "k", "1"]],
        plan.STREAM_TABLES: [["s", "public", "Orders", "YES"]],
        plan.STREAM_COLUMNS: [],
    }
    assert [table.name for table in plan.watched_tables(rows.__getitem__, "s")] == ["Orders"]


def test_a_missing_table_or_column_is_named_with_the_nearest_one() -> None:
    found = plan.tables_of(query)
    with pytest.raises(SetupError, match=r"no table 'Ordres'.*Orders"):
        plan.chosen_tables(found, [("Ordres", ())], "db")
    with pytest.raises(SetupError, match=r"no column 'Totl'.*Total"):
        plan.chosen_tables(found, [("Orders", ("Totl",))], "db")


def test_chosen_columns_come_with_the_key() -> None:
    (orders,) = plan.chosen_tables(plan.tables_of(query), [("Orders", ("Twice",))], "db")
    assert orders.columns == ("Id", "Customer", "Twice")


@pytest.mark.parametrize(
    ("text", "seconds"), [("1h", 3600), ("7d", 604_800), ("90m", 5400), ("10s", 10), ("'36h'", 129_600)]
)
def test_retention_periods_are_read(text: str, seconds: int) -> None:
    assert plan.period_of(text) == seconds * NANOS


def test_a_time_past_the_version_retention_is_refused_with_the_remedy() -> None:
    now, hour = 10**18, 3600 * NANOS
    plan.check_timestamp(now - hour, now, hour, "db")
    with pytest.raises(SetupError, match="version_retention_period = '7d'"):
        plan.check_timestamp(now - hour - 1, now, hour, "db")


def test_ranges_cover_the_table_without_gap_or_overlap() -> None:
    assert plan.ranges_between(2, ['["b"]', '["d"]']) == [
        KeyRange(2, "", '["b"]'),
        KeyRange(2, '["b"]', '["d"]'),
        KeyRange(2, '["d"]', ""),
    ]
    assert plan.ranges_between(0, []) == [KeyRange(0)]
