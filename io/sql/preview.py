"""The rows that the sink writes for one event, as the texts of COPY; see `penstock.io.staging.preview`."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.event.model import ChangeEvent, Op
from penstock.event.replica import fold
from penstock.io.sql.sender import batch_rows, log_row
from penstock.io.sql.statements import LOG_COLUMNS, META, TableName, TargetColumn, TargetTable
from penstock.io.sql.target import SqlTarget
from penstock.io.sql.values import sql_type
from penstock.io.staging.preview import Written, changes_no_row, written_row, written_truncate


def rows_of_event(event: ChangeEvent, target: SqlTarget) -> list[Written]:
    """Return the rows of an event.

    Raises:
        ValueError: PostgreSQL cannot hold a value, or the event has no primary key.
    """
    name = target.table_of(event)
    shown = f"{name.schema}.{name.table}"
    if target.mode == "log":
        types = dict(LOG_COLUMNS)
        row = dict(zip(types, log_row(event), strict=True))
        return [{"table": shown, "row": _with_json(row, types), "types": types}]
    if changes_no_row(event):
        return []
    if event.op is Op.TRUNCATE:
        return [written_truncate(shown)]
    (changes,) = fold([event]).values()
    table = _new_table(name, event)
    columns = (*(column.name for column in (*table.key_columns, *table.data)), *(name for name, _ in META))
    types = {column.name: column.sql for column in table.columns} | dict(META)
    return [
        # After these columns of the temporary table come two kinds that help to find what was not sent.
        written_row(event, shown, _with_json(dict(zip(columns, row, strict=False)), types), types)
        for row, _ in batch_rows(table, changes, one_shard=True)
    ]


def _new_table(name: TableName, event: ChangeEvent) -> TargetTable:
    columns = tuple(TargetColumn(column.name, sql_type(column.type)) for column in event.schema)
    return TargetTable(name, columns, tuple(column.name for column in event.schema.key_columns))


def _with_json(row: dict[str, str | None], types: dict[str, str]) -> dict[str, Any]:
    return {
        name: msgspec.Raw(text.encode()) if text is not None and types[name].startswith("jsonb") else text
        for name, text in row.items()
    }
