"""The rows that table sinks and files with columns write for one event; see `penstock.io.staging.preview`."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from penstock.event.change_feed import change_feed
from penstock.event.change_rows import change_rows
from penstock.event.feed_rows import Layout
from penstock.event.model import ChangeEvent, Op
from penstock.event.replica import fold
from penstock.io.columnar.arrow_rows import rows_to_arrow
from penstock.io.columnar.table_rows import History, Mode, StoredRow, current_rows, table_schema
from penstock.io.staging.preview import Written, changes_no_row, written_row, written_truncate


def rows_of_event(event: ChangeEvent, table: str, mode: Mode, layout: Layout = "events") -> list[Written]:
    """Return the rows that `mode` makes of an event in a table without rows; `layout` is of the mode *log*.

    Raises:
        ValueError: a value that its column cannot hold, or an event without a primary key; the message names it.
    """
    if mode == "log":
        make = change_feed if layout == "table" else change_rows
        return _all_rows(table, make([event], event.schema))
    # Messages and changes of the schema do nothing in a table.
    if changes_no_row(event):
        return []
    if event.op is Op.TRUNCATE:
        return [written_truncate(table)]
    if mode == "current":
        (changes,) = fold([event]).values()
        rows, schema = current_rows(changes, _nothing, None), changes.schema
    else:
        # There is no table to read, so every load is empty.
        history = History(_nothing, list, _nothing)
        rows = history.add([event])
        schema = history.schema
    arrow = rows_to_arrow(rows, table_schema(schema, mode), event.source)
    return [written_row(event, table, row, _types(arrow)) for row in _python_rows(arrow)]


def _all_rows(table: str, rows: pa.Table) -> list[Written]:
    return [{"table": table, "row": row, "types": _types(rows)} for row in _python_rows(rows)]


def _nothing(keys: list[str]) -> list[StoredRow]:
    return []


def _types(rows: pa.Table) -> dict[str, str]:
    return {field.name: str(field.type) for field in rows.schema}


def _python_rows(rows: pa.Table) -> list[dict[str, Any]]:
    try:
        plain: list[dict[str, Any]] = rows.to_pylist()
    except (ValueError, OverflowError):
        # Python's dates end with the year 9999, Arrow's dates do not.
        plain = rows.cast(pa.schema([_as_number(field) for field in rows.schema])).to_pylist()
    return plain


def _as_number(field: pa.Field) -> pa.Field:
    wide = {pa.types.is_timestamp: pa.int64(), pa.types.is_date32: pa.int32()}
    return next((field.with_type(to) for test, to in wide.items() if test(field.type)), field)
