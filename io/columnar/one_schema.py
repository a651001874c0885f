"""Gives the events of an epoch one type for each column, although they were made under several schemas. Pure.

A table has one type for a column, and a batch of Arrow too. So a type that has changed within an epoch is decided here,
before anything is folded or written.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache

import msgspec

from penstock.event.column_types import ColumnType
from penstock.event.model import ChangeEvent, Column, Image, Source, TableSchema
from penstock.event.plain_types import plain_type
from penstock.event.schema_changes import Policy, SchemaChangedError, changed_type, wider_type
from penstock.io.columnar.replica import TableEvents

logger = logging.getLogger(__name__)


def with_one_schema(name: str, table: TableEvents, held: TableSchema, policy: Policy) -> TableEvents:
    """Return events that all have the same columns with the same types, those that the table can take.

    `held` are the columns of the images that the table `name` has; none if it is new. A column whose type has changed
    to one with other values is left out with the policy *ignore*: rows keep the value that they have.

    Raises:
        SchemaChangedError: the types of a column have no common one.
    """
    # `dict.fromkeys` keeps the order of the events: the first schema decides where nothing else does.
    schemas = dict.fromkeys(event.schema for event in table.events if event.schema.columns)
    # Nothing to decide. With *ignore* the one schema may still differ from the table's.
    if len(schemas) < 2 and policy != "ignore":
        return table
    joined, left_out = joined_schema(name, table.source, schemas, held, policy)
    return replace(
        table, events=[_adapted(event, joined, left_out.get(event.schema)) for event in table.events]
    )


def joined_schema(
    name: str, source: Source, schemas: Iterable[TableSchema], held: TableSchema, policy: Policy
) -> tuple[TableSchema, dict[TableSchema, frozenset[str]]]:
    """Return what `one_schema` does for the table `name` with the columns `held`; warn of columns that are left out."""
    joined, left_out = one_schema(name, {column.name: column.type for column in held}, schemas, policy)
    for column in sorted(frozenset().union(*left_out.values())):
        _warn_once(
            f"column {column} of {source.qualified_table} has another type than in {name}, and "
            "schema_changes='ignore': its new values are not written, and rows keep the value that they have"
        )
    return joined, left_out


def one_schema(
    table: str, target: Mapping[str, ColumnType], schemas: Iterable[TableSchema], policy: Policy
) -> tuple[TableSchema, dict[TableSchema, frozenset[str]]]:
    """Return one schema for changes that were made under several, and the columns that each of these leaves out.

    The types are those that hold the values of all. With the policy *ignore* a column is left out of the changes whose
    type of it has other values than the column's type in `target` (or, if `target` does not have it, in the first
    schema).

    Raises:
        SchemaChangedError: the types of a column have no common one, and the policy is not *ignore* or the column is
            a part of the primary key.
    """
    joined: dict[str, Column] = {}
    left_out: dict[TableSchema, frozenset[str]] = {}
    for schema in schemas:
        others = set()
        for column in schema:
            before = joined.get(column.name)
            # Only this policy keeps the column of the table; the others alter it or fail.
            known = target.get(column.name) if policy == "ignore" else None
            if known is not None and wider_type(known, plain_type(column.type)) is None:
                unlike = known
            elif before is None:
                joined[column.name] = column
                continue
            elif (wider := wider_type(before.type, column.type)) is not None:
                joined[column.name] = msgspec.structs.replace(column, type=wider)
                continue
            else:
                unlike = before.type
            # Rows are found by their key, so a column of the key cannot be left out.
            if policy != "ignore" or column.key_position:
                raise SchemaChangedError(f"{changed_type(table, column, unlike)}: {_remedy(column)}")
            others.add(column.name)
        left_out[schema] = frozenset(others)
    return TableSchema(tuple(joined.values())), left_out


def _remedy(column: Column) -> str:
    if column.key_position:
        return "a column of the primary key cannot be left out: write to another table, with a snapshot"
    return "set schema_changes='ignore', which leaves the column as it is"


def _adapted(event: ChangeEvent, joined: TableSchema, left_out: frozenset[str] | None) -> ChangeEvent:
    # Most events already have the final schema, and are not copied.
    if left_out is None or (not left_out and event.schema == joined):
        return event

    def without(image: Image | None) -> Image | None:
        if image is None or image.keys().isdisjoint(left_out):
            return image
        return {name: value for name, value in image.items() if name not in left_out}

    return msgspec.structs.replace(
        event, schema=joined, before=without(event.before), after=without(event.after)
    )


# Once per process and text: each epoch would repeat it.
@cache
def _warn_once(text: str) -> None:
    logger.warning("%s", text)
