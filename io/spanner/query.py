"""The statements that the reader sends, and how far ahead one query may look. Pure.

A change stream query must be the whole statement, a strong read in a single-use transaction. Both ends are
inclusive. Every query has an end. A query without an end would have to be cancelled, and the emulator works on a
cancelled query until its end_timestamp. A stream with partition_mode MUTABLE_KEY_RANGE rejects a query without an end,
or with one more than 30 minutes after the later of now and its start; `poll_seconds` is far below that.

Source: Cloud Spanner documentation, "Change streams partitions, records, and queries" (Change stream query syntax).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from penstock.errors import UsageError
from penstock.timestamps import format_timestamp

ROOT = ""
"""The token of the root partition: its query passes NULL, its children are the tokens live at the start."""

_LIST = "*"
"""The first letter of what takes the place of a token in the key of a list of placements. No token begins with it."""

INT64, TIMESTAMP, STRING = 2, 4, 6
"""Type codes of parameters (google.spanner.v1.TypeCode)."""

DIALECT = (
    "SELECT option_value FROM information_schema.database_options WHERE option_name = 'database_dialect'"
)
"""One row: GOOGLE_STANDARD_SQL or POSTGRESQL. The statement is legal in both."""

WHOLE_COMMITS = (
    "SELECT option_value FROM information_schema.database_options WHERE option_name = 'answers_whole_commits'"
)
"""One row from Penstock's simulated service; none from Google's emulator."""

CURRENT_TIME = "SELECT CURRENT_TIMESTAMP"
"""One row: the service's time. Without parentheses, which PostgreSQL refuses."""

STREAMS = "SELECT change_stream_name FROM information_schema.change_streams"

TABLES = "SELECT table_schema, table_name FROM information_schema.tables"

GOOGLESQL, POSTGRESQL = "GOOGLE_STANDARD_SQL", "POSTGRESQL"
"""The dialects, by their names in the answer to `DIALECT`."""

ROUTINES = "SELECT routine_name FROM information_schema.routines"
"""The read functions of change streams are among them."""

STREAM_OPTIONS = (
    "SELECT option_name, option_value FROM information_schema.change_stream_options "
    "WHERE change_stream_name = "
)

# `\Z`, because `$` also matches before a line feed at the end. The name is a part of the statement.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")


@dataclass(frozen=True, slots=True)
class Query:
    """A statement and its parameters as (name, type code, text or None for NULL)."""

    sql: str
    params: tuple[tuple[str, int, str | None], ...] = ()


def partition_key(function: str, token: str) -> str:
    """Return the name of a partition in the frontier: its token, or the read function, a line feed and the token.

    The function is empty for `READ_<stream>`, which most streams have. Each placement has another function with its own
    tokens, and functions of PostgreSQL databases have other names. No token and no function contains a line feed.
    """
    return f"{function}\n{token}" if function else token


def function_of(key: str) -> str:
    """Return the function in a partition's key; empty: `READ_<stream>`."""
    return key.partition("\n")[0] if "\n" in key else ""


def token_of(key: str) -> str:
    """Return the token in a partition's key; empty: the root partition."""
    return key.rpartition("\n")[2]


def list_of_placements(function: str, functions: Iterable[str]) -> str:
    """Return the key of the list of placements with these functions, whose names begin with `function`.

    See `placements`.
    """
    return partition_key(function, _LIST + ",".join(sorted(functions)))


def placements_of(key: str) -> frozenset[str]:
    """Return the functions in the key of a list of placements. It is empty for all other keys."""
    token = token_of(key)
    return frozenset(token[1:].split(",")) if token.startswith(_LIST) else frozenset()


def is_list_of_placements(key: str) -> bool:
    """Return whether a key names a list of placements."""
    return token_of(key).startswith(_LIST)


def read_functions(change_stream: str, dialect: str, *, mutable: bool) -> str:
    """Return the name of a stream's read function; with per_placement_tvf, the beginning of the names of all."""
    if dialect != POSTGRESQL:
        return f"READ_{change_stream}"
    return f"read_{'proto_bytes' if mutable else 'json'}_{change_stream}"


def change_stream_query(
    function: str, token: str, start_timestamp: int, end_timestamp: int, heartbeat_ms: int
) -> Query:
    """Return the query for one partition from start to end, both inclusive, in nanoseconds.

    `function` is a read function. In PostgreSQL databases its name begins with a small letter, and may have capital
    letters, so it is quoted. `read_options` is always passed: for the emulator it is optional; one instance of the
    service rejected a call without it.
    """
    named = _GOOGLESQL_NAMES
    sql = (
        f"SELECT ChangeRecord FROM {checked_name(function)}(start_timestamp => @start_timestamp, "
        "end_timestamp => @end_timestamp, partition_token => @partition_token, "
        "heartbeat_milliseconds => @heartbeat_milliseconds, read_options => NULL)"
    )
    if function.startswith("read_"):
        named = _POSTGRESQL_NAMES
        sql = f'SELECT * FROM "spanner"."{checked_name(function)}"($1, $2, $3, $4, null)'
    values = (
        (TIMESTAMP, format_timestamp(start_timestamp)),
        (TIMESTAMP, format_timestamp(end_timestamp)),
        # Without a token the service answers with the first partitions.
        (STRING, token or None),
        (INT64, str(heartbeat_ms)),
    )
    return Query(sql, tuple((name, code, text) for name, (code, text) in zip(named, values, strict=True)))


_GOOGLESQL_NAMES = ("start_timestamp", "end_timestamp", "partition_token", "heartbeat_milliseconds")
_POSTGRESQL_NAMES = ("p1", "p2", "p3", "p4")
"""Names of parameters; $1 of a PostgreSQL statement is the parameter p1."""


def stream_options_query(change_stream: str, dialect: str) -> Query:
    """Return the query for the options of a stream: rows of (name, value)."""
    if dialect == POSTGRESQL:
        return Query(f"{STREAM_OPTIONS}$1", (("p1", STRING, change_stream),))
    return Query(f"{STREAM_OPTIONS}@stream", (("stream", STRING, change_stream),))


def checked_name(change_stream: str) -> str:
    """Return the name if it is one that a change stream can have, in either dialect.

    Raises:
        UsageError: it is not letters, digits and underscores, beginning with a letter.
    """
    if not _NAME.match(change_stream):
        raise UsageError(
            f"change_stream {change_stream!r} is not the name of a change stream: pass the bare name from "
            "CREATE CHANGE STREAM (letters, digits and underscores, beginning with a letter)"
        )
    return change_stream


def query_end(position: int, until: int, end: int | None) -> int:
    """Return the end_timestamp of a query of a partition that is to be read `until` then; all in nanoseconds,
    the result inclusive: never before `position`, never after `end`."""
    target = max(position, until)
    return target if end is None else min(target, end)
