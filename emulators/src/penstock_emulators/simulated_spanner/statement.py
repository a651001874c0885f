"""SELECT, INSERT, UPDATE and DELETE on one table: as much SQL as it takes to look at tables and to write rows.

Not supported: joins, subqueries, grouping, aggregates but COUNT(*), and most functions. Change stream queries
are in `change_query`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from penstock_emulators.simulated_spanner.column_type import ColumnType
from penstock_emulators.simulated_spanner.errors import invalid, unimplemented
from penstock_emulators.simulated_spanner.expression import (
    INT64,
    Evaluate,
    Scope,
    Typed,
    is_true,
    parse_expression,
)
from penstock_emulators.simulated_spanner.information_schema import view_columns, view_rows
from penstock_emulators.simulated_spanner.key_set import KeySet
from penstock_emulators.simulated_spanner.mutation import (
    INSERT,
    UPDATE,
    UPSERT,
    Delete,
    Mutation,
    Write,
)
from penstock_emulators.simulated_spanner.rows import Row, SortKey, order_of
from penstock_emulators.simulated_spanner.schema import Schema, Table, find
from penstock_emulators.simulated_spanner.tokens import Reader, tokenize
from penstock_emulators.simulated_spanner.value import Value, canonical, sort_key


class View(Protocol):
    """The source of a statement's rows: the database at a moment, or a transaction."""

    def row(self, table: Table, order: SortKey) -> Row | None:
        """Return one row."""

    def scan(self, table: Table) -> Iterable[tuple[SortKey, Row]]:
        """Return all rows in key order."""


@dataclass(slots=True)
class Result:
    """Rows of a query, or the mutations of a DML statement and how many rows they concern."""

    columns: list[tuple[str, ColumnType]] = field(default_factory=list)
    rows: list[list[Value]] = field(default_factory=list)
    mutations: list[Mutation] | None = None
    row_count: int = 0


def execute(schema: Schema, sql: str, params: Mapping[str, Typed], view: View, now: str = "") -> Result:
    """Execute a statement on a view; DML returns mutations and changes nothing.

    `now` is the present moment in RFC 3339.

    Raises:
        ServiceError: a syntax error, or something that is not supported.
    """
    reader = Reader(tokenize(sql, schema.dialect), schema.dialect)
    while reader.accept("@ {"):  # a statement hint
        while not reader.accept("}"):
            reader.take()
    if reader.accept("SELECT"):
        return _select(schema, reader, params, view, now)
    if reader.accept("INSERT"):
        return _insert(schema, reader, params)
    if reader.accept("UPDATE"):
        return _update(schema, reader, params, view)
    if reader.accept("DELETE"):
        return _delete(schema, reader, params, view)
    raise unimplemented(f"The statement {reader.next.text}.")


def _select(schema: Schema, reader: Reader, params: Mapping[str, Typed], view: View, now: str) -> Result:
    # The columns of the SELECT list are known only after FROM, so the list is parsed at the end.
    items_at = reader.position
    _skip_to(reader, "FROM")
    if not reader.accept("FROM"):
        scope = Scope({}, (), params, {}, now)
        return _projected(reader, scope, items_at, [{}])
    name = reader.path()
    alias = _alias(reader)
    scope, rows = _source(schema, name, alias, params, view, reader)
    scope.now = now
    if reader.accept("ORDER BY"):
        rows = _ordered(reader, scope, rows)
    if reader.accept("LIMIT"):
        rows = rows[: int(parse_expression(reader, scope)({})[0])]
    reader.finish()
    return _projected(reader, scope, items_at, rows)


def _skip_to(reader: Reader, word: str) -> None:
    while reader.next.kind != "end" and not reader.at_words(word):
        reader.take()


def _alias(reader: Reader) -> str:
    if reader.accept("AS"):
        return reader.identifier()
    if reader.next.kind in ("word", "name") and reader.next.text.upper() not in (
        "WHERE",
        "ORDER",
        "LIMIT",
        "SET",
    ):
        if reader.next.text.upper() in ("JOIN", "LEFT", "INNER", "CROSS", "GROUP", "UNION"):
            raise unimplemented(f"{reader.next.text.upper()}.")
        return reader.identifier()
    return ""


def _source(
    schema: Schema, name: str, alias: str, params: Mapping[str, Typed], view: View, reader: Reader
) -> tuple[Scope, list[Row]]:
    """Read WHERE and return the rows for which it holds."""
    parts = name.lower().split(".")
    if parts[0] == "information_schema" and len(parts) == 2:
        view_kinds = view_columns(schema.dialect, parts[1])
        if view_kinds is None:
            raise unimplemented(f"{name}.")
        scope = Scope(view_kinds, (alias or parts[1], parts[1]), params, {})
        where = parse_expression(reader, scope) if reader.accept("WHERE") else None
        found: Iterable[Row] = view_rows(schema, parts[1])
    else:
        if find(schema.tables, name) is None:
            raise invalid(f"Table not found: {name}")  # reads of a table say NOT_FOUND
        table = schema.table(name)
        columns = {each.name: each.kind for each in table.columns}
        scope = Scope(columns, (alias or table.name, table.name), params, {})
        where = parse_expression(reader, scope) if reader.accept("WHERE") else None
        found = _candidates(table, scope, view)
    return scope, [row for row in found if where is None or is_true(where, row)]


