"""The chunks of an incremental snapshot: cursors, keys and statements. Pure.

Without a condition or a surrogate key, a chunk is a plain read of the key range after the cursor: the service sorts it
by the primary key. Otherwise it is a query, ordered by the surrogate key and then by the primary key. So rows with
equal or NULL surrogate values have a place too, and no chunk has to end with all rows of one value.

The comparison with the cursor is written out column by column, because neither dialect compares rows with NULLs in
the order of ORDER BY. GoogleSQL puts NULLs first, PostgreSQL last. In GoogleSQL, NaN is the lowest value after NULL and
no comparison with it is true.

Source: Cloud Spanner documentation, "Query syntax in GoogleSQL" (ORDER BY), "PostgreSQL query syntax", "Floating point
types".
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from penstock.errors import SetupError
from penstock.io.change_streams.incremental.engine import ChunkRequest, ChunkRow
from penstock.io.spanner.initial_scan.frontier import KeyRange, Table
from penstock.io.spanner.record import DataChangeRecord, Mod, Mods

MAX_KEYS_IN_QUERY = 100
"""Rows that one query reads by their keys: the service limits the parameters of a query to 950."""

_parsed = msgspec.json.Decoder().decode


class SnapshotRow(NamedTuple):
    """A row on its way to a record. `template`: a record of its table and read time, with other rows."""

    template: DataChangeRecord
    mod: Mod


class Statement(NamedTuple):
    """A query and its parameters, as JSON values by name."""

    sql: str
    params: dict[str, Any]


def key_of(keys: str) -> tuple[Any, ...]:
    """Return the key of a mod, from a chunk or from the change stream, so that equal keys are equal."""
    values = _parsed(keys)
    if len(values) < 2:
        return tuple(values.values())
    # Sorted by name: the order of the columns in the two texts may differ.
    return tuple(value for _, value in sorted(values.items()))


def is_query(request: ChunkRequest) -> bool:
    """Whether the chunk needs a query."""
    # Only a query can filter, and order by another key.
    return bool(request.condition or request.surrogate_key)


def key_range(table: Table, request: ChunkRequest) -> KeyRange:
    """Return the rest of a table after the cursor of a plain read."""
    return KeyRange(0).after(key_values(table, request.cursor)) if request.cursor else KeyRange(0)


def key_values(table: Table, keys: str) -> str:
    """Return the key of a mod as a JSON array in the order of the primary key.

    Raises:
        SetupError: it does not have the columns of the primary key.
    """
    values = _parsed(keys)
    try:
        return json.dumps([values[name] for name in table.columns[: table.key_size]])
    except (KeyError, TypeError):
        # Keys of a signal, which a person may have written.
        names = ", ".join(table.columns[: table.key_size])
        raise SetupError(
            f"table {table.name}: a key in a signal must be an object with the columns {names}"
        ) from None


def chunk_rows(record: DataChangeRecord, order: Sequence[str] = ()) -> list[ChunkRow]:
    """Return the rows of a record. `order`: the columns that a query orders by; none: a plain read."""
    if not order:
        return [
            ChunkRow(key_of(mod.keys), mod.keys, mod.keys, SnapshotRow(record, mod)) for mod in record.mods
        ]
    rows = []
    codes = {column.name: column.code for column in record.column_types}
    ordered = [list(order), [codes[name] for name in order]]
    for mod in record.mods:
        values = {**_parsed(mod.keys), **_parsed(mod.new_values)}
        cursor = json.dumps([*ordered, [values[name] for name in order]])
        rows.append(ChunkRow(key_of(mod.keys), cursor, mod.keys, SnapshotRow(record, mod)))
    return rows


def order_of(table: Table, request: ChunkRequest) -> list[str]:
    """Return the columns that a query orders by.

    Raises:
        SetupError: the change stream does not watch a column of the surrogate key.
    """
    for name in request.surrogate_key:
        if name not in table.columns:
            raise SetupError(
                f"table {table.name} has no watched column {name!r}: the surrogate key must consist of columns that "
                "the change stream watches"
            )
    # A column may be in both keys; ORDER BY has it once.
    return list(dict.fromkeys([*request.surrogate_key, *table.columns[: table.key_size]]))


class ChunkQuery:
    """The statements of one chunk in one dialect."""

    def __init__(self, table: Table, request: ChunkRequest, *, postgresql: bool) -> None:
        self._table, self._request, self._postgresql = table, request, postgresql
        self.order = order_of(table, request)
        self._after: list[Any] | None = None
        self.restarted = False
        self._codes: dict[str, str] = {}
        if request.cursor:
            order, codes, after = json.loads(request.cursor)
            self._codes = dict(zip(order, codes, strict=True))
            # If the key columns have changed, the old cursor is meaningless.
            self.restarted = order != self.order
            self._after = None if self.restarted else after
        self._params: dict[str, Any] = {}

    def rows_after(self) -> Statement:
        """Return the query for the rows after the cursor."""
        conditions = [] if self._after is None else [self._greater(self._after)]
        ordered = ", ".join(map(self._quoted, self.order))
        return self._select(conditions, f" ORDER BY {ordered} LIMIT {self._request.size}")

    def rows_of_keys(self, keys: Sequence[str]) -> Statement:
        """Return the query for the rows with some of the request's keys."""
        names = self._table.columns[: self._table.key_size]
        rows = [
            " AND ".join(self._equal(name, value) for name, value in zip(names, key, strict=True)) or "TRUE"
            for key in (json.loads(key_values(self._table, each)) for each in keys)
        ]
        return self._select(["(" + " OR ".join(f"({row})" for row in rows) + ")"], "")

    def _select(self, conditions: list[str], ending: str) -> Statement:
        if self._request.condition:
            conditions = [*conditions, f"({self._request.condition})"]
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        columns = ", ".join(map(self._quoted, self._table.columns))
        table = ".".join(map(self._quoted, self._table.name.split(".")))
        params, self._params = self._params, {}
        return Statement(f"SELECT {columns} FROM {table}{where}{ending}", params)

    def _greater(self, values: Sequence[Any]) -> str:
        """Return the condition for rows after `values` in the order of the query."""
        alternatives = []
        # Row comparison written out: equal in the first columns, and after in the next one.
        for last, (name, value) in enumerate(zip(self.order, values, strict=True)):
            after = self._after_value(name, value)
            if after is not None:
                equal = [self._equal(*each) for each in list(zip(self.order, values, strict=True))[:last]]
                alternatives.append(" AND ".join([*equal, after]))
        return "(" + (" OR ".join(f"({each})" for each in alternatives) or "FALSE") + ")"

    def _after_value(self, name: str, value: Any) -> str | None:
        """Return the condition for values after `value`; None: there are none."""
        column = self._quoted(name)
        if self._postgresql:
            # PostgreSQL has NULLs last, so they follow every value.
            return None if value is None else f"({column} > {self._param(value)} OR {column} IS NULL)"
        if value is None:
            # GoogleSQL has NULLs first, so every value follows them.
            return f"{column} IS NOT NULL"
        if self._is_nan(name, value):
            # NaN is the lowest value after NULL.
            return f"NOT IS_NAN({column})"
        return f"{column} > {self._param(value)}"

    def _equal(self, name: str, value: Any) -> str:
        column = self._quoted(name)
        if value is None:
            return f"{column} IS NULL"
        if not self._postgresql and self._is_nan(name, value):
            return f"IS_NAN({column})"
        return f"{column} = {self._param(value)}"

    def _is_nan(self, name: str, value: Any) -> bool:
        return value == "NaN" and self._codes.get(name) in ("FLOAT32", "FLOAT64")

    def _param(self, value: Any) -> str:
        # No declared type: the service takes the type of the column with which a parameter is compared.
        number = len(self._params) + 1
        self._params[f"p{number}"] = value
        return f"${number}" if self._postgresql else f"@p{number}"

    def _quoted(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"' if self._postgresql else f"`{name}`"


def records(rows: Sequence[SnapshotRow]) -> list[DataChangeRecord]:
    """Return records for rows in their order: one for each run of rows of one table and read time."""
    found: list[DataChangeRecord] = []
    texts: list[str] = []
    template: DataChangeRecord | None = None
    for each, mod in rows:
        if template is not None and not _alike(template, each):
            found.append(_record(template, texts))
            texts = []
        template = each
        texts += mod
    if template is not None:
        found.append(_record(template, texts))
    return found


def _alike(one: DataChangeRecord, other: DataChangeRecord) -> bool:
    return one is other or (
        one.commit_timestamp == other.commit_timestamp
        and one.table_name == other.table_name
        and one.column_types == other.column_types
    )


def _record(template: DataChangeRecord, texts: Sequence[str]) -> DataChangeRecord:
    return replace(template, mods=Mods(tuple(texts)))
