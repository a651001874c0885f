"""Patterns over the tables of events; `penstock.tables` has the rule. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.event import Source
from penstock.tables import matches_table

TablePattern = str | Sequence[str]
"""The name of a table, a glob over names (``sales.*``, ``audit_?``), or several of them. Case counts.

A name without a schema is the table in every schema.
"""


def table_name(source: Source) -> str:
    """Return ``schema.table``, or only the table if it has no schema."""
    return f"{source.schema}.{source.table}" if source.schema else source.table


def matches(pattern: TablePattern, source: Source) -> bool:
    """Return whether a table matches a pattern, or one of several."""
    return matches_table(pattern_names(pattern), source.schema, source.table)


def pattern_names(pattern: TablePattern) -> tuple[str, ...]:
    """Return the names and globs of a pattern."""
    return (pattern,) if isinstance(pattern, str) else tuple(pattern)
