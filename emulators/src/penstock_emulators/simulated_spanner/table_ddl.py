"""CREATE, ALTER and DROP TABLE.

Source: Spanner documentation, "GoogleSQL data definition language" and "PostgreSQL data definition language".
"""

from __future__ import annotations

from dataclasses import replace

from penstock_emulators.simulated_spanner.column_type import POSTGRESQL, ColumnType, named_type
from penstock_emulators.simulated_spanner.errors import failed, invalid, unimplemented
from penstock_emulators.simulated_spanner.schema import Column, Schema, Table, find
from penstock_emulators.simulated_spanner.tokens import Reader
from penstock_emulators.simulated_spanner.value import Value

_PG_TWO_WORDS = ("double precision", "character varying", "timestamp with")


def name_if_exists(reader: Reader) -> str:
    """Take a name, perhaps after IF EXISTS."""
    reader.accept("IF EXISTS")
    return reader.path()


def create_table(schema: Schema, reader: Reader) -> None:
    """Add the table whose name comes next.

    Raises:
        ServiceError: the statement is refused.
    """
    exists_ok = reader.accept("IF NOT EXISTS")
    name = reader.path()
    if find(schema.tables, name) is not None:
        if exists_ok:
            return
        raise failed(f"Duplicate name in schema: {name}.")
    columns: list[Column] = []
    key: list[tuple[str, bool]] = []
    reader.expect("(")
    while not reader.accept(")"):
        if reader.accept("PRIMARY KEY"):
            key = _key(reader)
        elif reader.at_words("CONSTRAINT") or reader.at_words("FOREIGN KEY") or reader.at_words("CHECK"):
            _skip_constraint(reader)
        else:
            column, is_key = _column(schema, reader)
            columns.append(column)
            key += [(column.name, False)] if is_key else []
        if not reader.accept(","):
            reader.expect(")")
            break
    if reader.accept("PRIMARY KEY"):
        key = _key(reader)
    _check_rest_of_table(reader)
    bare = Table(name, tuple(columns), (), ())
    schema.tables[name] = replace(
        bare,
        key=tuple(bare.index(column) for column, _ in key),
        descending=tuple(descending for _, descending in key),
    )


def _check_rest_of_table(reader: Reader) -> None:
    while reader.next.kind != "end":
        if reader.accept("ON DELETE CASCADE"):
            raise unimplemented("ON DELETE CASCADE.")
        reader.take()


def _skip_constraint(reader: Reader) -> None:
    while not reader.at_words(",") and not reader.at_words(")"):
        if reader.at_words("("):
            reader.skip_parentheses()
        elif reader.accept("ON DELETE CASCADE"):
            raise unimplemented("ON DELETE CASCADE.")
        else:
            reader.take()


def _key(reader: Reader) -> list[tuple[str, bool]]:
    reader.expect("(")
    key: list[tuple[str, bool]] = []
    while not reader.accept(")"):
        name = reader.identifier()
        descending = reader.accept("DESC")
        reader.accept("ASC")
        key.append((name, descending))
        reader.accept(",")
    return key


def _column(schema: Schema, reader: Reader) -> tuple[Column, bool]:
    """Return a column, and whether it is declared as the primary key."""
    name = reader.identifier()
    kind, length = _type(schema, reader)
    column, is_key = Column(name, kind, length=length), False
    while not (reader.at_words(",") or reader.at_words(")") or reader.next.kind == "end"):
        if reader.accept("PRIMARY KEY"):
            is_key = True
        else:
            column = _with_attribute(column, reader)
    return column, is_key


def _with_attribute(column: Column, reader: Reader) -> Column:
    """Take one attribute of a column, and return the column with it."""
    if reader.accept("NOT NULL"):
        return replace(column, not_null=True)
    if reader.accept("PLACEMENT KEY"):
        return replace(column, placement_key=True)
    if reader.accept("DEFAULT"):
        return replace(column, default=_default(reader))
    if reader.accept("OPTIONS"):
        reader.skip_parentheses()
        return column
    if reader.accept("NULL") or reader.accept("HIDDEN"):
        return column
    if reader.at_words("AS") or reader.at_words("GENERATED"):
        raise unimplemented("Generated columns.")
    raise invalid(f"Syntax error: unexpected {reader.next.text!r} in column {column.name}")


def _default(reader: Reader) -> Value:
    bracketed = reader.accept("(")
    token = reader.take()
    if token.kind == "word" and token.text.upper() in ("TRUE", "FALSE", "NULL"):
        value: Value = {"TRUE": True, "FALSE": False, "NULL": None}[token.text.upper()]
    elif token.kind in ("string", "number"):
        value = token.text
    else:
        raise unimplemented("A default value that is no literal.")
    if bracketed:
        reader.expect(")")
    return value


