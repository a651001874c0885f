"""Mutations of a row: validation, server-assigned timestamps, and their form in the change stream. Pure.

Mutations are parsed google.bigtable.v2.Mutation messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock_emulators.bigtable.wire import Mutation

NOT_FOUND, INVALID_ARGUMENT = 5, 3
SERVER_TIME = -1
MAX_CHANGES = 100_000
"""Mutations or rules in one request."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a row's mutations cannot be applied: a gRPC status code and a message without row values."""

    code: int
    message: str


def misshapen(changes: int, *keys: bytes) -> Refusal | None:
    """Return why a request is refused for its form: an empty row key, or not 1 to 100,000 changes.

    Source: proto comments of the requests. Google's emulator accepts some of them, and writes a row
    without a key, which a change stream cannot contain.
    """
    if not all(keys):
        return Refusal(INVALID_ARGUMENT, "a row key has at least one byte")
    if not 1 <= changes <= MAX_CHANGES:
        return Refusal(INVALID_ARGUMENT, f"{changes} mutations or rules; pass 1 to {MAX_CHANGES}")
    return None


def admit(mutations: Iterable[Any], families: Mapping[str, bool], now_us: int) -> Refusal | bool:
    """Check a row's mutations and resolve server-assigned timestamps in place.

    `families` says for each column family whether it holds aggregates. Returns why the row is refused, or
    whether a timestamp was resolved. Google's emulator applies the mutations before a bad one, which
    the service does not, and some end its process. So the front checks them first.

    Source: proto comments of Mutation; a server-assigned timestamp has milliseconds.
    """
    resolved = False
    for mutation in mutations:
        kind = mutation.WhichOneof("mutation")
        if kind == "set_cell":
            cell = mutation.set_cell
            aggregate = families.get(cell.family_name)
            # One time for all cells of a request, as the service assigns it.
            if cell.timestamp_micros == SERVER_TIME:
                cell.timestamp_micros = now_us - now_us % 1000
                resolved = True
            if aggregate is None:
                return _unknown(cell.family_name)
            if aggregate or cell.timestamp_micros < 0 or cell.timestamp_micros % 1000:
                return _bad_cell(aggregate)
        else:
            refusal = _check(kind, mutation, families)
            if refusal is not None:
                return refusal
    return resolved


def unfit(rules: Iterable[Any], families: Mapping[str, bool]) -> Refusal | None:
    """Return why the rules of a ReadModifyWriteRow are refused; `families` as for `admit`.

    An aggregate cell cannot be changed by a rule. Google's emulator accepts such a rule, returns another value than it
    stores, and its process ends on a value that is not a number.
    """
    for rule in rules:
        aggregate = families.get(rule.family_name)
        if aggregate is None:
            return _unknown(rule.family_name)
        if aggregate:
            return Refusal(
                INVALID_ARGUMENT, "append and increment are not for an aggregate family; use add_to_cell"
            )
    return None


def shown(mutations: Sequence[Any], present: set[str] | None) -> Sequence[Any]:
    """Return a row's applied mutations in the form of the change stream.

    `present` holds the families with data in the row before; it is updated, so that a second
    change of the row can follow. DeleteFromRow becomes DeleteFromFamily of each, by name. None: there is no
    DeleteFromRow among the mutations.
    """
    if present is None:
        return mutations
    entries: list[Any] = []
    for mutation in mutations:
        if mutation.HasField("delete_from_row"):
            entries += [family_deleted(name) for name in sorted(present)]
            # Deleted once: a second DeleteFromRow finds nothing.
            present.clear()
        else:
            entries.append(mutation)
            _remember(mutation, present)
    return entries


def deletes_row(mutations: Iterable[Any]) -> bool:
    """Return whether there is a DeleteFromRow among the mutations."""
    return any(mutation.HasField("delete_from_row") for mutation in mutations)


def family_deleted(name: str) -> Any:
    """Return a DeleteFromFamily."""
    mutation = Mutation()
    mutation.delete_from_family.family_name = name
    return mutation


