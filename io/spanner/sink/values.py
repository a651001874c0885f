"""Values of the event model as Spanner's clients write them, and the table of versions. Pure.

Source: Cloud Spanner API, `TypeCode` (encodings of values).
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import msgspec

from penstock.event.column_types import ColumnType, Interval, Kind
from penstock.timestamps import format_timestamp

VERSIONS = "PenstockVersions"
VERSION_COLUMNS = ("TableName", "RowKey", "Version", "DeletedAt")

_DAY = 86_400 * 1_000_000_000


def spanner_value(type_: ColumnType, value: Any) -> Any:
    """Return a value in the form of the API.

    Raises:
        ValueError: Spanner has no type for it. The message shows no value.
    """
    if value is None:
        return None
    if type_.kind is Kind.ARRAY and type_.element is not None:
        return [spanner_value(type_.element, each) for each in value]
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if type_.kind is Kind.DATE:
        return format_timestamp(value * _DAY)[:10]
    if type_.kind is Kind.TIMESTAMP:
        return format_timestamp(value)
    # A bool is checked before `str` below makes "True" of it.
    if isinstance(value, bool | str | float):
        return value
    if isinstance(value, dict | list | Interval):
        raise ValueError(f"Spanner's tables have no type for {type_.kind}")
    # Spanner's JSON form has 64-bit integers and NUMERIC as texts, because a double would lose digits.
    return str(value)


def create_versions(tombstone_days: int) -> str:
    """Return the statement that creates the table of versions: one row for each row of the replica, and tombstones."""
    # `DeletedAt` is NULL for a row that exists, which the policy never removes.
    return (
        f"CREATE TABLE IF NOT EXISTS {VERSIONS} (TableName STRING(MAX) NOT NULL, RowKey STRING(MAX) NOT NULL, "
        "Version STRING(MAX) NOT NULL, DeletedAt TIMESTAMP) PRIMARY KEY (TableName, RowKey), "
        f"ROW DELETION POLICY (OLDER_THAN(DeletedAt, INTERVAL {tombstone_days} DAY))"
    )


def key_text(values: list[Any]) -> str:
    """Return a key in the form of `spanner_value` as one text: equal keys have equal texts."""
    return msgspec.json.encode(values).decode()
