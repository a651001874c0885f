"""Compares the choices about columns with the tables that a source has. Pure.

A name that matches nothing would leave out nothing, mask nothing, or stop the pipeline at the first change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock.pipelines.event_options import EventOptions, table_and_column
from penstock.suggestions import did_you_mean
from penstock.tables import SourceTable, is_glob, matches_table, unmatched
from penstock.transforms.expression import RowExpression


class Findings(NamedTuple):
    """`problems`: what cannot be meant. `warnings`: what may be meant for tables that are added later."""

    problems: list[str]
    warnings: list[str]


def has_choices(options: EventOptions) -> bool:
    """Whether a choice names columns."""
    return bool(options.where or any(_columns_of(options).values()))


def check_choices(
    options: EventOptions, tables: Sequence[SourceTable], source: str, *, needs_keys: bool = False
) -> Findings:
    """Return what is wrong about the choices. `tables`: those that the source reads; `source` names it in texts.

    `needs_keys`: the sink maintains one row for each primary key.
    """
    found = Findings([], [])
    if not tables:  # another check says so
        return found
    if needs_keys:
        _check_keys(found, options, tables, source)
    for parameter, references in _columns_of(options).items():
        for pattern, column in map(table_and_column, references):
            _check_column(found, parameter, pattern, column, tables, source)
    if options.where:
        _check_condition(found, RowExpression(options.where), tables, source)
    return found


def nan_warnings(options: EventOptions, tables: Sequence[SourceTable]) -> list[str]:
    """Return the warning about columns in which one NaN would stop the pipeline; none with dead letters.

    `tables`: those that the source reads, for a format that refuses NaN.
    """
    if options.dead_letters is not None:
        return []
    found = [
        f"{table}.{column}"
        for table in tables
        for column in table.decimals
        if not _is_left_out(options, table, column)
    ]
    if not found:
        return []
    shown = ", ".join(found[:_SHOWN]) + (f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else "")
    return [
        f"{shown}: a numeric column may hold NaN or Infinity, which format {options.format} cannot show with "
        "decimal_handling_mode=precise, and one such value stops the pipeline. If your rows may have them, set "
        "debezium.decimal_handling_mode to string or double, or set dead_letters"
    ]


def partial_warnings(options: EventOptions, capture_type: str) -> list[str]:
    """Return the warning about records of Spanner that name the changed columns only; for a format with schemas."""
    if capture_type not in ("OLD_AND_NEW_VALUES", "NEW_VALUES"):
        return []
    return [
        f"the change stream has the value_capture_type {capture_type}, so a record names the columns that changed and "
        f"no others, and the schema of format {options.format} differs from record to record. For one schema, change "
        "the stream to NEW_ROW or NEW_ROW_AND_OLD_VALUES, or set materialize_rows=true"
    ]


def _is_left_out(options: EventOptions, table: SourceTable, column: str) -> bool:
    """Whether a column is not sent, or sent as a masked text."""

    def names(references: Iterable[str]) -> bool:
        meant = map(table_and_column, references)
        return any(
            column == each and matches_table((pattern,), table.schema, table.name) for pattern, each in meant
        )

    kept = not options.only_columns or names(options.only_columns)
    return not kept or names(options.without_columns) or names(options.mask_columns)


_SHOWN = 5
"""Columns that a warning names."""


def _columns_of(options: EventOptions) -> dict[str, Iterable[str]]:
    return {
        "only_columns": options.only_columns,
        "without_columns": options.without_columns,
        "mask_columns": options.mask_columns,
        "rename_columns": options.rename_columns,
    }


def _check_keys(found: Findings, options: EventOptions, tables: Sequence[SourceTable], source: str) -> None:
    names = ", ".join(str(table) for table in tables if not table.has_key)
    if not names:
        return
    text = (
        f"tables of {source} without a primary key: {names}. The target has one row for each primary key, so "
    )
    if options.dead_letters is None:
        found.problems.append(
            f"{text}their first change would stop the pipeline: leave them out (without_tables), give them a primary "
            "key, or write every change as a row (mode=log), if the sink has this mode"
        )
    else:
        found.warnings.append(
            f"{text}all of their changes become dead letters: leave them out (without_tables)"
        )


def _check_column(
    found: Findings, parameter: str, pattern: str, column: str, tables: Sequence[SourceTable], source: str
) -> None:
    names, globs = unmatched(parameter, [pattern], tables, source)
    found.problems.extend(names)
    found.warnings.extend(globs)
    meant = [table for table in tables if matches_table((pattern,), table.schema, table.name)]
    if meant and not any(column in table.columns for table in meant):
        known = dict.fromkeys(name for table in meant for name in table.columns)
        where = str(meant[0]) if len(meant) == 1 else f"no table of {source}"
        where += "" if pattern == "*" or len(meant) == 1 else f" that matches {pattern!r}"
        verb = "has no column" if len(meant) == 1 else "has a column"
        (found.warnings if is_glob(pattern) and pattern != "*" else found.problems).append(
            f"{parameter}: {where} {verb} {column!r}{did_you_mean(column, known)}"
        )


def _check_condition(
    found: Findings, where: RowExpression, tables: Sequence[SourceTable], source: str
) -> None:
    for column in where.columns:
        lacking = [table for table in tables if column not in table.columns]
        if tables and len(lacking) == len(tables):
            known = dict.fromkeys(name for table in tables for name in table.columns)
            found.problems.append(
                f"where: no table of {source} that is read has a column {column!r}{did_you_mean(column, known)}"
            )
        elif lacking and not where.chooses_tables:
            found.warnings.append(
                f"where: {', '.join(map(str, lacking))}: no column {column!r}, so the first change of such a table "
                f"cannot be processed. Leave the table out (without_tables), or write sent('{column}') and …"
            )