def cells_set(row: Any) -> list[Any]:
    """Return the cells of a ReadModifyWriteRow's answer as SetCell mutations."""
    return [
        _cell_set(family.name, column.qualifier, cell)
        for family in row.families
        for column in family.columns
        for cell in column.cells
    ]


def cell_deleted(family: str, qualifier: bytes, timestamp_us: int) -> Any:
    """Return the DeleteFromColumn of one cell: its millisecond, start inclusive and end exclusive."""
    mutation = Mutation()
    delete = mutation.delete_from_column
    delete.family_name, delete.column_qualifier = family, qualifier
    delete.time_range.start_timestamp_micros = timestamp_us
    # Bigtable's timestamps are whole milliseconds, so this range holds one cell.
    delete.time_range.end_timestamp_micros = timestamp_us + 1000
    return mutation


def _cell_set(family: str, qualifier: bytes, cell: Any) -> Any:
    mutation = Mutation()
    mutation.set_cell.family_name = family
    mutation.set_cell.column_qualifier = qualifier
    mutation.set_cell.timestamp_micros = cell.timestamp_micros
    mutation.set_cell.value = cell.value
    return mutation


def _check(kind: str | None, mutation: Any, families: Mapping[str, bool]) -> Refusal | None:
    if kind in ("add_to_cell", "merge_to_cell"):
        return _check_aggregation(getattr(mutation, kind), kind, families)
    if kind == "delete_from_column":
        return _check_range(mutation.delete_from_column, families)
    if kind == "delete_from_family":
        name = mutation.delete_from_family.family_name
        return None if name in families else _unknown(name)
    if kind == "delete_from_row":
        return None
    return Refusal(INVALID_ARGUMENT, "a mutation is empty, or of a kind that this emulator does not know")


def _check_aggregation(update: Any, kind: str, families: Mapping[str, bool]) -> Refusal | None:
    aggregate = families.get(update.family_name)
    if aggregate is None:
        return _unknown(update.family_name)
    # The two kinds take different inputs: a number, and an encoded accumulator.
    wanted = "int_value" if kind == "add_to_cell" else "raw_value"
    given = (
        update.input.WhichOneof("kind") == wanted
        and update.timestamp.HasField("raw_timestamp_micros")
        and update.column_qualifier.HasField("raw_value")
    )
    stamp = update.timestamp.raw_timestamp_micros
    whole = kind == "add_to_cell" or len(update.input.raw_value) == 8
    if not aggregate or not given or not whole or stamp < 0 or stamp % 1000:
        return Refusal(
            INVALID_ARGUMENT,
            f"{kind} needs an aggregate family, a raw qualifier, a raw timestamp of whole milliseconds and an {wanted}"
            + (" of 8 bytes" if kind == "merge_to_cell" else ""),
        )
    return None


def _check_range(delete: Any, families: Mapping[str, bool]) -> Refusal | None:
    if delete.family_name not in families:
        return _unknown(delete.family_name)
    start, end = delete.time_range.start_timestamp_micros, delete.time_range.end_timestamp_micros
    if min(start, end) < 0 or start % 1000 or end % 1000 or (end and start >= end):
        return Refusal(
            INVALID_ARGUMENT, "a time range must start below its end; both are whole milliseconds, 0 is open"
        )
    return None


def _unknown(family: str) -> Refusal:
    return Refusal(NOT_FOUND, f"the table has no column family {family!r}")


def _bad_cell(aggregate: bool) -> Refusal:
    if aggregate:
        return Refusal(INVALID_ARGUMENT, "set_cell is not for an aggregate family; use add_to_cell")
    return Refusal(INVALID_ARGUMENT, "a cell's timestamp must be whole milliseconds, or -1 for the server's")


def _remember(mutation: Any, present: set[str]) -> None:
    kind = mutation.WhichOneof("mutation")
    if kind in ("set_cell", "add_to_cell", "merge_to_cell"):
        present.add(getattr(mutation, kind).family_name)
    elif kind == "delete_from_family":
        present.discard(mutation.delete_from_family.family_name)
