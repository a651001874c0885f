"""Converts the changed rows of a transaction to the data change records of one stream.

Source: Spanner documentation, "Change streams overview", "Value capture types" and "Data change records", and
measurements on Google's emulator. An INSERT has all watched columns, an UPDATE has the columns that the documentation
lists for the capture type, and a DELETE has old values only if the type captures them. The columns of a record are the
key and the columns that its mods may have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from penstock_emulators.simulated_spanner.mutation import Change
from penstock_emulators.simulated_spanner.record import DataChange, Mod, RecordColumn
from penstock_emulators.simulated_spanner.rows import Row
from penstock_emulators.simulated_spanner.schema import StreamDefinition, Table

_ROW_CAPTURES = ("NEW_ROW", "NEW_ROW_AND_OLD_VALUES")
_OLD_CAPTURES = ("OLD_AND_NEW_VALUES", "NEW_ROW_AND_OLD_VALUES")


@dataclass(slots=True)
class _Group:
    """Mods that one record carries: same partition, table, kind and columns."""

    token: str
    table: Table
    mod_type: str
    columns: tuple[int, ...]
    mods: list[Mod] = field(default_factory=list)


def data_changes(
    stream: StreamDefinition,
    changes: Iterable[Change],
    token_of: Callable[[Change], str],
    *,
    timestamp: int,
    first_sequence: int,
    transaction: str,
    tag: str,
) -> list[tuple[str, DataChange]]:
    """Return the records of a transaction with the token of the partition that each belongs to.

    Sequences begin at `first_sequence` and rise over all partitions: the record sequence of a transaction is
    unique across partitions and gives the order of its changes.
    """
    groups = _grouped(stream, changes, token_of)
    partitions = {group.token for group in groups}
    last = {group.token: number for number, group in enumerate(groups)}
    return [
        (
            group.token,
            DataChange(
                timestamp=timestamp,
                sequence=first_sequence + number,
                transaction=transaction,
                is_last=last[group.token] == number,
                table=group.table.name,
                columns=_record_columns(group.table, group.columns),
                mods=tuple(group.mods),
                mod_type=group.mod_type,
                capture=stream.capture,
                records_in_transaction=len(groups),
                partitions_in_transaction=len(partitions),
                tag=tag,
            ),
        )
        for number, group in enumerate(groups)
    ]


def _grouped(
    stream: StreamDefinition, changes: Iterable[Change], token_of: Callable[[Change], str]
) -> list[_Group]:
    """Put consecutive changes of a partition into one group while table, kind and columns stay the same."""
    groups: list[_Group] = []
    current: dict[str, _Group] = {}
    for change in changes:
        for mod_type, columns, mod in _mods(stream, change):
            token = token_of(change)
            group = current.get(token)
            # A record has one table, one kind of change and one set of columns. Anything else begins a new record.
            if group is None or (group.table, group.mod_type, group.columns) != (
                change.table,
                mod_type,
                columns,
            ):
                group = current[token] = _Group(token, change.table, mod_type, columns)
                groups.append(group)
            group.mods.append(mod)
    return groups


def _mods(stream: StreamDefinition, change: Change) -> Iterator[tuple[str, tuple[int, ...], Mod]]:
    """Yield (kind, columns that are no key, mod): two for a row that was deleted and inserted again."""
    watched = stream.watched(change.table)
    if watched is None:
        return
    keys = dict(
        zip([change.table.columns[number].name for number in change.table.key], change.key, strict=True)
    )
    # A row that was replaced appears as a deletion and an insertion, in this order.
    if change.before is None or change.recreated or change.after is None:
        if change.before is not None and not stream.has("exclude_delete"):
            old = _values(change.table, watched, change.before) if stream.capture in _OLD_CAPTURES else {}
            yield "DELETE", watched, Mod(keys, {}, old)
        if change.after is not None and not stream.has("exclude_insert"):
            yield "INSERT", watched, Mod(keys, _values(change.table, watched, change.after), {})
        return
    written = tuple(number for number in watched if change.table.columns[number].name in change.written)
    if not written or stream.has("exclude_update"):
        return  # an update of no watched column is no change of this stream
    columns = watched if stream.capture in _ROW_CAPTURES else written
    old = _values(change.table, written, change.before) if stream.capture in _OLD_CAPTURES else {}
    yield "UPDATE", columns, Mod(keys, _values(change.table, columns, change.after), old)


def _values(table: Table, columns: tuple[int, ...], row: Row) -> Row:
    return {table.columns[number].name: row.get(table.columns[number].name) for number in columns}


def _record_columns(table: Table, columns: tuple[int, ...]) -> tuple[RecordColumn, ...]:
    return tuple(
        RecordColumn(table.columns[number].name, table.columns[number].kind, number in table.key, number + 1)
        for number in sorted({*table.key, *columns})
    )
