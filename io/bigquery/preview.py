"""The rows that the sink writes for one event; see `penstock.io.staging.preview`."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.event.model import ChangeEvent
from penstock.io.bigquery.columns import COMMITTED_AT, Field, bad_key, bad_name, field_of
from penstock.io.bigquery.log_rows import LOG_FIELDS, log_row
from penstock.io.bigquery.replica_sender import ReplicaTable, changes_row
from penstock.io.bigquery.rows import CHANGE_SEQUENCE_NUMBER, CHANGE_TYPE
from penstock.io.bigquery.target import BigQueryTarget
from penstock.io.staging.preview import Written

_OF_A_BATCH = ("batch_writer", "batch_epoch", "batch_index")


def rows_of_event(event: ChangeEvent, target: BigQueryTarget) -> list[Written]:
    """Return the rows of an event, in the mode *log* without the columns that say which batch a row came with.

    Raises:
        ValueError: BigQuery cannot hold a value, or the event is none of a replica.
    """
    name = target.table_of(event.source)
    if target.mode == "log":
        fields = tuple(field for field in LOG_FIELDS if field.name not in _OF_A_BATCH)
        row = {key: value for key, value in log_row(event, "", 0, 0).items() if key not in _OF_A_BATCH}
        return [_shown(name, row, fields)]
    # A message or a change of the schema is no row of a replica.
    if not changes_row(event):
        return []
    if reason := bad_key(event.schema) or bad_name(event.schema.names):
        raise ValueError(f"table {name}: {reason}")
    fields = (
        *(field_of(column.name, column.type) for column in event.schema),
        Field(COMMITTED_AT, "TIMESTAMP"),
        Field(CHANGE_TYPE, "STRING"),
        Field(CHANGE_SEQUENCE_NUMBER, "STRING"),
    )
    # The pseudo-columns belong to the request and not to the table.
    table = ReplicaTable(event.schema, fields[:-2], target)
    return [_shown(name, row, fields) for row in table.changes(event)]


def _shown(table: str, row: dict[str, Any], fields: tuple[Field, ...]) -> Written:
    types = {field.name: f"{field.type}{' REPEATED' * (field.mode == 'REPEATED')}" for field in fields}
    values = {
        name: msgspec.Raw(value.encode()) if types[name] == "JSON" and isinstance(value, str) else value
        for name, value in row.items()
    }
    return {"table": table, "row": values, "types": {name: types[name] for name in row}}
