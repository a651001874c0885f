"""Gives the events of an epoch one type for each column, although they were made under several schemas. Pure.

A table has one type for a column, and a batch of Arrow too. So a type that has changed within an epoch is decided here,
before anything is folded or written.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from penstock.event.model import Source, TableSchema
from penstock.event.plain_types import plain_type
from penstock.event.schema_changes import Adaptation, one_schema, warn_once
from penstock.event.schema_policies import ChangePolicies
from penstock.io.columnar.replica import TableEvents

_UNCHANGED = Adaptation()


def with_one_schema(
    name: str, table: TableEvents, held: TableSchema, policies: ChangePolicies
) -> TableEvents:
    """Return events that all have the same columns with the same types, those that the table can take.

    `held` are the columns of the images that the table `name` has; none if it is new. A column whose type has changed
    to one with other values is left out with the policy *ignore*: rows keep the value that they have. With *lenient* a
    new column takes the values.

    Raises:
        SchemaChangedError: the types of a column have no common one.
    """
    # `dict.fromkeys` keeps the order of the events: the first schema decides where nothing else does.
    schemas = dict.fromkeys(event.schema for event in table.events if event.schema.columns)
    # Nothing to decide. With the policies that keep a column the one schema may still differ from the table's.
    if len(schemas) < 2 and not policies.keeps_other_types:
        return table
    joined, adaptations = joined_schema(name, table.source, schemas, held, policies)
    return replace(
        table,
        events=[
            adaptations.get(event.schema, _UNCHANGED).event(event, joined) if event.schema.columns else event
            for event in table.events
        ],
    )


def joined_schema(
    name: str, source: Source, schemas: Iterable[TableSchema], held: TableSchema, policies: ChangePolicies
) -> tuple[TableSchema, dict[TableSchema, Adaptation]]:
    """Return what `one_schema` does for the table `name` with the columns `held`; warn of columns with another type."""
    target = {column.name: column.type for column in held}
    joined, adaptations = one_schema(name, target, schemas, policies, plain_type)
    for column in sorted({each for adaptation in adaptations.values() for each in adaptation.left_out}):
        warn_once(
            f"column {column} of {source.qualified_table} has another type than in {name}, and "
            "schema_changes='ignore': its new values are not written, and rows keep the value that they have"
        )
    for column, home in sorted(
        {each for adaptation in adaptations.values() for each in adaptation.moved.items()}
    ):
        warn_once(
            f"column {column} of {source.qualified_table} has another type than in {name}, and "
            f"schema_changes='lenient': its new values are in the column {home}"
        )
    return joined, adaptations
