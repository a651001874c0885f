"""Replay the changes, read the tables with an ordinary client, and compare: both must give the same rows."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any

from penstock_emulators.oracle.change import Change, nanoseconds

Row = dict[str, Any]
"""A row by column name, each value in the form of `plain`."""


@dataclass
class Replica:
    """The tables after the changes: rows by table and key. `wrong` collects contradictions."""

    rows: dict[str, dict[str, Row]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def apply(self, change: Change) -> None:
        """Apply one change, and compare its old values with the values of the row."""
        table = self.rows.setdefault(change.table, {})
        before = table.get(change.key)
        if (before is None) != (change.mod_type in ("INSERT", "READ")):
            existing = "an existing row" if before else "no row"
            self.wrong.append(f"{change.table}: {change.place} is an {change.mod_type} of {existing}")
        elif before is not None and any(before.get(name) != value for name, value in change.old.items()):
            self.wrong.append(f"{change.table}: {change.place} has old values that the row did not have")
        if change.mod_type == "DELETE":
            table.pop(change.key, None)
        else:
            table[change.key] = {**(before or json.loads(change.key)), **change.new}


def replay(changes: Iterable[Change]) -> Replica:
    """Apply changes in the given order, which is the order of the files."""
    replica = Replica()
    for change in changes:
        replica.apply(change)
    return replica


def differences(
    replica: Replica, tables: Mapping[str, Mapping[str, Row]], types: Mapping[str, Mapping[str, str]]
) -> list[str]:
    """Return the differences between a replica and real tables, as sentences that name tables and columns, not values.

    `tables` are rows by table and key as `read_table` returns them, `types` the type names by table and column.
    """
    wrong = list(replica.wrong)
    for table in sorted(replica.rows.keys() | tables.keys()):
        ours, theirs = replica.rows.get(table, {}), tables.get(table, {})
        if lost := theirs.keys() - ours.keys():
            wrong.append(f"{table}: {len(lost)} of {len(theirs)} rows are missing from the replay")
        if extra := ours.keys() - theirs.keys():
            wrong.append(f"{table}: {len(extra)} rows of the replay are not in the table")
        wrong += _differing_columns(table, ours, theirs, types.get(table, {}))
    return wrong


def _differing_columns(
    table: str, ours: Mapping[str, Row], theirs: Mapping[str, Row], types: Mapping[str, str]
) -> list[str]:
    columns: dict[str, int] = {}
    for key in ours.keys() & theirs.keys():
        for column, value in theirs[key].items():
            if plain(types[column], ours[key].get(column)) != value:
                columns[column] = columns.get(column, 0) + 1
    return [f"{table}.{column} differs in {count} rows" for column, count in sorted(columns.items())]


def plain(kind: str, value: Any) -> Any:
    """Return a value of a Spanner type in one comparable form, from a change's JSON or from the client.

    `kind` is a name such as ``INT64`` or ``ARRAY<DATE>``. A change has INT64 and NUMERIC as strings, BYTES as
    base64, JSON as its text, times as RFC 3339; the client has Python objects, and base64 for BYTES.
    """
    if value is None:
        return None
    if kind.startswith("ARRAY<"):
        return [plain(kind[6:-1], each) for each in value]
    return _PLAIN.get(kind, lambda same: same)(value)


def _timestamp(value: Any) -> tuple[int, int]:
    """Return (second, nanosecond of the second), so that neither form loses digits of the other one."""
    if not isinstance(value, str):
        return round(value.replace(microsecond=0).timestamp()), value.nanosecond
    return divmod(nanoseconds(value), 1_000_000_000)


def _json(value: Any) -> Any:
    return json.loads(value if isinstance(value, str) else value.serialize())


_PLAIN: dict[str, Callable[[Any], Any]] = {
    "INT64": int,
    "NUMERIC": lambda value: Decimal(value).normalize(),
    "FLOAT64": float,
    "FLOAT32": float,
    "BYTES": lambda value: base64.b64decode(value),
    "DATE": lambda value: value if isinstance(value, date) else date.fromisoformat(value),
    "TIMESTAMP": _timestamp,
    "JSON": _json,
}


def read_types(database: Any) -> dict[str, dict[str, str]]:
    """Return the types of the columns of each table, without lengths: ``{"Orders": {"Id": "INT64"}}``."""
    query = (
        "SELECT table_name, column_name, spanner_type FROM information_schema.columns WHERE table_schema = ''"
    )
    types: dict[str, dict[str, str]] = {}
    with database.snapshot() as snapshot:
        for table, column, kind in snapshot.execute_sql(query):
            types.setdefault(table, {})[column] = _without_length(kind)
    return types


def read_table(database: Any, table: str, types: Mapping[str, str], key: Iterable[str]) -> dict[str, Row]:
    """Read a table with an ordinary client; rows by key, in the form that `Replica` uses."""
    columns = list(types)
    with database.snapshot() as snapshot:
        found = snapshot.read(table, columns, _all_keys())
        rows = [dict(zip(columns, row, strict=True)) for row in found]
    names = list(key)
    return {
        _key_text({name: row[name] for name in names}): {
            name: plain(types[name], row[name]) for name in columns
        }
        for row in rows
    }


def _key_text(key: Row) -> str:
    return json.dumps(
        {name: str(value) if isinstance(value, int) else value for name, value in key.items()}, sort_keys=True
    )


def _without_length(kind: str) -> str:
    name, bracket, rest = kind.partition("(")
    return name + rest[rest.index(")") + 1 :] if bracket else kind


def _all_keys() -> Any:
    from google.cloud.spanner import KeySet

    return KeySet(all_=True)
