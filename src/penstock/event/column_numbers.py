"""Renamed and dropped columns of a source, by the numbers of its columns. Pure.

A rename keeps the number of a column (`Column.number`), and a number is never used twice. So a target that remembers
the number of each of its columns sees a rename and a drop exactly. Shards come one after another, and an older change
may come after a rename. So a target also remembers since which version a column has its name: an older change has
an older name of the same column.

A source may not know the numbers of an old schema any more (`penstock.io.postgres.catalog`). Then the names that the
target remembers tell them. If they do not, a change could go to a wrong column, and is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from penstock.event.model import Column, Source, TableSchema
from penstock.event.schema_changes import Adaptation, SchemaChangedError
from penstock.event.schema_policies import ChangePolicies

DROPPED = ""
"""The name of a column that the target has dropped."""


class NumberedColumn(msgspec.Struct, frozen=True, array_like=True):
    """A column of the source: its name in the target, and the version since which it has it (`encode_version`).

    `former`: earlier names, the oldest first, each with its version.
    """

    name: str
    since: str
    former: tuple[tuple[str, str], ...] = ()

    def called(self, name: str, since: str) -> NumberedColumn:
        """Return the column with a new name."""
        return NumberedColumn(name, since, (*self.former, (self.name, self.since)))

    def called_since(self, version: str) -> NumberedColumn:
        """Return the column, which has its name at a version too.

        Before its last rename it may have had the same name, which says nothing about the time between.
        """
        renamed = self.former[-1][1] if self.former else ""
        return msgspec.structs.replace(self, since=version) if renamed < version < self.since else self

    def name_at(self, version: str) -> str:
        """Return the name at a version; the oldest one that is known, if the version is before all."""
        names = (*self.former, (self.name, self.since))
        return next((name for name, since in reversed(names) if since <= version), names[0][0])


Numbers = Mapping[int, NumberedColumn]
"""What a target remembers of a table, by the numbers of its columns."""


def source_text(source: Source) -> str:
    """Return the name under which a target remembers the columns of a table.

    Columns of several databases that have one target are numbered by each of them.
    """
    return f"{source.server}/{source.database}/{source.qualified_table}"


@dataclass(frozen=True, slots=True)
class ColumnMoves:
    """The work of a target before it writes rows: rename columns (old name to new name), drop some, remember `known`.

    `numbered`: the schemas of the changes with the numbers of their columns. A source without numbers has none.
    """

    known: Numbers
    numbered: Mapping[TableSchema, TableSchema] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()


def follows_numbers(policies: ChangePolicies) -> bool:
    """Return whether policies need the numbers of columns."""
    return not {policies.rename, policies.drop} <= {"lenient", "ignore"}


def column_moves(
    table: str,
    known: Numbers,
    target: frozenset[str],
    schemas: Sequence[tuple[str, TableSchema]],
    policies: ChangePolicies,
    *,
    has_numbers: bool = True,
) -> ColumnMoves:
    """Return what a target with the columns `target` does for changes of `schemas`, each with its lowest version.

    `has_numbers`: whether the source numbers columns.

    Raises:
        SchemaChangedError: the policy is *stop*, a column cannot get its new name, or its number cannot be told.
    """
    moves = _Moves(table, known, policies)
    for version, schema in sorted(schemas if has_numbers else (), key=lambda each: each[0]):
        moves.follow(version, schema)
    return moves.in_target(target)


class _Moves:
    """The moves of the columns of a table, while its schemas are followed in the order of their versions."""

    def __init__(self, table: str, known: Numbers, policies: ChangePolicies) -> None:
        self._table, self._policies = table, policies
        self._now, self._numbered = dict(known), dict[TableSchema, TableSchema]()
        self._renamed, self._dropped = dict[str, str](), list[str]()

    def follow(self, version: str, of_source: TableSchema) -> None:
        """Take the names and the columns that a schema has at its version."""
        schema = _numbered(self._table, of_source, version, self._now)
        self._numbered[of_source] = schema
        for column in schema:
            self._follow_name(column, version)
        for number in self._now.keys() - {column.number for column in schema}:
            self._follow_drop(number, version, schema.names)

    def _follow_name(self, column: Column, version: str) -> None:
        number = column.number or 0
        before = self._now.get(number)
        if before is None:
            self._now[number] = NumberedColumn(column.name, version)
        elif before.name == column.name:
            self._now[number] = before.called_since(version)
        elif before.name != DROPPED and version > before.since:
            self._now[number] = before.called(column.name, version)
            if self._policies.rename != "lenient":
                self._rename(before.name, column.name)

    def _follow_drop(self, number: int, version: str, names: Collection[str]) -> None:
        gone = self._now[number]
        if gone.name == DROPPED or version <= gone.since or self._policies.drop not in ("evolve", "stop"):
            return
        _check_drop(self._table, gone.name, self._policies)
        self._now[number] = gone.called(DROPPED, version)
        # A column that is dropped and added again is another one, but the target has one of the name.
        if gone.name not in names:
            self._dropped.append(gone.name)

    def _rename(self, old: str, new: str) -> None:
        _check_rename(self._table, old, new, self._policies)
        # The target may have any of the earlier names: a user may have renamed the column there.
        self._renamed = {name: new if last == old else last for name, last in self._renamed.items()}
        self._renamed.setdefault(old, new)

    def in_target(self, target: frozenset[str]) -> ColumnMoves:
        """Return what a target with these columns does.

        Raises:
            SchemaChangedError: it has a column of a new name already.
        """
        renamed = {old: new for old, new in self._renamed.items() if old in target and old != new}
        taken = sorted(new for new in renamed.values() if new in target - renamed.keys())
        if taken or renamed.keys() & set(renamed.values()):
            raise SchemaChangedError(
                f"table {self._table}: the columns {', '.join(sorted(renamed))} got other names in the source, and the "
                "target has a column of the new name already "
                f"({', '.join(taken) or 'they changed names with each other'}). Rename them in the target by hand, or "
                "set schema_changes='rename=lenient'"
            )
        dropped = {renamed.get(name, name) for name in self._dropped} & (target | set(renamed.values()))
        return ColumnMoves(self._now, self._numbered, renamed, tuple(sorted(dropped)))


def adapted_by_number(
    known: Numbers, schema: TableSchema, policies: ChangePolicies
) -> tuple[Adaptation, TableSchema]:
    """Return how changes of a schema are written under the names of the target, and the schema with these names."""
    left_out, moved, columns = set(), dict[str, str](), list[Column]()
    for column in schema:
        held = known[column.number or 0] if column.number in known else None
        if held is None or held.name == column.name:
            columns.append(column)
        elif held.name == DROPPED:
            left_out.add(column.name)
        elif policies.rename == "lenient":
            columns.append(column)
        else:
            moved[column.name] = held.name
            columns.append(msgspec.structs.replace(column, name=held.name))
    if not left_out and not moved:
        return Adaptation(), schema
    return Adaptation(frozenset(left_out), moved), TableSchema(tuple(columns))


def _numbered(table: str, schema: TableSchema, version: str, known: Numbers) -> TableSchema:
    """Return a schema with the numbers of its columns, if need be by their names at its version."""
    if all(column.number is not None for column in schema):
        return schema
    numbers = {column.name_at(version): number for number, column in known.items()}
    found = [numbers.get(column.name) for column in schema]
    if None in found:
        raise SchemaChangedError(
            f"table {table}: columns were renamed or dropped in the source while its changes waited, and it cannot be "
            f"told which column {schema.names[found.index(None)]} is now. Set schema_changes='rename=lenient' and "
            "'drop=lenient' until the backlog is read, then read the table again with a snapshot"
        )
    return TableSchema(
        tuple(
            msgspec.structs.replace(each, number=number) for each, number in zip(schema, found, strict=True)
        )
    )


def _check_rename(table: str, old: str, new: str, policies: ChangePolicies) -> None:
    if policies.rename == "stop":
        raise SchemaChangedError(
            f"table {table}: the column {old} is called {new} in the source now, and schema_changes has rename=stop: "
            f"rename it in the target and set rename=evolve, or set rename=lenient, which adds {new}"
        )


def _check_drop(table: str, name: str, policies: ChangePolicies) -> None:
    if policies.drop == "stop":
        raise SchemaChangedError(
            f"table {table}: the source does not have the column {name} any more, and schema_changes has drop=stop: "
            "set drop=lenient, which keeps it in the target, or drop=evolve, which drops it there"
        )
