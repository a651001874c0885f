"""DDL statements applied to a schema.

Understood: CREATE, ALTER and DROP of TABLE and CHANGE STREAM, CREATE SCHEMA, CREATE PLACEMENT and CREATE PROTO
BUNDLE. Statements about what the simulation has no part of (indexes, roles, database options) are accepted and
have no effect. Refused as unimplemented: generated columns and ON DELETE CASCADE, because they would write.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.emulators.simulated_spanner.column_type import POSTGRESQL, ColumnType, named_type
from penstock.emulators.simulated_spanner.errors import failed, invalid, unimplemented
from penstock.emulators.simulated_spanner.schema import (
    CAPTURE_TYPES,
    IMMUTABLE,
    MOST_STREAMS,
    MOST_STREAMS_PER_TABLE,
    MUTABLE,
    Column,
    Schema,
    StreamDefinition,
    Table,
    duration_seconds,
    find,
)
from penstock.emulators.simulated_spanner.tokens import Reader, tokenize
from penstock.emulators.simulated_spanner.value import Value

_WITHOUT_EFFECT = (
    "CREATE INDEX",
    "CREATE UNIQUE",
    "CREATE NULL_FILTERED",
    "DROP INDEX",
    "ALTER DATABASE",
    "CREATE ROLE",
    "DROP ROLE",
    "GRANT",
    "REVOKE",
    "CREATE LOCALITY",
    "ALTER TABLE SET",
    "ANALYZE",
)
_BOOLEAN_OPTIONS = (
    "exclude_insert",
    "exclude_update",
    "exclude_delete",
    "exclude_ttl_deletes",
    "allow_txn_exclusion",
    "per_placement_tvf",
)
_RETENTION = range(86_400, 7 * 86_400 + 1)
_PG_TWO_WORDS = ("double precision", "character varying", "timestamp with")


def apply_statement(schema: Schema, statement: str) -> None:
    """Change the schema as one statement says.

    Raises:
        ServiceError: the statement is wrong, or says what the simulation does not do.
    """
    reader = Reader(tokenize(statement, schema.dialect), schema.dialect)
    if any(reader.at_words(words) for words in _WITHOUT_EFFECT):
        pass
    elif reader.accept("CREATE TABLE"):
        _create_table(schema, reader)
    elif reader.accept("ALTER TABLE"):
        _alter_table(schema, reader)
    elif reader.accept("DROP TABLE"):
        _drop_table(schema, reader)
    elif reader.accept("CREATE CHANGE STREAM"):
        _create_stream(schema, reader)
    elif reader.accept("ALTER CHANGE STREAM"):
        _alter_stream(schema, reader)
    elif reader.accept("DROP CHANGE STREAM"):
        name = schema.stream(_name_if_exists(reader)).name
        del schema.streams[name]
    elif reader.accept("CREATE SCHEMA"):
        reader.accept("IF NOT EXISTS")
        schema.named_schemas.append(reader.identifier())
    elif reader.accept("CREATE PLACEMENT"):
        schema.placements.append(reader.identifier())
    elif reader.accept("CREATE PROTO BUNDLE"):
        _create_bundle(schema, reader)
    else:
        raise invalid(f"Error parsing Spanner DDL statement: {statement.strip()[:80]}")
    schema.statements.append(statement)


def _name_if_exists(reader: Reader) -> str:
    reader.accept("IF EXISTS")
    return reader.path()


def _create_table(schema: Schema, reader: Reader) -> None:
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
    name = reader.identifier()
    kind, length = _type(schema, reader)
    column = Column(name, kind, length=length)
    is_key = False
    while not (reader.at_words(",") or reader.at_words(")") or reader.next.kind == "end"):
        if reader.accept("NOT NULL"):
            column = replace(column, not_null=True)
        elif reader.accept("PLACEMENT KEY"):
            column = replace(column, placement_key=True)
        elif reader.accept("PRIMARY KEY"):
            is_key = True
        elif reader.accept("DEFAULT"):
            column = replace(column, default=_default(reader))
        elif reader.accept("OPTIONS"):
            reader.skip_parentheses()
        elif reader.accept("NULL") or reader.accept("HIDDEN"):
            pass
        elif reader.at_words("AS") or reader.at_words("GENERATED"):
            raise unimplemented("Generated columns.")
        else:
            raise invalid(f"Syntax error: unexpected {reader.next.text!r} in column {name}")
    return column, is_key


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


def _create_bundle(schema: Schema, reader: Reader) -> None:
    """Take the names; which of them are enums is known from the request's descriptors."""
    reader.expect("(")
    while not reader.accept(")"):
        name = reader.path()
        if name not in schema.proto_enums:
            schema.proto_messages.add(name)
        reader.accept(",")


def _alter_table(schema: Schema, reader: Reader) -> None:
    table = schema.table(_name_if_exists(reader))
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


def _drop_table(schema: Schema, reader: Reader) -> None:
    table = schema.table(_name_if_exists(reader))
    watching = [each.name for each in schema.streams.values() if find(each.tables, table.name) is not None]
    if watching:
        raise failed(f"Cannot drop table {table.name} with change_streams: {', '.join(watching)}.")
    del schema.tables[table.name]


