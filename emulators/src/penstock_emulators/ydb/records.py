"""The records of a changefeed, in YDB's three formats. Pure.

A `Change` has its values as Python values: numbers, texts, bytes, None; of the types Json and JsonDocument the JSON
value itself; of Date days, of Datetime seconds, of Timestamp microseconds since 1970.

Sources: YDB documentation, "Change Data Capture" (Record structure); `change_record_cdc_serializer.cpp`:
`TYdbJsonSerializer`, `TDebeziumJsonSerializer`, `TDynamoDBStreamsJsonSerializer`.
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from penstock.compat import UTC

Row = Mapping[str, Any]

MODES = ("KEYS_ONLY", "UPDATES", "NEW_IMAGE", "OLD_IMAGE", "NEW_AND_OLD_IMAGES")
FORMATS = ("JSON", "DEBEZIUM_JSON", "DYNAMODB_STREAMS_JSON")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_AS_MICROSECONDS = {"Date": 86_400_000_000, "Datetime": 1_000_000, "Timestamp": 1}


@dataclass(frozen=True, slots=True)
class Table:
    """`columns`: type by name, in the order of the table."""

    path: str
    columns: Mapping[str, str]
    key: tuple[str, ...]
    schema_version: int = 1


@dataclass(frozen=True, slots=True)
class Changefeed:
    """The options of ADD CHANGEFEED."""

    name: str
    mode: str = "UPDATES"
    format: str = "JSON"
    virtual_timestamps: bool = False
    barrier_seconds: float = 0
    schema_changes: bool = False
    user_sids: bool = False
    aws_region: str = ""

    @property
    def new_image(self) -> bool:
        return self.mode in ("NEW_IMAGE", "NEW_AND_OLD_IMAGES")

    @property
    def old_image(self) -> bool:
        return self.mode in ("OLD_IMAGE", "NEW_AND_OLD_IMAGES")


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a row. `operation`: update, reset, erase or scan. `values`: the columns that were written."""

    operation: str
    key: tuple[Any, ...]
    values: Row
    before: Row | None
    after: Row | None
    step: int
    tx_id: int
    created_ms: int
    user: str = ""


def partition_key(table: Table, key: Sequence[Any]) -> bytes:
    """Return the compact JSON array of a key, of which the topic's partition is the MD5."""
    return _encoded([to_json(value, table.columns[name]) for name, value in zip(table.key, key, strict=True)])


def record(table: Table, feed: Changefeed, change: Change, shard: int, seq_no: int) -> tuple[bytes, bytes]:
    """Return the message key (empty: none) and the value of a change."""
    match feed.format:
        case "DEBEZIUM_JSON":
            return _debezium(table, feed, change)
        case "DYNAMODB_STREAMS_JSON":
            return b"", _dynamodb(table, feed, change, shard, seq_no)
    return b"", _json(table, feed, change)


def barrier(step: int, tx_id: int = 0) -> bytes:
    """Return a barrier."""
    return _encoded({"resolved": [step, tx_id]})


def schema_change(table: Table, step: int, tx_id: int) -> bytes:
    """Return the record of a new schema."""
    columns = {name: {"type": type_} for name, type_ in table.columns.items()}
    changed = {
        "schemaVersion": table.schema_version,
        "columns": columns,
        "primaryKeyColumnNames": list(table.key),
    }
    return _encoded({"tableChanges": [{"table": changed}], "ts": [step, tx_id]})


def _json(table: Table, feed: Changefeed, change: Change) -> bytes:
    made: dict[str, Any] = {"key": _key_values(table, change)}
    old, new = _images(feed, change)
    if old is not None:
        made["oldImage"] = _columns(table, old, with_key=False)
    if new is not None:
        made["newImage"] = _columns(table, new, with_key=False)
    shown = _columns(table, change.values, with_key=False) if feed.mode == "UPDATES" else {}
    if change.operation == "erase":
        made["erase"] = {}
    else:
        made["reset" if change.operation == "reset" else "update"] = shown
    if feed.virtual_timestamps:
        made["ts"] = [change.step, change.tx_id]
    if feed.user_sids and change.user:
        made["user"] = change.user
    return _encoded(made)


