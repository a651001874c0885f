"""How a sink reacts to columns that were added to a table, and to types that became wider. Pure.

| `schema_changes` | a new column | a wider type | another type |
|---|---|---|---|
| evolve | is added to the target | the target's column becomes wider | error |
| ignore | is not written | the column stays; a value that does not fit is refused | the same; tables leave it out |
| stop | error | error | error |

A column that the source no longer has stays in the target. "Tables leave it out": `penstock.io.columnar.one_schema`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import msgspec

from penstock.errors import ServiceError
from penstock.event.column_types import ColumnType, Field, Kind
from penstock.event.model import Column, TableSchema

Policy = Literal["evolve", "ignore", "stop"]

_INTEGERS = ("INT8", "INT16", "INT32", "INT64")
_UNSIGNED = ("UINT8", "UINT16", "UINT32", "UINT64")


class SchemaChangedError(ServiceError):
    """The columns of the source no longer fit the target's, and the policy does not allow the change."""

    retryable = False


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """The changes that a target needs before rows of a new schema can be written.

    `added` are new columns. `widened` are columns of the target with their wider types. `ignored` are names of columns
    that are not written.
    """

    added: tuple[Column, ...] = ()
    widened: tuple[Column, ...] = ()
    ignored: frozenset[str] = frozenset()

    @property
    def alters(self) -> bool:
        """Whether the target must be altered."""
        return bool(self.added or self.widened)


def plan_schema_change(
    table: str, target: Mapping[str, ColumnType], schema: TableSchema, policy: Policy
) -> SchemaChange:
    """Return how a target with the columns `target` takes rows of `schema`.

    Raises:
        SchemaChangedError: the policy forbids the change, or a type changed to one that is not wider.
    """
    added, widened, ignored = [], [], set()
    for column in schema:
        known = target.get(column.name)
        if known is None:
            added.append(column)
        elif not _same(known, column.type):
            wider = wider_type(known, column.type)
            if wider is None and policy != "ignore":
                raise SchemaChangedError(
                    f"{changed_type(table, column, known)}: change the column of the target by hand, or set "
                    "schema_changes='ignore', which leaves the column as it is"
                )
            if wider is not None and not _same(known, wider):
                widened.append(msgspec.structs.replace(column, type=wider))
    if policy == "ignore":
        ignored = {column.name for column in added}
        added, widened = [], []
    elif policy == "stop" and (added or widened):
        names = ", ".join(column.name for column in (*added, *widened))
        raise SchemaChangedError(
            f"table {table} has new columns or wider types: {names}. schema_changes='stop' lets nothing be altered: "
            "alter the target and start again, or set schema_changes='evolve' or 'ignore'"
        )
    return SchemaChange(tuple(added), tuple(widened), frozenset(ignored))


def wider_type(known: ColumnType, new: ColumnType) -> ColumnType | None:
    """Return the type that holds all values of both without loss, or None if there is none in the event model."""
    if _same(known, new):
        return known
    for family in (_INTEGERS, _UNSIGNED, ("FLOAT32", "FLOAT64")):
        if known.kind in family and new.kind in family:
            return known if family.index(known.kind) > family.index(new.kind) else new
    # A double holds all integers up to 53 bits.
    small = {Kind.INT8, Kind.INT16, Kind.INT32, Kind.UINT8, Kind.UINT16, Kind.UINT32}
    for one, other in ((known, new), (new, known)):
        if one.kind in small and other.kind is Kind.FLOAT64:
            return other
        if one.kind in (Kind.UINT8, Kind.UINT16, Kind.UINT32) and other.kind is Kind.INT64:
            return other
    if known.kind is Kind.DECIMAL and new.kind is Kind.DECIMAL:
        return _wider_decimal(known, new)
    if known.kind is Kind.ARRAY and new.kind is Kind.ARRAY and known.element and new.element:
        element = wider_type(known.element, new.element)
        return None if element is None else msgspec.structs.replace(new, element=element)
    if {known.kind, new.kind} <= {Kind.ENUM, Kind.STRING}:
        return known if known.kind is Kind.STRING else new
    return None


def _wider_decimal(known: ColumnType, new: ColumnType) -> ColumnType:
    if known.precision is None or new.precision is None:  # no limit
        return known if known.precision is None else new
    scale = max(known.scale or 0, new.scale or 0)
    whole = max(known.precision - (known.scale or 0), new.precision - (new.scale or 0))
    for each in (known, new):
        if (each.precision, each.scale or 0) == (whole + scale, scale):
            return each
    return ColumnType(Kind.DECIMAL, f"NUMERIC({whole + scale},{scale})", whole + scale, scale)


def _same(one: ColumnType, other: ColumnType) -> bool:
    """Whether two types hold the same values. The source's names of the types are not compared."""
    if one.kind is not other.kind:
        return False
    if one.kind is Kind.DECIMAL:
        return (one.precision, one.scale) == (other.precision, other.scale)
    if one.kind is Kind.ARRAY and one.element and other.element:
        return _same(one.element, other.element)
    if one.kind is Kind.STRUCT:
        return len(one.fields) == len(other.fields) and all(map(_same_field, one.fields, other.fields))
    return True


def _same_field(one: Field, other: Field) -> bool:
    return one.name == other.name and _same(one.type, other.type)


def changed_type(table: str, column: Column, known: ColumnType) -> str:
    """Return what has happened to a column, for messages."""
    return (
        f"column {column.name} of table {table} changed from {_text(known)} to {_text(column.type)}, which does not "
        "hold all of its values"
    )


def _text(type_: ColumnType) -> str:
    return type_.native or type_.kind.value


@lru_cache(maxsize=4096)
def merged_schema(known: TableSchema, new: TableSchema) -> TableSchema:
    """Return the columns of both. The definitions of `new` count; columns of `known` keep their order."""
    if known == new or not new.columns:
        return known
    columns: dict[str, Column] = {column.name: column for column in known}
    columns.update((column.name, column) for column in new)
    return TableSchema(tuple(columns.values()))