def _create_stream(schema: Schema, reader: Reader) -> None:
    reader.accept("IF NOT EXISTS")
    name = reader.identifier()
    if find(schema.streams, name) is not None:
        raise failed(f"Duplicate name in schema: {name}.")
    if len(schema.streams) >= MOST_STREAMS:
        raise failed(
            f"Cannot add Change Stream {name} : because the maximum number of Change Streams per Database "
            f"(limit {MOST_STREAMS}) has been reached."
        )
    stream = StreamDefinition(name)
    if reader.accept("FOR"):
        stream = _watching(schema, stream, reader)
    if reader.accept("OPTIONS") or reader.accept("WITH"):
        stream = replace(stream, options=_options({}, reader))
    reader.finish()
    _check_watchers(schema, stream)
    schema.streams[name] = stream


def _alter_stream(schema: Schema, reader: Reader) -> None:
    stream = schema.stream(reader.identifier())
    if reader.accept("SET FOR"):
        stream = _watching(schema, stream, reader)
    elif reader.accept("DROP FOR ALL"):
        if not stream.all_tables and not stream.tables:
            raise failed(
                "The ALTER CHANGE STREAM DROP FOR clause cannot be applied on Change Stream "
                f"{stream.name}, because it does not have a FOR clause and it does not track any database "
                "object."
            )
        stream = replace(stream, all_tables=False, tables={})
    elif reader.accept("RESET"):
        left = dict(stream.options)
        reader.expect("(")
        while not reader.accept(")"):
            left.pop(reader.identifier().lower(), None)
            reader.accept(",")
        stream = replace(stream, options=left)
    else:
        reader.expect("SET")
        reader.accept("OPTIONS")
        options = _options(dict(stream.options), reader)
        if options.get("partition_mode") != stream.options.get("partition_mode"):
            raise failed("Cannot change partition_mode of an existing change stream.")
        stream = replace(stream, options=options)
    reader.finish()
    _check_watchers(schema, stream)
    schema.streams[stream.name] = stream


def _watching(schema: Schema, stream: StreamDefinition, reader: Reader) -> StreamDefinition:
    if reader.accept("ALL"):
        return replace(stream, all_tables=True, tables={})
    tables: dict[str, tuple[str, ...] | None] = {}
    while True:
        table = schema.table(reader.path())
        if table.name in tables:
            raise failed(
                f"Change Stream {stream.name} should not list Table {table.name} more than once in the FOR "
                "clause."
            )
        tables[table.name] = _watched_columns(table, reader) if reader.accept("(") else None
        if not reader.accept(","):
            return replace(stream, all_tables=False, tables=tables)


def _watched_columns(table: Table, reader: Reader) -> tuple[str, ...]:
    columns: list[str] = []
    while not reader.accept(")"):
        number = table.index(reader.identifier())
        if number in table.key:
            raise failed(
                f"The FOR clause should not list the primary key column {table.columns[number].name} of Table "
                f"{table.name}. Primary key columns are always tracked."
            )
        columns.append(table.columns[number].name)
        reader.accept(",")
    return tuple(columns)


def _check_watchers(schema: Schema, stream: StreamDefinition) -> None:
    """Source: "Quotas and limits": three streams for one table or column that is no key."""
    others = [each for each in schema.streams.values() if each.name != stream.name]
    for table in schema.tables.values():
        if stream.watched(table) is None:
            continue
        if sum(each.watched(table) is not None for each in others) >= MOST_STREAMS_PER_TABLE:
            raise failed(
                f"Failed to create or alter Change Stream {stream.name} : because it is not allowed to have "
                f"more than {MOST_STREAMS_PER_TABLE} Change Streams tracking the same table or non-key column "
                f"or ALL: {table.name}."
            )


def _options(options: dict[str, str], reader: Reader) -> dict[str, str]:
    reader.expect("(")
    while not reader.accept(")"):
        name = reader.identifier().lower()
        reader.expect("=")
        token = reader.take()
        value = token.text if token.kind == "string" else token.text.lower()
        if value != "null":
            _check_option(name, value)
            options[name] = value
        reader.accept(",")
    return options


def _check_option(name: str, value: str) -> None:
    if name == "retention_period":
        if duration_seconds(value) not in _RETENTION:
            raise failed(
                f"Invalid retention_period: {value}. Change Streams retention period must be a value in the "
                "range [24h, 7d]."
            )
    elif name == "value_capture_type":
        if value not in CAPTURE_TYPES:
            raise failed(f"Invalid value_capture_type: {value}. Allowed: {', '.join(CAPTURE_TYPES)}.")
    elif name == "partition_mode":
        if value not in (IMMUTABLE, MUTABLE):
            raise failed(f"Invalid partition_mode: {value}. Allowed: {IMMUTABLE}, {MUTABLE}.")
    elif name not in _BOOLEAN_OPTIONS:
        raise failed(f"Invalid Change Stream Option: {name}.")
    elif value not in ("true", "false"):
        raise failed(f"Option {name} can only take bool_value.")
