"""How a target reacts to columns of the source that are new or have another type. Pure.

`penstock.event.schema_policies` says which policy holds for a table and a kind of change.

| policy | a new column (add) | a wider type (widen) | another type (type) | a narrower type (narrow) |
|---|---|---|---|---|
| evolve, try_evolve | is added to the target | the target's column becomes wider | error | the column stays |
| lenient | is added | becomes wider | a new column takes the values: `one_schema` | the column stays |
| ignore | is not written | the column stays; it may refuse a value | the same; tables leave it out | the column stays |
| stop | error | error | error | error |

A column that the source no longer has stays in the target. "Tables leave it out": `one_schema`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache

import msgspec

from penstock.errors import ServiceError
from penstock.event.column_types import ColumnType, Field, Kind
from penstock.event.model import ChangeEvent, Column, Image, TableSchema
from penstock.event.schema_policies import ChangePolicies

logger = logging.getLogger(__name__)

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
    table: str, target: Mapping[str, ColumnType], schema: TableSchema, policies: ChangePolicies
) -> SchemaChange:
    """Return how a target with the columns `target` takes rows of `schema`.

    Raises:
        SchemaChangedError: the policy forbids the change, or a type changed to one that is not wider.
    """
    added, widened, narrowed = list[Column](), list[Column](), list[Column]()
    for column in schema:
        known = target.get(column.name)
        if known is None:
            added.append(column)
        elif not _same(known, column.type):
            wider = wider_type(known, column.type)
            if wider is not None:
                (narrowed if _same(known, wider) else widened).append(
                    msgspec.structs.replace(column, type=wider)
                )
            elif not policies.keeps_other_types:
                raise SchemaChangedError(
                    f"{changed_type(table, column, known)}: change the column of the target by hand, or set "
                    "schema_changes='ignore', which leaves the column as it is"
                )
    kinds = {
        "add": ("new columns", added),
        "widen": ("wider types", widened),
        "narrow": ("narrower types", narrowed),
    }
    _check_allowed(table, {kind: each for kind, each in kinds.items() if getattr(policies, kind) == "stop"})
    ignored = frozenset(column.name for column in added) if policies.add == "ignore" else frozenset[str]()
    return SchemaChange(
        () if ignored else tuple(added), () if policies.widen == "ignore" else tuple(widened), ignored
    )


def _check_allowed(table: str, stopped: Mapping[str, tuple[str, list[Column]]]) -> None:
    """Raise SchemaChangedError if one of the kinds of change whose policy is *stop* has columns."""
    found = {kind: each for kind, each in stopped.items() if each[1]}
    if not found:
        return
    what = " or ".join(words for words, _ in found.values())
    names = ", ".join(column.name for _, columns in found.values() for column in columns)
    raise SchemaChangedError(
        f"table {table} has {what}: {names}. schema_changes='stop' for {', '.join(found)} lets nothing be altered: "
        "alter the target and start again, or set schema_changes='evolve' or 'ignore'"
    )


@dataclass(frozen=True, slots=True)
class Adaptation:
    """How the changes of one schema are written to a table whose columns have other types.

    `left_out` are columns that are not written. `moved` says which column takes the values of a column. `emptied` says
    which columns become NULL when a column is written.
    """

    left_out: frozenset[str] = frozenset()
    moved: Mapping[str, str] = field(default_factory=dict)
    emptied: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.left_out or self.moved or self.emptied)

    def image(self, image: Image | None) -> Image | None:
        """Return an image as it is written."""
        if image is None or not self:
            return image
        written = {
            self.moved.get(name, name): value for name, value in image.items() if name not in self.left_out
        }
        for name, others in self.emptied.items():
            # Nothing is known of a column that was not sent.
            if name in image:
                written |= dict.fromkeys(others)
        return written

    def event(self, event: ChangeEvent, joined: TableSchema) -> ChangeEvent:
        """Return an event as it is written to a table with the columns `joined`."""
        # Most events already have the final schema, and are not copied.
        if not self and event.schema == joined:
            return event
        return msgspec.structs.replace(
            event,
            schema=joined,
            key=self.image(event.key),
            before=self.image(event.before),
            after=self.image(event.after),
        )


def one_schema(
    table: str,
    target: Mapping[str, ColumnType],
    schemas: Iterable[TableSchema],
    policies: ChangePolicies,
    stored: Callable[[ColumnType], ColumnType] = lambda each: each,
) -> tuple[TableSchema, dict[TableSchema, Adaptation]]:
    """Return one schema for changes that were made under several, and how the changes of each of these are written.

    The types are those that hold the values of all. Where the type of a column has other values than the column's type
    in `target` (or, if `target` does not have it, in the first schema), the policy decides: with *ignore* the column is
    left out of these changes, with *lenient* another column takes the values, which is called as `home_of` says. Then
    one of the columns has the value, and the others are NULL. `stored`: the type with which the target stores a type. A
    column of `target` with the type OTHER takes the values of every type.

    Raises:
        SchemaChangedError: the types of a column have no common one, and the policy is another one or the column is
            a part of the primary key.
    """
    joined: dict[str, Column] = {}
    adaptations = {}
    for schema in schemas:
        left_out, moved = set(), {}
        for column in schema:
            unlike = _join(joined, target, column, policies, stored)
            if unlike is None:
                continue
            # Rows are found by their key, so a column of the key cannot be left out.
            if not policies.keeps_other_types or column.key_position:
                raise SchemaChangedError(f"{changed_type(table, column, unlike)}: {_remedy(column)}")
            if policies.type == "ignore":
                left_out.add(column.name)
                continue
            home = Column(home_of(column), column.type)
            if home.name in schema.names or _join(joined, target, home, policies, stored) is not None:
                raise SchemaChangedError(
                    f"{changed_type(table, column, unlike)}, and the column {home.name}, which "
                    "schema_changes='lenient' gives to its values, is there with another content: rename that column"
                )
            moved[column.name] = home.name
        adaptations[schema] = Adaptation(frozenset(left_out), moved)
    if policies.type == "lenient":
        adaptations = {
            schema: replace(each, emptied=_emptied(joined, target, schema, each.moved))
            for schema, each in adaptations.items()
        }
    return TableSchema(tuple(joined.values())), adaptations


def _join(
    joined: dict[str, Column],
    target: Mapping[str, ColumnType],
    column: Column,
    policies: ChangePolicies,
    stored: Callable[[ColumnType], ColumnType],
) -> ColumnType | None:
    """Give `joined` a type that holds the values of a column too; return the type that does not allow it."""
    before = joined.get(column.name)
    # Only these policies keep the column of the table; the others alter it or fail.
    known = target.get(column.name) if policies.keeps_other_types else None
    if known is not None and known.kind is Kind.OTHER:
        joined[column.name] = column
        return None
    if known is not None and wider_type(known, stored(column.type)) is None:
        return known
    if before is None:
        joined[column.name] = column
    elif (wider := wider_type(before.type, column.type)) is not None:
        joined[column.name] = msgspec.structs.replace(column, type=wider)
    else:
        return before.type
    return None


def _emptied(
    joined: dict[str, Column], target: Mapping[str, ColumnType], schema: TableSchema, moved: Mapping[str, str]
) -> dict[str, tuple[str, ...]]:
    """Return for each column of a schema the columns that have older values of it; they are in `joined` afterwards."""
    own, emptied = set(schema.names), {}
    for name in schema.names:
        homes = [name, *(f"{name}__{each}" for each in _HOMES if f"{name}__{each}" not in own)]
        others = [
            each for each in homes if each != moved.get(name, name) and (each in joined or each in target)
        ]
        for each in others:
            joined.setdefault(each, Column(each, target.get(each) or joined[each].type))
        if others:
            emptied[name] = tuple(others)
    return emptied


def home_of(column: Column) -> str:
    """Return the name of the column for values that the column of the target cannot have, such as ``price__string``."""
    return f"{column.name}__{_home(column.type)}"


def _home(type_: ColumnType) -> str:
    if type_.kind is Kind.ARRAY and type_.element is not None:
        return f"array_{type_.element.kind.value.lower()}"
    return type_.kind.value.lower()


_HOMES = tuple(f"{part}{kind.value.lower()}" for part in ("", "array_") for kind in Kind)


def _remedy(column: Column) -> str:
    if column.key_position:
        return "a column of the primary key cannot be left out: write to another table, with a snapshot"
    return "set schema_changes='ignore', which leaves the column as it is"


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


# Once per process and text: each batch would repeat it.
@cache
def warn_once(text: str) -> None:
    """Log a warning about the columns of a table, unless this process has done so."""
    logger.warning("%s", text)


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
