"""CREATE and ALTER CHANGE STREAM.

Source: Spanner documentation, "Manage change streams", and "Quotas and limits".
"""

from __future__ import annotations

from dataclasses import replace

from penstock_emulators.simulated_spanner.errors import failed
from penstock_emulators.simulated_spanner.schema import (
    CAPTURE_TYPES,
    IMMUTABLE,
    MAX_STREAMS,
    MAX_STREAMS_PER_TABLE,
    MUTABLE,
    Schema,
    StreamDefinition,
    Table,
    duration_seconds,
    find,
)
from penstock_emulators.simulated_spanner.tokens import Reader

_BOOLEAN_OPTIONS = (
    "exclude_insert",
    "exclude_update",
    "exclude_delete",
    "exclude_ttl_deletes",
    "allow_txn_exclusion",
    "per_placement_tvf",
)
_RETENTION = range(86_400, 7 * 86_400 + 1)


def create_stream(schema: Schema, reader: Reader) -> None:
    """Add the stream whose name comes next.

    Raises:
        ServiceError: the statement is wrong, or a limit is reached.
    """
    reader.accept("IF NOT EXISTS")
    name = reader.identifier()
    if find(schema.streams, name) is not None:
        raise failed(f"Duplicate name in schema: {name}.")
    if len(schema.streams) >= MAX_STREAMS:
        raise failed(
            f"Cannot add Change Stream {name} : because the maximum number of Change Streams per Database "
            f"(limit {MAX_STREAMS}) has been reached."
        )
    stream = StreamDefinition(name)
    if reader.accept("FOR"):
        stream = _watching(schema, stream, reader)
    if reader.accept("OPTIONS") or reader.accept("WITH"):
        stream = replace(stream, options=_options({}, reader))
    reader.finish()
    _check_watchers(schema, stream)
    schema.streams[name] = stream


def alter_stream(schema: Schema, reader: Reader) -> None:
    """Change the stream whose name comes next.

    Raises:
        ServiceError: the statement is wrong.
    """
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
        if sum(each.watched(table) is not None for each in others) >= MAX_STREAMS_PER_TABLE:
            raise failed(
                f"Failed to create or alter Change Stream {stream.name} : because it is not allowed to have "
                f"more than {MAX_STREAMS_PER_TABLE} Change Streams tracking the same table or non-key column "
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
