"""DDL statements applied to a schema.

Understood: CREATE, ALTER and DROP of TABLE and CHANGE STREAM, CREATE SCHEMA, CREATE PLACEMENT and CREATE PROTO
BUNDLE, and the option version_retention_period of a database. Statements about what the simulation has no part of
(indexes, roles, other options) are accepted and have no effect. Refused as unimplemented: generated columns and ON
DELETE CASCADE, because they would write.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from penstock_emulators.simulated_spanner.column_type import POSTGRESQL
from penstock_emulators.simulated_spanner.errors import invalid
from penstock_emulators.simulated_spanner.schema import Schema, duration_seconds
from penstock_emulators.simulated_spanner.stream_ddl import alter_stream, create_stream
from penstock_emulators.simulated_spanner.table_ddl import (
    alter_table,
    create_table,
    drop_table,
    name_if_exists,
)
from penstock_emulators.simulated_spanner.tokens import Reader, tokenize

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
_VERSION_RETENTION = re.compile(r"version_retention_period\W*=\s*'([^']*)'")


def apply_statement(schema: Schema, statement: str) -> None:
    """Change the schema as one statement says.

    Raises:
        ServiceError: the statement is wrong, or says what the simulation does not do.
    """
    reader = Reader(tokenize(statement, schema.dialect), schema.dialect)
    retention = _VERSION_RETENTION.search(statement) if reader.at_words("ALTER DATABASE") else None
    if retention:
        # Parsed for its errors: a wrong period must be refused, as by the service.
        duration_seconds(retention[1])
        schema.version_retention = retention[1]
    if not any(reader.at_words(words) for words in _WITHOUT_EFFECT):
        for words, apply in _STATEMENTS.items():
            if reader.accept(words):
                apply(schema, reader)
                break
        else:
            raise invalid(f"Error parsing Spanner DDL statement: {statement.strip()[:80]}")
    # Kept as text: GetDatabaseDdl returns the statements that were applied.
    schema.statements.append(statement)


def _drop_stream(schema: Schema, reader: Reader) -> None:
    del schema.streams[schema.stream(name_if_exists(reader)).name]


def _create_schema(schema: Schema, reader: Reader) -> None:
    reader.accept("IF NOT EXISTS")
    name = reader.identifier()
    if schema.dialect != POSTGRESQL and name.lower() == "public":
        raise invalid("Schema name not valid: public.")
    schema.named_schemas.append(name)


def _create_placement(schema: Schema, reader: Reader) -> None:
    schema.placements.append(reader.identifier())


def _create_bundle(schema: Schema, reader: Reader) -> None:
    """Take the names; which of them are enums is known from the request's descriptors."""
    reader.expect("(")
    while not reader.accept(")"):
        name = reader.path()
        if name not in schema.proto_enums:
            schema.proto_messages.add(name)
        reader.accept(",")


_STATEMENTS: dict[str, Callable[[Schema, Reader], None]] = {
    "CREATE TABLE": create_table,
    "ALTER TABLE": alter_table,
    "DROP TABLE": drop_table,
    "CREATE CHANGE STREAM": create_stream,
    "ALTER CHANGE STREAM": alter_stream,
    "DROP CHANGE STREAM": _drop_stream,
    "CREATE SCHEMA": _create_schema,
    "CREATE PLACEMENT": _create_placement,
    "CREATE PROTO BUNDLE": _create_bundle,
}
