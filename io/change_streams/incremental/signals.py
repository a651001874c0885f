"""Requests for snapshots, in the layout of Debezium's signals. Pure.

    parse_signal("1", "execute-snapshot", '{"data-collections": ["public.orders"]}')

A signal has an id, a type and JSON data. The types are `execute-snapshot`, `stop-snapshot`, `pause-snapshot` and
`resume-snapshot`. Names in `data-collections` are regular expressions that must match a whole ``schema.table``.

Source: Debezium documentation, "Sending signals to a Debezium connector". `chunk-size` and `keys` are additions of
Penstock.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

MAX_ROWS_IN_CHUNK = 1_000_000
MAX_KEYS = 10_000
"""Maximum number of keys in a signal: each position in the checkpoint has those that are not read yet."""

_encode = msgspec.json.Encoder().encode


class SignalError(ValueError):
    """A signal is malformed. It is reported and then ignored."""


@dataclass(frozen=True, slots=True)
class ExecuteSnapshot:
    """Read the tables that match one of `tables`.

    Args:
        conditions: pairs of a table pattern and an SQL condition that rows must satisfy.
        surrogate_key: columns to order the chunks by, in place of the primary key.
        chunk_rows: rows in a chunk; 0: the source's default.
        keys: JSON texts of primary keys in the form of the source: only rows with these keys are read. Empty: all rows.
    """

    id: str
    tables: tuple[str, ...]
    conditions: tuple[tuple[str, str], ...] = ()
    surrogate_key: tuple[str, ...] = ()
    chunk_rows: int = 0
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StopSnapshot:
    """Stop reading the tables that match one of `tables`; without any, all tables."""

    id: str
    tables: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PauseSnapshot:
    """Read no further chunk until a `ResumeSnapshot` comes, also after a restart."""

    id: str


@dataclass(frozen=True, slots=True)
class ResumeSnapshot:
    """Continue paused snapshots."""

    id: str


Signal = ExecuteSnapshot | StopSnapshot | PauseSnapshot | ResumeSnapshot


def parse_signal(id_: str, type_: str, data: str | Mapping[str, Any] | None) -> Signal:
    """Return the signal. `data` is JSON, as text or parsed.

    Raises:
        SignalError: the type is unknown or the data is malformed; the message says what is expected.
    """
    fields = _fields(data)
    # Debezium also has the type "blocking", for which the stream would have to stop.
    if str(fields.get("type") or "incremental").lower() != "incremental":
        raise SignalError(
            'the only type of snapshot is "incremental": remove "type" from the data of the signal'
        )
    match type_:
        case "execute-snapshot":
            tables = _patterns(fields.get("data-collections"))
            if not tables:
                raise SignalError(
                    'execute-snapshot needs the tables to read: {"data-collections": ["public.orders"]}'
                )
            return ExecuteSnapshot(
                id_, tables, _conditions(fields), _names(fields), _chunk_rows(fields), _keys(fields, tables)
            )
        case "stop-snapshot":
            return StopSnapshot(id_, _patterns(fields.get("data-collections")))
        case "pause-snapshot":
            return PauseSnapshot(id_)
        case "resume-snapshot":
            return ResumeSnapshot(id_)
        case _:
            raise SignalError(
                f"unknown type {type_!r}: use execute-snapshot, stop-snapshot, pause-snapshot or resume-snapshot"
            )


def parse_signal_line(line: str, default_id: str) -> Signal:
    """Return the signal of one line of JSON: an object with `type`, `data` and, optionally, `id`.

    Raises:
        SignalError: the line is malformed.
    """
    fields = _fields(line)
    return parse_signal(
        str(fields.get("id") or default_id), str(fields.get("type") or ""), fields.get("data")
    )


def matches(patterns: Sequence[str], table: str) -> bool:
    """Return whether a pattern matches the whole name of a table."""
    return any(re.fullmatch(pattern, table) for pattern in patterns)


def _fields(data: str | Mapping[str, Any] | None) -> Mapping[str, Any]:
    if isinstance(data, str):
        try:
            data = json.loads(data or "{}")
        except ValueError:
            raise SignalError("the data of a signal must be a JSON object") from None
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        raise SignalError("the data of a signal must be a JSON object")
    return data


def _patterns(names: Any) -> tuple[str, ...]:
    if names is None:
        return ()
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise SignalError('data-collections must be a list of names, such as ["public.orders"]')
    # Debezium's names may be quoted like SQL identifiers; a quotation mark is never part of a usable pattern.
    patterns = tuple(dict.fromkeys(name.replace('"', "") for name in names))
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise SignalError(f"data-collections: {pattern!r} is not a regular expression: {error}") from None
    return patterns


def _conditions(fields: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    found = fields.get("additional-conditions") or []
    try:
        return tuple((_patterns([each["data-collection"]])[0], str(each["filter"])) for each in found)
    except (KeyError, TypeError):
        raise SignalError(
            'additional-conditions must be a list of {"data-collection": "public.orders", "filter": "total > 10"}'
        ) from None


def _names(fields: Mapping[str, Any]) -> tuple[str, ...]:
    text = fields.get("surrogate-key") or ""
    if not isinstance(text, str):
        raise SignalError("surrogate-key must be the name of a column, or several separated by commas")
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _chunk_rows(fields: Mapping[str, Any]) -> int:
    size = fields.get("chunk-size") or 0
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= MAX_ROWS_IN_CHUNK:
        raise SignalError(f"chunk-size must be a whole number from 1 to {MAX_ROWS_IN_CHUNK:,}")
    return size


def _keys(fields: Mapping[str, Any], tables: Sequence[str]) -> tuple[str, ...]:
    if "keys" not in fields:
        return ()
    keys = fields["keys"]
    # An empty list must not mean the whole table.
    if not isinstance(keys, list) or not 0 < len(keys) <= MAX_KEYS or not all(map(_is_key, keys)):
        raise SignalError(
            f"keys must be a list of 1 to {MAX_KEYS:,} keys: lists of the values of the primary key as texts "
            '(PostgreSQL: [["17"], ["4"]]), or objects of them (Spanner: [{"Id": "17"}])'
        )
    if len(tables) != 1:
        raise SignalError("keys need exactly one table in data-collections")
    return tuple(dict.fromkeys(_encode(key).decode() for key in keys))


def _is_key(key: Any) -> bool:
    values = key.values() if isinstance(key, dict) else key
    return (
        isinstance(key, list | dict)
        and bool(key)
        and not any(isinstance(value, list | dict) for value in values)
    )
