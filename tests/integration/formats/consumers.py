"""One small consumer for each format. It knows the format's documentation and the types of its table, nothing else.

Each takes the parsed lines of files in their order, and returns the rows that remain: by table, then by key. Values
have the form of `penstock_emulators.oracle.replay.plain`, which the rows of the real tables have too. Two records with
one identity raise an AssertionError.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Iterable
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

from penstock_emulators.oracle.change import nanoseconds
from penstock_emulators.oracle.lines import Line

Row = dict[str, Any]
Tables = dict[str, dict[int, Row]]
Types = dict[str, str]
Decode = Callable[[str, Any], Any]


class Replica:
    """Rows by table and key, and the identities of the records that were applied."""

    def __init__(self) -> None:
        self.tables: Tables = {}
        self._seen: set[Any] = set()

    def first(self, identity: Any) -> None:
        assert identity not in self._seen, "a record came twice"
        self._seen.add(identity)

    def put(self, table: str, key: int, row: Row, *, partial: bool = False) -> None:
        rows = self.tables.setdefault(table, {})
        rows[key] = {**rows.get(key, {}), **row} if partial else row

    def remove(self, table: str, key: int) -> None:
        assert self.tables.get(table, {}).pop(key, None) is not None, "a row was removed that was not there"


def _values(decode: Decode, types: Types, image: Row) -> Row:
    return {
        name: None if value is None else decode(types[name], value)
        for name, value in image.items()
        if name != "Id"
    }


def _array(kind: str, values: Any, decode: Decode) -> list[Any]:
    return [None if value is None else decode(kind[6:-1], value) for value in values]


def _time(text: str) -> tuple[int, int]:
    return divmod(nanoseconds(text), 1_000_000_000)


def _value_of_text(kind: str, value: Any) -> Any:
    """Return a value that a format writes as a text which is not the value itself; others as they are."""
    match kind:
        case "NUMERIC":
            return Decimal(value).normalize()
        case "DATE":
            return date.fromisoformat(value)
        case "TIMESTAMP":
            return _time(value)
        case "BYTES":
            return b64decode(value)
        case "JSON":
            return json.loads(value)
    return value


# Debezium JSON, with `decimal_handling_mode=precise` and `time_precision_mode=adaptive`.


def debezium(lines: Iterable[Line], types: Types) -> Tables:
    """Apply values, with or without schemas; an update without all columns keeps the others."""
    replica = Replica()
    for line in lines:
        _apply_debezium(replica, line.content.get("payload", line.content), types)
    return replica.tables


def debezium_messages(lines: Iterable[Line], types: Types) -> Tables:
    """Apply keys, values and tombstones as a compacted topic of Kafka does: the last record of a key counts."""
    replica, last = Replica(), dict[tuple[str, int], Any]()
    for line in lines:
        key, value = line.content["key"], line.content["value"]
        key = key.get("payload", key)["Id"]
        if value is not None:
            payload = value.get("payload", value)
            _apply_debezium(replica, payload, types)
            assert payload["op"] == "d" or payload["after"]["Id"] == key
        last[line.table, key] = value
    for (table, key), value in last.items():
        assert (value is None) == (key not in replica.tables.get(table, {})), (
            "a tombstone for each deleted key"
        )
    return replica.tables


def _apply_debezium(replica: Replica, payload: Row, types: Types) -> None:
    source = payload["source"]
    names = ("server_transaction_id", "sequence", "mod_number", "table")
    replica.first((source["ts_ns"], payload["op"], *(source[name] for name in names)))
    before, after = payload["before"], payload["after"]
    if payload["op"] == "d":
        replica.remove(source["table"], before["Id"])
        return
    placeholder = "__debezium_unavailable_value"
    encoded = "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="
    sent = {name: value for name, value in after.items() if value not in (placeholder, encoded)}
    replica.put(
        source["table"], after["Id"], _values(_debezium_value, types, sent), partial=payload["op"] == "u"
    )


def _debezium_value(kind: str, value: Any) -> Any:
    if kind.startswith("ARRAY<"):
        return _array(kind, value, _debezium_value)
    match kind:
        case "NUMERIC":  # a Connect Decimal of scale 9
            unscaled = int.from_bytes(b64decode(value), "big", signed=True)
            return Decimal(unscaled).scaleb(-9).normalize()
        case "DATE":
            return date(1970, 1, 1) + timedelta(days=value)
    return _value_of_text(kind, value)


# YDB changefeeds.


def ydb(lines: Iterable[Line], types: Types) -> Tables:
    """Apply updates and images; barriers are checked by `earlier_than_a_barrier`."""
    replica = Replica()
    for line in lines:
        record = line.content
        if "resolved" not in record:
            (key,) = record["key"]
            replica.first((line.table, key, *record["ts"]))
            if "erase" in record:
                replica.remove(line.table, key)
            elif "newImage" in record:
                replica.put(line.table, key, _values(_ydb_value, types, record["newImage"]))
            else:
                replica.put(line.table, key, _values(_ydb_value, types, record["update"]), partial=True)
    return replica.tables


def ydb_debezium(lines: Iterable[Line], types: Types) -> Tables:
    """Apply YDB's own Debezium flavour, whose images include the key."""
    replica = Replica()
    for line in lines:
        payload = line.content["payload"]
        source, before, after = payload["source"], payload.get("before"), payload.get("after")
        key = (after or before)["Id"]
        replica.first((line.table, key, source["step"], source["txId"]))
        if payload["op"] == "d":
            replica.remove(line.table, key)
        else:
            replica.put(line.table, key, _values(_ydb_value, types, after))
    return replica.tables