def _type(schema: Schema, reader: Reader) -> tuple[ColumnType, int | None]:
    if reader.accept("ARRAY <"):
        element, length = _type(schema, reader)
        reader.expect(">")
        if reader.at_words("("):  # a vector's length, such as ARRAY<FLOAT32>(vector_length=>128)
            reader.skip_parentheses()
        return ColumnType("ARRAY", element), length
    name = _type_name(reader)
    length = _length(reader)
    if reader.dialect == POSTGRESQL and name.lower().startswith("timestamp with"):
        reader.accept("TIME ZONE")
        name = "timestamptz"
    kind = named_type(schema.dialect, name) or _proto_type(schema, name)
    if reader.accept("[ ]"):
        kind = ColumnType("ARRAY", kind)
    return kind, length


def _type_name(reader: Reader) -> str:
    if reader.dialect == POSTGRESQL:
        pair = f"{reader.next.text} {reader.ahead(1).text}".lower()
        if pair in _PG_TWO_WORDS:
            reader.take()
            reader.take()
            return pair
    return reader.path()


def _length(reader: Reader) -> int | None:
    if not reader.accept("("):
        return None
    token = reader.take()
    while not reader.accept(")"):  # numeric(10, 2) has two
        reader.take()
    return int(token.text, 0) if token.kind == "number" else None


def _proto_type(schema: Schema, name: str) -> ColumnType:
    if name in schema.proto_enums:
        return ColumnType("ENUM", name=name)
    if name in schema.proto_messages:
        return ColumnType("PROTO", name=name)
    raise invalid(f"Type not found: {name}")


def alter_table(schema: Schema, reader: Reader) -> None:
    """Change the table whose name comes next.

    Raises:
        ServiceError: the statement is refused.
    """
    table = schema.table(name_if_exists(reader))
    if reader.accept("ADD COLUMN"):
        exists_ok = reader.accept("IF NOT EXISTS")
        column, _ = _column(schema, reader)
        if any(each.name.lower() == column.name.lower() for each in table.columns):
            if exists_ok:
                return
            raise failed(f"Duplicate column name {table.name}.{column.name}.")
        changed = replace(table, columns=(*table.columns, column))
    elif reader.accept("DROP COLUMN"):
        number = table.index(reader.identifier())
        _check_not_watched(schema, table, number)
        changed = _without_column(table, number)
    elif reader.accept("ALTER COLUMN"):
        changed = _altered_column(schema, table, reader)
    else:
        raise unimplemented("This form of ALTER TABLE.")
    schema.tables[table.name] = changed


def _altered_column(schema: Schema, table: Table, reader: Reader) -> Table:
    number = table.index(reader.identifier())
    old = table.columns[number]
    if reader.accept("SET NOT NULL"):
        new = replace(old, not_null=True)
    elif reader.accept("DROP NOT NULL"):
        new = replace(old, not_null=False)
    elif reader.at_words("SET") or reader.at_words("DROP"):
        return table  # options and defaults of rows to come
    else:
        reader.accept("TYPE")
        kind, length = _type(schema, reader)
        new = replace(old, kind=kind, length=length, not_null=reader.accept("NOT NULL"))
    return replace(table, columns=(*table.columns[:number], new, *table.columns[number + 1 :]))


def _without_column(table: Table, number: int) -> Table:
    if number in table.key:
        raise failed(f"Cannot drop key column {table.columns[number].name} of table {table.name}.")
    return replace(
        table,
        columns=table.columns[:number] + table.columns[number + 1 :],
        key=tuple(each - (each > number) for each in table.key),
    )


def _check_not_watched(schema: Schema, table: Table, number: int) -> None:
    """A column that a stream watches by name cannot be dropped ("Manage change streams")."""
    name = table.columns[number].name
    for stream in schema.streams.values():
        found = find(stream.tables, table.name)
        columns = stream.tables[found] if found is not None else None
        if columns and name.lower() in (each.lower() for each in columns):
            raise failed(f"Cannot drop column {table.name}.{name}: change stream {stream.name} watches it.")


def drop_table(schema: Schema, reader: Reader) -> None:
    """Remove the table whose name comes next.

    Raises:
        ServiceError: the statement is refused.
    """
    table = schema.table(name_if_exists(reader))
    watching = [each.name for each in schema.streams.values() if find(each.tables, table.name) is not None]
    if watching:
        raise failed(f"Cannot drop table {table.name} with change_streams: {', '.join(watching)}.")
    del schema.tables[table.name]
