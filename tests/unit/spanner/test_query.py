"""The text and the parameters of change stream queries, in both dialects."""

from __future__ import annotations

import pytest

from penstock.io.spanner.query import (
    ROOT,
    STREAM_OPTIONS,
    Query,
    change_stream_query,
    function_of,
    partition_key,
    query_end,
    stream_options_query,
    token_of,
)


def test_query_is_one_function_call_with_all_arguments_by_name() -> None:
    query = change_stream_query("READ_Changes", "token", 1_000_000_001, 2_000_000_000, 1000)
    assert query.sql == (
        "SELECT ChangeRecord FROM READ_Changes(start_timestamp => @start_timestamp, "
        "end_timestamp => @end_timestamp, partition_token => @partition_token, "
        "heartbeat_milliseconds => @heartbeat_milliseconds, read_options => NULL)"
    )
    assert query.params == (
        ("start_timestamp", 4, "1970-01-01T00:00:01.000000001Z"),
        ("end_timestamp", 4, "1970-01-01T00:00:02.000000000Z"),
        ("partition_token", 6, "token"),
        ("heartbeat_milliseconds", 2, "1000"),
    )


def test_the_query_of_a_postgresql_database_passes_arguments_by_position_and_quotes_the_function() -> None:
    query = change_stream_query("read_json_Changes", "token", 1_000_000_001, 2_000_000_000, 1000)
    assert query.sql == 'SELECT * FROM "spanner"."read_json_Changes"($1, $2, $3, $4, null)'
    assert query.params == (
        ("p1", 4, "1970-01-01T00:00:01.000000001Z"),
        ("p2", 4, "1970-01-01T00:00:02.000000000Z"),
        ("p3", 6, "token"),
        ("p4", 2, "1000"),
    )


@pytest.mark.parametrize("function", ["", "READ_S_eu", "read_json_s"])
@pytest.mark.parametrize("token", [ROOT, "a/b+c=", "x" * 170])
def test_a_partition_is_named_by_its_function_and_token(function: str, token: str) -> None:
    key = partition_key(function, token)
    assert (function_of(key), token_of(key)) == (function, token)


def test_the_options_of_a_stream_are_asked_for_in_the_dialect() -> None:
    assert stream_options_query("S", "POSTGRESQL") == Query(f"{STREAM_OPTIONS}$1", (("p1", 6, "S"),))
    assert stream_options_query("S", "GOOGLE_STANDARD_SQL") == Query(
        f"{STREAM_OPTIONS}@stream", (("stream", 6, "S"),)
    )


def test_the_root_query_has_a_null_token() -> None:
    assert ("partition_token", 6, None) in change_stream_query("READ_S", ROOT, 0, 0, 1000).params


@pytest.mark.parametrize("name", ["", "1st", "a b", "a;DROP TABLE T", "a-b", "READ_a(", "a\n"])
def test_names_that_no_change_stream_can_have_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="bare name from CREATE CHANGE STREAM"):
        change_stream_query(name, "t", 0, 0, 1000)


@pytest.mark.parametrize(
    ("position", "until", "end", "expected"),
    [(0, 1200, None, 1200), (0, 1200, 1100, 1100), (1500, 1200, None, 1500), (1500, 1200, 1500, 1500)],
)
def test_a_window_never_ends_before_its_position_or_after_the_end(
    position: int, until: int, end: int | None, expected: int
) -> None:
    assert query_end(position, until, end) == expected
