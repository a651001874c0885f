"""The views of INFORMATION_SCHEMA that say what a change stream reader needs to know.

Source: Spanner documentation, "Information schema for GoogleSQL-dialect databases" and "… PostgreSQL-dialect
databases". Options that a change stream does not set have no row.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock_emulators.simulated_spanner.column_type import GOOGLESQL, POSTGRESQL, ColumnType
from penstock_emulators.simulated_spanner.rows import Row
from penstock_emulators.simulated_spanner.schema import DEFAULT_PLACEMENT, MUTABLE, Schema, StreamDefinition

_S, _I, _B = ColumnType("STRING"), ColumnType("INT64"), ColumnType("BOOL")
_STREAM = {"change_stream_catalog": _S, "change_stream_schema": _S, "change_stream_name": _S}
_TABLE = {"table_catalog": _S, "table_schema": _S, "table_name": _S}

_VIEWS: dict[str, dict[str, ColumnType]] = {
    "database_options": {
        "catalog_name": _S,
        "schema_name": _S,
        "option_name": _S,
        "option_type": _S,
        "option_value": _S,
    },
    "tables": {**_TABLE, "table_type": _S, "parent_table_name": _S, "spanner_state": _S},
    "columns": {
        **_TABLE,
        "column_name": _S,
        "ordinal_position": _I,
        "is_nullable": _S,
        "is_generated": _S,
        "spanner_type": _S,
    },
    "index_columns": {
        **_TABLE,
        "index_name": _S,
        "index_type": _S,
        "column_name": _S,
        "ordinal_position": _I,
    },
    "change_streams": {**_STREAM, "all": _B},
    "change_stream_tables": {**_STREAM, **_TABLE, "all_columns": _B},
    "change_stream_columns": {**_STREAM, **_TABLE, "column_name": _S},
    "change_stream_options": {**_STREAM, "option_name": _S, "option_type": _S, "option_value": _S},
    "routines": {"routine_catalog": _S, "routine_schema": _S, "routine_name": _S, "routine_type": _S},
}


def view_columns(dialect: str, view: str) -> dict[str, ColumnType] | None:
    """Return the columns of a view with their types; None if there is no such view."""
    columns = _VIEWS.get(view)
    if columns is None or dialect == GOOGLESQL:
        return columns
    # PostgreSQL's information schema has the words YES and NO in place of booleans.
    return {name: _S if kind == _B else kind for name, kind in columns.items()}


def view_rows(schema: Schema, view: str) -> Iterator[Row]:
    """Yield the rows of a view."""
    return _ROWS[view](schema)


def _database_options(schema: Schema) -> Iterator[Row]:
    yield {
        "catalog_name": "",
        "schema_name": "public" if schema.dialect == POSTGRESQL else "",
        "option_name": "database_dialect",
        "option_type": "character varying" if schema.dialect == POSTGRESQL else "STRING",
        "option_value": schema.dialect,
    }
    yield {
        "catalog_name": "",
        "schema_name": "public" if schema.dialect == POSTGRESQL else "",
        "option_name": "version_retention_period",
        "option_type": "character varying" if schema.dialect == POSTGRESQL else "STRING",
        "option_value": schema.version_retention,
    }
    # Spanner has no such option. It tells Penstock's reader that it needs no margin. The reader keeps a margin before
    # an emulator that may answer a query up to a time although a commit before that time is still being written. This
    # service never does that, as Spanner never does.
    yield {
        "catalog_name": "",
        "schema_name": "public" if schema.dialect == POSTGRESQL else "",
        "option_name": "answers_whole_commits",
        "option_type": "character varying" if schema.dialect == POSTGRESQL else "STRING",
        "option_value": "true",
    }


def _place(schema: Schema, name: str) -> Row:
    # A named schema is a part of the table's name.
    named, _, bare = name.rpartition(".")
    default = "public" if schema.dialect == POSTGRESQL else ""
    return {"table_catalog": "", "table_schema": named or default, "table_name": bare}


def _tables(schema: Schema) -> Iterator[Row]:
    for table in schema.tables.values():
        yield {**_place(schema, table.name), "table_type": "BASE TABLE", "spanner_state": "COMMITTED"}


def _columns(schema: Schema) -> Iterator[Row]:
    for table in schema.tables.values():
        for number, column in enumerate(table.columns, 1):
            length = "MAX" if column.length is None else str(column.length)
            yield {
                **_place(schema, table.name),
                "column_name": column.name,
                "ordinal_position": str(number),
                "is_nullable": "NO" if column.not_null else "YES",
                # The generated columns of the service are not simulated.
                "is_generated": "NEVER",
                "spanner_type": column.kind.sql(schema.dialect, length),
            }


def _index_columns(schema: Schema) -> Iterator[Row]:
    for table in schema.tables.values():
        for number, column in enumerate(table.key, 1):
            yield {
                **_place(schema, table.name),
                "index_name": "PRIMARY_KEY",
                "index_type": "PRIMARY_KEY",
                "column_name": table.columns[column].name,
                "ordinal_position": str(number),
            }


def _stream(schema: Schema, stream: StreamDefinition) -> Row:
    default = "public" if schema.dialect == POSTGRESQL else ""
    return {"change_stream_catalog": "", "change_stream_schema": default, "change_stream_name": stream.name}


def _yes(schema: Schema, value: bool) -> bool | str:
    if schema.dialect == GOOGLESQL:
        return value
    return "YES" if value else "NO"


def _change_streams(schema: Schema) -> Iterator[Row]:
    for stream in schema.streams.values():
        yield {**_stream(schema, stream), "all": _yes(schema, stream.all_tables)}


def _change_stream_tables(schema: Schema) -> Iterator[Row]:
    for stream in schema.streams.values():
        for table in schema.tables.values():
            watched = stream.watched(table)
            if watched is not None:
                # The columns of the key are always watched, so they are not among `watched`.
                everything = len(watched) + len(table.key) == len(table.columns)
                place = _place(schema, table.name)
                yield {**_stream(schema, stream), **place, "all_columns": _yes(schema, everything)}


def _change_stream_columns(schema: Schema) -> Iterator[Row]:
    for stream in schema.streams.values():
        for table in schema.tables.values():
            for number in stream.watched(table) or ():
                name = table.columns[number].name
                yield {**_stream(schema, stream), **_place(schema, table.name), "column_name": name}


def _change_stream_options(schema: Schema) -> Iterator[Row]:
    for stream in schema.streams.values():
        for name, value in stream.options.items():
            # The options are kept as text; only boolean ones have these two values.
            boolean = value in ("true", "false")
            kind = (
                ("BOOL" if boolean else "STRING")
                if schema.dialect == GOOGLESQL
                else ("boolean" if boolean else "character varying")
            )
            yield {**_stream(schema, stream), "option_name": name, "option_type": kind, "option_value": value}


def _routines(schema: Schema) -> Iterator[Row]:
    """The read functions of the streams (Beam's and Debezium's connectors look for them here)."""
    for stream in schema.streams.values():
        names = [""]
        if stream.has("per_placement_tvf"):
            # A stream with one function per placement has no function without a suffix.
            names = [f"_{each}" for each in (DEFAULT_PLACEMENT, *schema.placements)]
        for suffix in names:
            yield {
                "routine_catalog": "",
                "routine_schema": "spanner" if schema.dialect == POSTGRESQL else "",
                "routine_name": _function(schema.dialect, stream) + suffix,
                "routine_type": "TABLE FUNCTION",
            }


def _function(dialect: str, stream: StreamDefinition) -> str:
    if dialect == GOOGLESQL:
        return f"READ_{stream.name}"
    return f"read_{'proto_bytes' if stream.partition_mode == MUTABLE else 'json'}_{stream.name}"


_ROWS = {
    "database_options": _database_options,
    "tables": _tables,
    "columns": _columns,
    "index_columns": _index_columns,
    "change_streams": _change_streams,
    "change_stream_tables": _change_stream_tables,
    "change_stream_columns": _change_stream_columns,
    "change_stream_options": _change_stream_options,
    "routines": _routines,
}