def _debezium(table: Table, feed: Changefeed, change: Change) -> tuple[bytes, bytes]:
    key = _columns(table, dict(zip(table.key, change.key, strict=True)), with_key=True)
    payload: dict[str, Any] = {}
    old, new = _images(feed, change)
    if old is not None:
        payload["before"] = _columns(table, old, with_key=False) | key
    if new is not None:
        payload["after"] = _columns(table, new, with_key=False) | key
    if change.operation == "scan":
        payload["op"] = "r"
    elif change.operation == "erase":
        payload["op"] = "d"
    else:
        payload["op"] = "c" if feed.mode == "NEW_AND_OLD_IMAGES" and old is None else "u"
    payload["source"] = {
        "version": "1.0.0",
        "connector": "ydb",
        "ts_ms": change.created_ms,
        "snapshot": change.operation == "scan",
        "step": change.step,
        "txId": change.tx_id,
    }
    return _encoded({"payload": key}), _encoded({"payload": payload})


def _dynamodb(table: Table, feed: Changefeed, change: Change, shard: int, seq_no: int) -> bytes:
    keys = _attributes(table, dict(zip(table.key, change.key, strict=True)))
    streams: dict[str, Any] = {
        "ApproximateCreationDateTime": change.created_ms,
        "SequenceNumber": f"{seq_no:021d}",
        "StreamViewType": "KEYS_ONLY" if feed.mode == "UPDATES" else feed.mode,
        "Keys": keys,
    }
    old, new = _images(feed, change)
    if old is not None:
        streams["OldImage"] = _attributes(table, old) | keys
    if new is not None:
        streams["NewImage"] = _attributes(table, new) | keys
    if change.operation == "erase":
        name = "REMOVE"
    else:
        name = "INSERT" if feed.mode == "NEW_AND_OLD_IMAGES" and old is None else "MODIFY"
    return _encoded(
        {
            "awsRegion": feed.aws_region,
            "dynamodb": streams,
            "eventID": f"{shard}-{seq_no}",
            "eventName": name,
            "eventSource": "ydb:document-table",
            "eventVersion": "1.0",
        }
    )


def _images(feed: Changefeed, change: Change) -> tuple[Row | None, Row | None]:
    """Return the old and the new image that the mode shows."""
    if change.operation == "scan":
        # A mode without a new image shows the row of the scan as the old one.
        if feed.new_image:
            return None, change.after
        return (change.after if feed.old_image else None), None
    return (change.before if feed.old_image else None), (change.after if feed.new_image else None)


def _key_values(table: Table, change: Change) -> list[Any]:
    return [to_json(value, table.columns[name]) for name, value in zip(table.key, change.key, strict=True)]


def _columns(table: Table, row: Row, *, with_key: bool) -> dict[str, Any]:
    names = [name for name in row if with_key or name not in table.key]
    return {name: to_json(row[name], table.columns[name]) for name in names}


def _attributes(table: Table, row: Row) -> dict[str, Any]:
    """Return the columns as DynamoDB's attribute values; NULL is left out, and so are types without one."""
    kinds = {"Bool": "BOOL", "DyNumber": "N", "String": "B", "Utf8": "S"}
    return {
        name: {kinds[table.columns[name]]: to_json(value, table.columns[name])}
        for name, value in row.items()
        if value is not None and table.columns[name] in kinds
    }


def to_json(value: Any, type_: str) -> Any:
    """Return the JSON value of a column, as `TJsonSerializer::ToJson` makes it."""
    if value is None:
        return None
    if type_ in _AS_MICROSECONDS:
        at = _EPOCH + timedelta(microseconds=value * _AS_MICROSECONDS[type_])
        return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    if type_ == "String":
        return b64encode(value).decode()
    if type_ in ("Float", "Double") and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value


def _encoded(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
