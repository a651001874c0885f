"""The statements that the reader sends, and how far ahead one query may look. Pure.

A change stream query must be the whole statement, a strong read in a single-use transaction. Both ends are
inclusive. Every query has an end. A query without an end would have to be cancelled, and the emulator works on a
cancelled query until its end_timestamp.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock.errors import UsageError
from penstock.timestamps import format_timestamp

ROOT = ""
"""The token of the root partition: its query passes NULL, its children are the tokens live at the start."""

INT64, TIMESTAMP, STRING = 2, 4, 6
"""Type codes of parameters (google.spanner.v1.TypeCode)."""

DIALECT = (
    "SELECT option_value FROM information_schema.database_options WHERE option_name = 'database_dialect'"
)
"""One row: GOOGLE_STANDARD_SQL or POSTGRESQL. The statement is legal in both."""

CURRENT_TIME = "SELECT CURRENT_TIMESTAMP()"
"""One row: the service's time."""

STREAMS = "SELECT change_stream_name FROM information_schema.change_streams"

STREAM_OPTIONS = (
    "SELECT option_name, option_value FROM information_schema.change_stream_options "
    "WHERE change_stream_name = @stream"
)

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")


@dataclass(frozen=True, slots=True)
class Query:
    """A statement and its parameters as (name, type code, text or None for NULL)."""

    sql: str
    params: tuple[tuple[str, int, str | None], ...] = ()


def change_stream_query(
    change_stream: str, token: str, start_timestamp: int, end_timestamp: int, heartbeat_ms: int
) -> Query:
    """Return the query for one partition from start to end, both inclusive, in nanoseconds.

    `read_options` is passed by name. For the emulator it is optional; one instance of the service rejected a call
    without it.
    """
    sql = (
        f"SELECT ChangeRecord FROM READ_{checked_name(change_stream)}(start_timestamp => @start_timestamp, "
        "end_timestamp => @end_timestamp, partition_token => @partition_token, "
        "heartbeat_milliseconds => @heartbeat_milliseconds, read_options => NULL)"
    )
    return Query(
        sql,
        (
            ("start_timestamp", TIMESTAMP, format_timestamp(start_timestamp)),
            ("end_timestamp", TIMESTAMP, format_timestamp(end_timestamp)),
            ("partition_token", STRING, token or None),
            ("heartbeat_milliseconds", INT64, str(heartbeat_ms)),
        ),
    )


def stream_options_query(change_stream: str) -> Query:
    """Return the query for the options of a stream: rows of (name, value)."""
    return Query(STREAM_OPTIONS, (("stream", STRING, change_stream),))


def checked_name(change_stream: str) -> str:
    """Return the name if it is one that a GoogleSQL change stream can have.

    Raises:
        UsageError: it is not letters, digits and underscores, beginning with a letter.
    """
    if not _NAME.match(change_stream):
        raise UsageError(
            f"change_stream {change_stream!r} is not the name of a change stream: pass the bare name from "
            "CREATE CHANGE STREAM (letters, digits and underscores, beginning with a letter)"
        )
    return change_stream


def window_end(position: int, until: int, end: int | None) -> int:
    """Return the end_timestamp of a query of a partition that is to be read `until` then; all in nanoseconds,
    the result inclusive: never before `position`, never after `end`."""
    target = max(position, until)
    return target if end is None else min(target, end)
