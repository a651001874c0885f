"""Renamed and dropped columns of a source in a table of one commit per epoch; see `column_numbers` of events. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import msgspec

from penstock.event.column_numbers import (
    ColumnMoves,
    NumberedColumn,
    Numbers,
    adapted_by_number,
    column_moves,
)
from penstock.event.model import TableSchema
from penstock.event.replica import encode_version
from penstock.event.schema_changes import SchemaChangedError
from penstock.event.schema_policies import ChangePolicies
from penstock.io.columnar.replica import TableEvents


def moves_for(
    name: str, known: Numbers, held: TableSchema, events: TableEvents, policies: ChangePolicies
) -> ColumnMoves:
    """Return what the table `name` with the columns `held` does before events are written; see `column_moves`."""
    lowest: dict[TableSchema, str] = {}
    # The events are in the order of their versions.
    for event in events.events:
        # A TRUNCATE has no columns.
        if event.schema.columns:
            lowest.setdefault(event.schema, encode_version(event.version))
    schemas = [(version, schema) for schema, version in lowest.items()]
    has_numbers = events.source.system == "postgresql"
    return column_moves(name, known, frozenset(held.names), schemas, policies, has_numbers=has_numbers)


def under_names_of_now(events: TableEvents, moves: ColumnMoves, policies: ChangePolicies) -> TableEvents:
    """Return events under the names that the table has after `moves`."""
    names = {
        schema: adapted_by_number(moves.known, numbered, policies)
        for schema, numbered in moves.numbered.items()
    }
    if not any(adaptation for adaptation, _ in names.values()):
        return events
    return replace(
        events,
        events=[
            # A TRUNCATE has no columns, so its schema has no entry.
            names[event.schema][0].event(event, names[event.schema][1]) if event.schema in names else event
            for event in events.events
        ],
    )


def check_partition_columns(
    name: str, moves: ColumnMoves, fields: Collection[str], asked: Sequence[str]
) -> None:
    """Refuse moves that a partitioned table cannot make.

    `fields` are the columns by which it is partitioned, `asked` those that `partition_by` names for it.

    Raises:
        SchemaChangedError: a dropped column is one of them, or a renamed one is named by its old name.
    """
    old_names = {new: old for old, new in moves.renamed.items()}
    for column in moves.dropped:
        # The column may have been renamed before it was dropped, and the table still has its old name.
        if column in fields or old_names.get(column) in fields:
            raise SchemaChangedError(
                f"table {name} is partitioned by the column {column}, which the source does not have any more, and a "
                "table keeps the columns of its partitions: set drop=lenient for it in schema_changes"
            )
    for old in moves.renamed.keys() & set(asked):
        raise SchemaChangedError(
            f"table {name}: the column {old} is called {moves.renamed[old]} in the source now, and partition_by names "
            "it: leave its entry out. The table keeps its partitions"
        )


def encode_numbers(known: Numbers) -> str:
    """Return the columns of a source by number as a text for the metadata of a table."""
    return msgspec.json.encode({str(number): column for number, column in sorted(known.items())}).decode()


def decode_numbers(text: str | None) -> Numbers:
    """Return what `encode_numbers` has encoded; None: nothing is known."""
    return {} if text is None else msgspec.json.decode(text, type=dict[int, NumberedColumn])
