"""The type of a column, and its text in the three places where the service prints it.

Source: google/spanner/v1/type.proto, "TypeCode" and "TypeAnnotationCode"; Spanner documentation, "Data types in
GoogleSQL" and "PostgreSQL data types".
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

GOOGLESQL, POSTGRESQL = "GOOGLE_STANDARD_SQL", "POSTGRESQL"
"""The dialects, by their names in `information_schema.database_options`."""

_GOOGLESQL_NAMES = frozenset(
    {
        "BOOL",
        "INT64",
        "FLOAT32",
        "FLOAT64",
        "NUMERIC",
        "STRING",
        "BYTES",
        "DATE",
        "TIMESTAMP",
        "JSON",
        "UUID",
        "INTERVAL",
    }
)
_POSTGRESQL_NAMES = {
    "bool": "BOOL",
    "boolean": "BOOL",
    "bigint": "INT64",
    "int8": "INT64",
    "real": "FLOAT32",
    "float4": "FLOAT32",
    "double precision": "FLOAT64",
    "float8": "FLOAT64",
    "numeric": "NUMERIC",
    "decimal": "NUMERIC",
    "varchar": "STRING",
    "character varying": "STRING",
    "text": "STRING",
    "bytea": "BYTES",
    "date": "DATE",
    "timestamptz": "TIMESTAMP",
    "timestamp with time zone": "TIMESTAMP",
    "spanner.commit_timestamp": "TIMESTAMP",
    "jsonb": "JSON",
    "uuid": "UUID",
    "interval": "INTERVAL",
}
_POSTGRESQL_PRINTED = {
    "BOOL": "boolean",
    "INT64": "bigint",
    "FLOAT32": "real",
    "FLOAT64": "double precision",
    "NUMERIC": "numeric",
    "STRING": "character varying",
    "BYTES": "bytea",
    "DATE": "date",
    "TIMESTAMP": "timestamp with time zone",
    "JSON": "jsonb",
    "UUID": "uuid",
    "INTERVAL": "interval",
}


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A type: `code` is a name of TypeCode; `element` is set for arrays, `name` for PROTO and ENUM."""

    code: str
    element: ColumnType | None = None
    annotation: str = ""
    name: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object that a change record has as a column's type."""
        found: dict[str, Any] = {"code": self.code}
        if self.element is not None:
            found["array_element_type"] = self.element.as_json()
        if self.annotation:
            found["type_annotation"] = self.annotation
        if self.name:
            found["proto_type_fqn"] = self.name
        return dict(sorted(found.items()))

    def sql(self, dialect: str, length: str = "MAX") -> str:
        """Return the name in `information_schema.columns.spanner_type`."""
        if self.element is not None:
            inner = self.element.sql(dialect, length)
            return f"{inner}[]" if dialect == POSTGRESQL else f"ARRAY<{inner}>"
        if self.name:
            return f"{self.code}<{self.name}>"
        sized = self.code in ("STRING", "BYTES")
        if dialect == POSTGRESQL:
            bounded = self.code == "STRING" and length != "MAX"
            return _POSTGRESQL_PRINTED[self.code] + (f"({length})" if bounded else "")
        return f"{self.code}({length})" if sized else self.code


@lru_cache(maxsize=1024)
def json_text(kind: ColumnType) -> str:
    """Return the JSON text of a type, keys sorted, without spaces, as in the documentation's examples."""
    return json.dumps(kind.as_json(), separators=(",", ":"))


def named_type(dialect: str, name: str) -> ColumnType | None:
    """Return the scalar type of that name, or None. PostgreSQL names are lower case."""
    if dialect == GOOGLESQL:
        return ColumnType(name.upper()) if name.upper() in _GOOGLESQL_NAMES else None
    code = _POSTGRESQL_NAMES.get(name.lower())
    if code is None:
        return None
    # PostgreSQL's numeric and jsonb differ from NUMERIC and JSON: the annotation tells clients.
    annotation = {"NUMERIC": "PG_NUMERIC", "JSON": "PG_JSONB"}.get(code, "")
    return ColumnType(code, annotation=annotation)
