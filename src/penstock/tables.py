"""Tables of a source, and patterns over their names: one rule for every source, filter and choice of columns. Pure.

A pattern is a name or a glob (``*``, ``?``, ``[abc]``, ``[!abc]``), and its case counts. With a point, as in
``sales.orders`` or ``sales.*``, it is compared with schema and name. Without one it is the table of this name in every
schema: messages and targets often show the name alone, and a choice that silently matches nothing would write what it
should leave out. Only signals have regular expressions, because their layout is Debezium's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, NamedTuple

from penstock.errors import UsageError
from penstock.suggestions import did_you_mean

_SHOWN = 12
"""How many tables a message names."""


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table whose changes a source sends, with the columns that it sends now.

    Args:
        schema: empty if the source has none, or for Spanner's default one.
        has_key: whether its changes have a key.
        decimals: the columns whose type is a decimal number that may be NaN (PostgreSQL's numeric, and arrays of
            it).
    """

    schema: str
    name: str
    columns: tuple[str, ...]
    has_key: bool = True
    decimals: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name


@dataclass(frozen=True, slots=True)
class TableSelection:
    """The tables that match one of `tables`, all if it is empty, and none of `without_tables`."""

    tables: tuple[str, ...] = ()
    without_tables: tuple[str, ...] = ()

    @classmethod
    def checked(cls, tables: Iterable[str], without_tables: Iterable[str]) -> TableSelection:
        """Return the selection that two arguments describe.

        Raises:
            UsageError: an argument is one text instead of several.
        """
        return cls(
            tuple(checked_texts("tables", tables)), tuple(checked_texts("without_tables", without_tables))
        )

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> TableSelection:
        """Return the selection that parameters of a template describe."""
        return cls(tuple(parameters.get("tables") or ()), tuple(parameters.get("without_tables") or ()))

    def has(self, schema: str, table: str) -> bool:
        """Return whether a table is selected."""
        if self.tables and not matches_table(self.tables, schema, table):
            return False
        return not (self.without_tables and matches_table(self.without_tables, schema, table))

    def has_qualified(self, table: str) -> bool:
        """Return whether a table, ``schema.table`` or ``table``, is selected."""
        schema, _, name = table.rpartition(".")
        return self.has(schema, name)


EVERY_TABLE = TableSelection()


def checked_texts(parameter: str, values: Iterable[str]) -> list[str]:
    """Return the texts of an argument.

    Raises:
        UsageError: it is one text instead of several, or has other values.
    """
    texts = [values] if isinstance(values, str) else list(values)
    # A text is also a sequence of texts, its letters.
    if isinstance(values, str) or not all(isinstance(each, str) for each in texts):
        raise UsageError(
            f"{parameter}={values!r} is not a list of texts: pass a list, such as [{str(texts[0])!r}]"
        )
    return texts


@lru_cache(maxsize=8192)
def matches_table(patterns: tuple[str, ...] | frozenset[str], schema: str, table: str) -> bool:
    """Return whether one of the patterns matches a table."""
    full = f"{schema}.{table}" if schema else table
    return any(fnmatchcase(full if "." in pattern else table, pattern) for pattern in patterns)


def is_glob(pattern: str) -> bool:
    """Return whether a pattern may match several names."""
    return bool(set("*?[") & set(pattern))


class Unmatched(NamedTuple):
    """Texts about patterns that match no table. A glob may be meant for tables that will be added later."""

    names: list[str]
    globs: list[str]


def unmatched(
    parameter: str, patterns: Iterable[str], tables: Sequence[SourceTable], source: str
) -> Unmatched:
    """Return texts about the patterns of a parameter that match none of the tables of `source`."""
    found = Unmatched([], [])
    for pattern in dict.fromkeys(patterns):
        if not any(matches_table((pattern,), table.schema, table.name) for table in tables):
            # A name without a schema is compared with names alone, or their schemas would make every name different.
            known = {str(table) if "." in pattern else table.name: str(table) for table in tables}
            meant = did_you_mean(pattern, known, shown=known)
            (found.globs if is_glob(pattern) else found.names).append(
                f"{parameter}: no table of {source} matches {pattern!r}{meant or '.'} Its tables are: {_listed(tables)}"
            )
    return found


def unmatched_selection(selection: TableSelection, tables: Sequence[SourceTable], source: str) -> Unmatched:
    """Return texts about the patterns of a selection that match nothing, and about one that selects no table.

    `tables`: the tables of `source`. None if it has no tables: another check says so.
    """
    if not tables or selection == EVERY_TABLE:
        return Unmatched([], [])
    found = Unmatched([], [])
    for parameter in ("tables", "without_tables"):
        names, globs = unmatched(parameter, getattr(selection, parameter), tables, source)
        found.names.extend(names)
        found.globs.extend(globs)
    if not found.names and not any(selection.has(table.schema, table.name) for table in tables):
        found.names.append(
            f"tables, without_tables: they select no table of {source}, so nothing would be read. Change the patterns. "
            f"Its tables are: {_listed(tables)}"
        )
    return found


def _listed(tables: Sequence[SourceTable]) -> str:
    names = sorted(map(str, tables))
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return (", ".join(names[:_SHOWN]) or "none") + more
