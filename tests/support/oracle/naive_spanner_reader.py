"""The simplest reader of a change stream that can be right: one thread, all in memory, the ordinary client.

It reads all partitions, in any order, and sorts all changes at the end. It knows both dialects and partition modes.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import Any, NamedTuple

from google.cloud.spanner_v1 import param_types
from google.cloud.spanner_v1.types import ChangeStreamRecord
from google.protobuf.json_format import MessageToDict

_WINDOW = 20 * 60 * 10**9  # ns; a query of a MUTABLE_KEY_RANGE stream may take thirty minutes
_TYPES = {"p1": param_types.TIMESTAMP, "p2": param_types.TIMESTAMP, "p3": param_types.STRING}
_FIELDS = ("commit_timestamp", "record_sequence", "server_transaction_id", "last", "table", "columns", "mods")
_SIDES = ("keys", "new_values", "old_values")


class Change(NamedTuple):
    """One mod, sides as JSON with sorted names. Its order is that of commits; timestamps are in ns."""

    timestamp: int
    sequence: str
    transaction: str
    index: int
    table: str
    mod_type: str
    sides: tuple[str, ...]


def read_changes(database: Any, functions: Sequence[str], start: int, end: int) -> list[Change]:
    """Return all changes from `start` to `end` (ns, both inclusive) in commit order; `functions` read them."""
    changes: list[Change] = []
    for function in functions:
        waiting, known = [(None, start)], set()
        while waiting:
            token, since = waiting.pop()
            for record in _partition(database, function, token, since, end):
                changes += _changes(record.get("data_change_record"))
                new = [(each, at) for each, at in _announced(record) if each not in known and at <= end]
                known |= {each for each, _ in new}
                waiting += new
    return sorted(changes)


def _partition(database: Any, function: str, token: str | None, start: int, end: int) -> Iterator[Any]:
    while start <= end:
        until = min(end, start + _WINDOW)
        for record in _query(database, function, token, start, until):
            yield record
            if token and ("partition_end_record" in record or "child_partitions_record" in record):
                return
        if token is None:
            return
        start = until + 1


def _query(database: Any, function: str, token: str | None, start: int, end: int) -> Iterator[Any]:
    sql = f"SELECT ChangeRecord FROM {function}(@p1, @p2, @p3, 10000, NULL)"
    if function.startswith("read_"):
        sql = f'SELECT * FROM "spanner"."{function}"($1, $2, $3, 10000, null)'
    values = {"p1": _rfc3339(start), "p2": _rfc3339(end), "p3": token}
    with database.snapshot() as snapshot:
        for (value,) in snapshot.execute_sql(sql, params=values, param_types=_TYPES):
            # The client decodes PROTO columns, but leaves BYTES in base64.
            yield from _records(base64.b64decode(value) if function.startswith("read_proto") else value)


def _records(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, bytes):  # MUTABLE_KEY_RANGE
        message = ChangeStreamRecord.pb(ChangeStreamRecord.deserialize(value))
        yield MessageToDict(message, preserving_proto_field_name=True)
    elif isinstance(value, dict):  # PostgreSQL
        yield dict(value)
    else:
        for data, heartbeats, children in value:
            for each in data:
                mods = [dict(zip(_SIDES, map(dict, mod), strict=True)) for mod in each[6]]
                named = dict(zip(_FIELDS, each, strict=False)) | {"mods": mods, "mod_type": each[7]}
                yield {"data_change_record": named}
            yield from ({"heartbeat_record": each} for each in heartbeats)
            for at, _, partitions in children:
                tokens = [{"token": token} for token, _ in partitions]
                yield {"child_partitions_record": {"start_timestamp": at, "child_partitions": tokens}}


def _announced(record: dict[str, Any]) -> list[tuple[str, int]]:
    found = record.get("child_partitions_record") or record.get("partition_start_record") or {}
    tokens = [each["token"] for each in found.get("child_partitions", ())] + found.get("partition_tokens", [])
    return [(token, _moment(found["start_timestamp"])) for token in tokens]


def _changes(data: Any) -> Iterator[Change]:
    names = [each["name"] for each in (data or {}).get("column_metadata", ())]
    for index, mod in enumerate(data["mods"] if data else ()):
        sides = [mod.get(side, {}) for side in _SIDES]
        if names:  # MUTABLE_KEY_RANGE: values refer to columns by index
            sides = [
                {names[v.get("column_metadata_index", 0)]: v.get("value") for v in side} for side in sides
            ]
        place = (_moment(data["commit_timestamp"]), data["record_sequence"], data["server_transaction_id"])
        table = data.get("table_name") or data["table"]
        yield Change(
            *place, index, table, data["mod_type"], tuple(json.dumps(s, sort_keys=True) for s in sides)
        )


def _moment(value: Any) -> int:
    text = value.rfc3339() if hasattr(value, "rfc3339") else value.replace("+00:00", "Z")
    whole, _, fraction = text.rstrip("Z").partition(".")
    return round(datetime.fromisoformat(whole + "Z").timestamp()) * 10**9 + int(fraction.ljust(9, "0") or 0)


def _rfc3339(moment: int) -> str:
    return f"{datetime.fromtimestamp(moment // 10**9, timezone.utc):%Y-%m-%dT%H:%M:%S}.{moment % 10**9:09d}Z"