def _candidates(table: Table, scope: Scope, view: View) -> Iterable[Row]:
    """Return the one row that a whole key names, else all rows."""
    names = [table.columns[number].name for number in table.key]
    if all(name in scope.equal for name in names):
        kinds = [table.columns[number].kind for number in table.key]
        key = tuple(canonical(scope.equal[n][0], kind) for n, kind in zip(names, kinds, strict=True))
        row = view.row(table, order_of(table, key))
        return [] if row is None else [row]
    return [row for _, row in view.scan(table)]


def _ordered(reader: Reader, scope: Scope, rows: list[Row]) -> list[Row]:
    keys: list[tuple[Evaluate, bool]] = []
    while True:
        keys.append((parse_expression(reader, scope), reader.accept("DESC")))
        reader.accept("ASC")
        if not reader.accept(","):
            break
    for evaluate, down in reversed(keys):
        rows = sorted(rows, key=lambda row, e=evaluate: sort_key(e(row)[0], e(row)[1] or INT64), reverse=down)  # type: ignore[misc]
    return rows


def _projected(reader: Reader, scope: Scope, items_at: int, rows: list[Row]) -> Result:
    reader.position = items_at
    reader.accept("DISTINCT")
    items: list[tuple[str, ColumnType | None, Evaluate]] = []
    while True:
        if reader.accept("*"):
            items += [_column_item(name, kind) for name, kind in scope.columns.items()]
        elif reader.accept("COUNT ( * )"):
            _item_name(reader, "")
            return Result([("", INT64)], [[str(len(rows))]])
        else:
            items.append(_item(reader, scope))
        if not reader.accept(","):
            break
    values = [[evaluate(row) for _, _, evaluate in items] for row in rows]
    columns = [(name, kind or INT64) for name, kind, _ in items]
    return Result(columns, [[value for value, _ in row] for row in values])


def _column_item(name: str, kind: ColumnType) -> tuple[str, ColumnType | None, Evaluate]:
    return name, kind, lambda row: (row.get(name), kind)


def _item(reader: Reader, scope: Scope) -> tuple[str, ColumnType | None, Evaluate]:
    last = reader.next.text
    start = reader.position
    evaluate = parse_expression(reader, scope)
    if reader.position - start > 1:
        last = reader.ahead(-1).text if reader.ahead(-2).text == "." else ""
    kind = evaluate({})[1]
    return _item_name(reader, scope.column(last) or ""), kind, evaluate


def _item_name(reader: Reader, otherwise: str) -> str:
    return reader.identifier() if reader.accept("AS") else otherwise


def _insert(schema: Schema, reader: Reader, params: Mapping[str, Typed]) -> Result:
    kind = UPSERT if reader.accept("OR UPDATE") else INSERT
    reader.accept("INTO")
    table = schema.table(reader.path())
    reader.expect("(")
    columns = [reader.identifier()]
    while reader.accept(","):
        columns.append(reader.identifier())
    reader.expect(")")
    reader.expect("VALUES")
    scope = Scope({}, (), params, {})
    rows: list[tuple[Value, ...]] = []
    while True:
        reader.expect("(")
        values = [_value(reader, scope, table, columns[0])]
        while reader.accept(","):
            values.append(_value(reader, scope, table, columns[len(values) % len(columns)]))
        reader.expect(")")
        rows.append(tuple(values))
        if not reader.accept(","):
            break
    if reader.accept("ON CONFLICT"):
        raise unimplemented("ON CONFLICT.")
    reader.finish()
    return Result(mutations=[Write(kind, table.name, tuple(columns), tuple(rows))], row_count=len(rows))


def _value(reader: Reader, scope: Scope, table: Table, column: str) -> Value:
    return _of_kind(parse_expression(reader, scope)({}), table.columns[table.index(column)].kind)


def _of_kind(value: Typed, kind: ColumnType) -> Value:
    """Return a value in the form of mutations: literals of numbers are numbers where the type's are."""
    if value[1] is None and isinstance(value[0], str) and kind.code in ("FLOAT32", "FLOAT64"):
        return float(value[0])
    return value[0]


def _update(schema: Schema, reader: Reader, params: Mapping[str, Typed], view: View) -> Result:
    table = schema.table(reader.path())
    alias = _alias(reader)
    columns = {each.name: each.kind for each in table.columns}
    scope = Scope(columns, (alias or table.name, table.name), params, {})
    reader.expect("SET")
    changes: list[tuple[str, Evaluate]] = []
    while True:
        name = table.columns[table.index(reader.identifier())].name
        reader.expect("=")
        changes.append((name, parse_expression(reader, scope)))
        if not reader.accept(","):
            break
    _, rows = _source(schema, table.name, alias, params, view, reader)
    reader.finish()
    keys = [table.columns[number].name for number in table.key]
    if any(name in keys for name, _ in changes):
        raise invalid(f"Cannot UPDATE value on key column of table {table.name}.")
    values = tuple(
        (*(row.get(name) for name in keys), *(_of_kind(e(row), columns[n]) for n, e in changes))
        for row in rows
    )
    names = (*keys, *(name for name, _ in changes))
    return Result(mutations=[Write(UPDATE, table.name, names, values)], row_count=len(rows))


def _delete(schema: Schema, reader: Reader, params: Mapping[str, Typed], view: View) -> Result:
    reader.accept("FROM")
    table = schema.table(reader.path())
    _, rows = _source(schema, table.name, _alias(reader), params, view, reader)
    reader.finish()
    names = [table.columns[number].name for number in table.key]
    keys = tuple(tuple(row.get(name) for name in names) for row in rows)
    return Result(mutations=[Delete(table.name, KeySet(keys))], row_count=len(rows))
