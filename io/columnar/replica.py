"""Shared by all table sinks: the events of an epoch by table, and the column changes that they need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, get_args

import msgspec

from penstock.errors import PenstockError, UnwritableError, UsageError
from penstock.event.column_numbers import follows_numbers
from penstock.event.model import ChangeEvent, Source, TableSchema
from penstock.event.replica import by_table
from penstock.event.schema_changes import (
    SchemaChange,
    SchemaChangedError,
    merged_schema,
    plan_schema_change,
)
from penstock.event.schema_policies import Abilities, ChangePolicies, Entries, check_policies, policies_of
from penstock.io.columnar.block_events import ROWS
from penstock.io.columnar.table_rows import PREFIX, Mode
from penstock.io.staging.arguments import SOURCE_NAMES, check_choice, check_placeholders
from penstock.io.staging.batch import StagedBatch, StagedEvents
from penstock.io.staging.coders import RecordBlockCoder
from penstock.io.staging.formatted_run import decode_staged
from penstock.tables import EVERY_TABLE, TableSelection

COMMITS_AT_ONCE = 8
"""Tables that are committed at the same time. More would wait for Python: a commit to a disk costs some 20 ms of CPU
time. One to an object store or a REST catalogue mostly waits."""


LOG_CANNOT_MOVE = "Older changes stay in a log under the names that they had."
"""Why a log renames and drops no columns."""


@dataclass(frozen=True, slots=True)
class TableEvents:
    """The events of one table in an epoch, in the order of their versions."""

    source: Source
    events: Sequence[ChangeEvent]

    @property
    def schema(self) -> TableSchema:
        """The columns of all events."""
        return reduce(merged_schema, (event.schema for event in self.events), TableSchema(()))


def events_of_epoch(
    batches: Sequence[StagedBatch], selection: TableSelection = EVERY_TABLE
) -> list[TableEvents]:
    """Return the events of an epoch by table, for the tables that are selected now.

    The events of a table are `penstock.io.columnar.whole_rows.WholeRows` if some of them are staged as rows.

    Raises:
        UsageError: change rows of the mode *log* are staged.
    """
    decode_block = RecordBlockCoder().decode
    staged = [each for batch in batches for each in StagedEvents(batch, decode_block, _decoded, selection)]
    events = [each for each in staged if isinstance(each, ChangeEvent)]
    tables = by_table(events)
    # Always so for targets without Arrow, which stage no rows.
    if len(events) == len(staged):
        return [TableEvents(each[0].source, each) for each in tables.values()]
    from penstock.io.columnar.whole_rows import WholeRows

    whole: dict[tuple[str, str, str], WholeRows] = {}
    for rows in staged:
        source = rows.source
        name = source.database, source.schema, source.table
        # A table gets all of its events when it is met first; an event that comes later adds nothing.
        if name not in whole:
            whole[name] = WholeRows(source, tables.get(name, ()))
        if not isinstance(rows, ChangeEvent):
            whole[name].add_rows(rows.whole, rows.rows)
    return [TableEvents(each.source, each) for each in whole.values()]


def _decoded(record: bytes) -> Iterable[Any]:
    """Yield what a staged record holds: events, or rows (`penstock.io.columnar.row_runs.TableRows`)."""
    if not record.startswith(ROWS):
        return decode_staged(record)
    # Imported here, because targets without Arrow use this module too, and they stage no rows.
    from penstock.io.columnar.row_runs import decode_rows

    rows = decode_rows(record)
    if rows.whole is None:
        raise UsageError(
            f"the checkpoint holds changes of {rows.source.qualified_table} that were staged with mode='log': start "
            "the pipeline once with mode='log', which writes them, and change the mode then"
        )
    return [rows]


def with_one_commit_each(
    pattern: str, tables: Iterable[TableEvents], schema_changes: Entries
) -> list[TableEvents]:
    """Return events by table of the target, whose name is `pattern`. Several databases may have one target.

    A second commit in an epoch would be taken for a repeat of the first one.

    Raises:
        UsageError: several databases have one target, and `schema_changes` needs the numbers of their columns.
    """
    merged: dict[tuple[str, str, str], TableEvents] = {}
    for each in tables:
        source = each.source
        name = table_name(pattern, source), source.schema, source.table
        first = merged.setdefault(name, each)
        if first is not each:
            # Each database has other numbers.
            if follows_numbers(policies_of(schema_changes, source.schema, source.table)):
                raise UsageError(
                    f"the table {source.qualified_table} of several databases has one target, which cannot follow "
                    "renamed and dropped columns of each: give the name of the table the placeholder {database}, or "
                    "leave rename and drop out of schema_changes"
                )
            of_first = [msgspec.structs.replace(event, source=first.source) for event in each.events]
            merged[name] = replace(first, events=[*first.events, *of_first])
    return list(merged.values())


def raise_refused(
    sources: Sequence[Source], errors: Sequence[PenstockError | None], schema_changes: Entries
) -> None:
    """Raise the error of the first table of an epoch that has one, and say which others have one too."""
    failed = [(source, error) for source, error in zip(sources, errors, strict=True) if error is not None]
    if not failed:
        return
    (source, first), *others = failed
    # Only errors with a remedy in the parameters are explained further.
    if not isinstance(first, SchemaChangedError | UnwritableError | UsageError):
        raise first
    text = f"{source.qualified_table}: {str(first).rstrip('.')}. All other tables of the epoch are written"
    if others:
        text += f", except {', '.join(other.qualified_table for other, _ in others)}, which cannot be either"
    # With another policy columns are as wide as their values.
    policies = policies_of(schema_changes, source.schema, source.table)
    is_narrow = policies.widen == "ignore" and isinstance(first, UnwritableError)
    wider = "to make the column wider, set schema_changes='evolve'; " * is_narrow
    raise type(first)(
        f"{text}. Parameters of the next start hold for these changes too: {wider}to go on without the table, set "
        f"without_tables={source.qualified_table}"
    ).with_traceback(first.__traceback__) from None  # its text is in this one


def row_columns(held: TableSchema) -> TableSchema:
    """Return the columns of the source, from the columns of a table in the mode *current* or *history*."""
    # The sink's own columns begin with its prefix.
    return TableSchema(tuple(column for column in held if not column.name.startswith(PREFIX)))


def table_for(name: str, source: Source, sources: dict[str, Source]) -> str:
    """Return the table for events of `source`, from a name with placeholders; `sources` has the tables of this epoch.

    Raises:
        UsageError: another source has the same table.
    """
    table = table_name(name, source)
    check_source(table, source, sources)
    return table


def table_name(name: str, source: Source) -> str:
    """Return the table for events of `source`, from a name with placeholders."""
    return name.format(table=source.table, schema=source.schema, database=source.database)


def check_source(table: str, source: Source, sources: dict[str, Source]) -> None:
    """Note in `sources` that events of `source` go to a table.

    Raises:
        UsageError: another source has the same table.
    """
    other = sources.setdefault(table, source)
    # Only schema and table are compared: one table may get the changes of several databases.
    if other != source and (other.schema, other.table) != (source.schema, source.table):
        raise UsageError(
            f"events of {other.schema}.{other.table} and of {source.schema}.{source.table} would go to one table, "
            f"{table}: give the name a placeholder, one of {{table}}, {{schema}} and {{database}}, or use one sink for "
            "each table"
        )


def schema_change(
    table: str, target: TableSchema, wanted: TableSchema, policies: ChangePolicies
) -> tuple[TableSchema, SchemaChange]:
    """Return the columns that the target has afterwards, and how it changes; plain columns only.

    Raises:
        SchemaChangedError: the policy forbids the change, or a type changed to one that is not wider.
        UsageError: the target was not made by a sink of Penstock in this mode.
    """
    known = {column.name: column.type for column in target}
    missing = [
        column.name for column in wanted if column.name.startswith(PREFIX) and column.name not in known
    ]
    # Without its columns the sink cannot compare versions.
    if missing:
        raise UsageError(
            f"table {table} exists and has no columns {', '.join(missing)}: it was not made by this sink in this "
            "mode. Give the sink another table"
        )
    change = plan_schema_change(table, known, wanted, policies)
    wider = {column.name: column for column in change.widened}
    columns = [
        msgspec.structs.replace(column, type=wider[column.name].type) if column.name in wider else column
        for column in target
    ]
    return TableSchema((*columns, *change.added)), change


def check_arguments(
    name: str,
    table: str,
    mode: Mode,
    schema_changes: Entries,
    abilities: Mapping[Mode, Abilities],
    format_: str,
    cannot_move: str = "",
) -> None:
    """Refuse values that are not allowed; `name` is the argument with the table.

    `abilities`, `cannot_move` (in the modes current and history): see `check_policies`. `format_` names the target
    in messages, such as ``a Delta table``.
    """
    check_placeholders(name, table, SOURCE_NAMES)
    check_choice("mode", mode, get_args(Mode))
    reason = LOG_CANNOT_MOVE if mode == "log" else cannot_move
    check_policies(schema_changes, abilities[mode], f"{format_} with mode={mode}", cannot_move=reason)
