"""Names of tables, and patterns over them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import lru_cache

from penstock.event import Source

TablePattern = str | Sequence[str]
"""The name of a table, a glob over names (``sales.*``, ``audit_?``), or several of them. Case counts."""


def table_name(source: Source) -> str:
    """Return ``schema.table``, or only the table if it has no schema."""
    return f"{source.schema}.{source.table}" if source.schema else source.table


def matches(pattern: TablePattern, source: Source) -> bool:
    """Return whether a table matches a pattern, or one of several."""
    return _matches(pattern_names(pattern), source)


def pattern_names(pattern: TablePattern) -> tuple[str, ...]:
    """Return the names and globs of a pattern."""
    return (pattern,) if isinstance(pattern, str) else tuple(pattern)


@lru_cache(maxsize=8192)
def _matches(patterns: tuple[str, ...], source: Source) -> bool:
    name = table_name(source)
    return any(fnmatchcase(name, pattern) for pattern in patterns)
