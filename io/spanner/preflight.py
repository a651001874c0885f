"""The checks before a read: the database answers; its dialect, the stream and the stream's options are supported."""

from __future__ import annotations

from collections.abc import Callable

from penstock.errors import SetupError
from penstock.io.spanner.query import DIALECT, STREAMS, Query, stream_options_query
from penstock.io.spanner.source import ChangeStream

_GOOGLESQL = "GOOGLE_STANDARD_SQL"


def check_source(stream: ChangeStream, rows: Callable[[Query], list[list[str]]]) -> dict[str, str]:
    """Return the options of the change stream, such as value_capture_type, if they are set.

    `rows` runs a query and returns its rows as lists of text. Only a read tells whether the start is within the
    retention period. The first query reports that, before a record is emitted.

    Raises:
        SetupError: a dialect or mode that is not supported, or no such stream; the message names the fix.
    """
    _check_dialect(stream, rows(Query(DIALECT)))
    _check_exists(stream, [name for (name,) in rows(Query(STREAMS))])
    options = dict(rows(stream_options_query(stream.change_stream)))
    _check_mode(stream, options)
    return options


def _check_dialect(stream: ChangeStream, rows: list[list[str]]) -> None:
    dialect = rows[0][0] if rows else _GOOGLESQL
    if dialect != _GOOGLESQL:
        raise SetupError(
            f"{stream.database_path} has the dialect {dialect}; this reader knows GoogleSQL change streams "
            "only. Nothing was read"
        )


def _check_exists(stream: ChangeStream, names: list[str]) -> None:
    if stream.change_stream.lower() not in (name.lower() for name in names):
        known = ", ".join(sorted(names)) or "none"
        raise SetupError(
            f"{stream.database_path} has no change stream {stream.change_stream!r} that these credentials "
            f"can see (there are: {known}). Check the name, or create it: CREATE CHANGE STREAM "
            f"{stream.change_stream} FOR ALL OPTIONS (value_capture_type = 'OLD_AND_NEW_VALUES')"
        )


def _check_mode(stream: ChangeStream, options: dict[str, str]) -> None:
    mode = options.get("partition_mode", "IMMUTABLE_KEY_RANGE")
    if mode != "IMMUTABLE_KEY_RANGE":
        raise SetupError(
            f"{stream} has partition_mode {mode}, which is not supported yet. Create a change stream with "
            "partition_mode IMMUTABLE_KEY_RANGE (the default) beside it"
        )
    if options.get("per_placement_tvf", "false").lower() == "true":
        raise SetupError(
            f"{stream} is read by one function a placement (per_placement_tvf), which is not supported yet"
        )