def earlier_than_a_barrier(lines: Iterable[Line]) -> list[str]:
    """Return the places of records that follow a barrier with a later virtual timestamp in their partition."""
    resolved: dict[tuple[str, str], list[int]] = {}
    wrong = []
    for line in lines:
        partition = (line.table, line.shard)
        reached = resolved.get(partition, [0, 0])
        if "resolved" in line.content:
            if line.content["resolved"] <= reached:
                wrong.append(f"{line.place}: a barrier that is not later than the one before it")
            resolved[partition] = line.content["resolved"]
        elif line.content["ts"] < reached:
            wrong.append(f"{line.place}: a record behind its barrier")
    return wrong


def _ydb_value(kind: str, value: Any) -> Any:
    if kind.startswith("ARRAY<"):
        return _array(kind, value, _ydb_value)
    match kind:
        case "NUMERIC":
            return Decimal(value).normalize()
        case "DATE":
            return date.fromisoformat(value[:10])
        case "TIMESTAMP":
            return _time(value)
        case "BYTES":
            return b64decode(value)
    return value


# Rows of a change feed.


def change_feed(lines: Iterable[Line], types: Types) -> Tables:
    """Apply the new rows; a column that was not sent keeps its value."""
    replica = Replica()
    for line in lines:
        row = dict(line.content)
        kind, version, _, not_sent = (
            row.pop(f"_{name}") for name in ("change_type", "commit_version", "commit_timestamp", "not_sent")
        )
        key = row["Id"]
        replica.first((line.table, key, version, kind))
        if kind == "delete":
            replica.remove(line.table, key)
        elif kind == "update_preimage":
            assert key in replica.tables[line.table], "the old row of a row that was not there"
        else:
            sent = {name: value for name, value in row.items() if name not in not_sent}
            partial = kind == "update_postimage"
            replica.put(line.table, key, _values(_feed_value, types, sent), partial=partial)
    return replica.tables


def _feed_value(kind: str, value: Any) -> Any:
    if kind.startswith("ARRAY<"):
        return _array(kind, value, _feed_value)
    return float(value) if kind == "FLOAT64" else _value_of_text(kind, value)


# DynamoDB Streams.


def dynamodb(lines: Iterable[Line], types: Types) -> Tables:
    """Apply the images of the records, as a Lambda function gets them."""
    replica = Replica()
    for line in lines:
        record = line.content
        replica.first(record["eventID"])
        change = record["dynamodb"]
        key = int(change["Keys"]["Id"]["N"])
        if record["eventName"] == "REMOVE":
            replica.remove(line.table, key)
        else:
            image = {name: None if "NULL" in each else each for name, each in change["NewImage"].items()}
            replica.put(line.table, key, _values(_attribute, types, image))
    return replica.tables


def _attribute(kind: str, attribute: dict[str, Any]) -> Any:
    ((_, held),) = attribute.items()
    if kind.startswith("ARRAY<"):
        return [None if "NULL" in each else _attribute(kind[6:-1], each) for each in held]
    numbers = {"INT64": int, "FLOAT64": float}
    return numbers[kind](held) if kind in numbers else _value_of_text(kind, held)


# CloudEvents around YDB records.


def cloudevents(lines: Iterable[Line], types: Types) -> Tables:
    """Apply the data, after a look at the attributes that every CloudEvent has."""
    found, seen = [], set()
    for line in lines:
        event = line.content
        assert event["specversion"] == "1.0"
        assert (event["source"], event["id"]) not in seen
        seen.add((event["source"], event["id"]))
        assert event["source"].endswith(f"/{line.table}")
        found.append(Line(line.table, line.hour, line.shard, line.place, event["data"]))
    return ydb(found, types)


# Google's templates: rows of the changelog table of Spanner.


def bigquery(lines: Iterable[Line], types: Types) -> Tables:
    """Apply the rows in the order of the files; columns that were not sent are absent."""
    replica, prefix = Replica(), "_metadata_spanner_"
    for line in lines:
        row = {name: each for name, each in line.content.items() if not name.startswith(prefix)}
        about = {name.removeprefix(prefix): each for name, each in line.content.items() if name not in row}
        replica.first((about["server_transaction_id"], about["record_sequence"], line.table, row["Id"]))
        if about["mod_type"] == "DELETE":
            replica.remove(line.table, row["Id"])
        else:
            partial = about["mod_type"] == "UPDATE"
            replica.put(line.table, row["Id"], _values(_bigquery_value, types, row), partial=partial)
    return replica.tables


def _bigquery_value(kind: str, value: Any) -> Any:
    if kind.startswith("ARRAY<"):
        return _array(kind, value, _bigquery_value)
    return _value_of_text(kind, value)
