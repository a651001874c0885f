"""Renames and drops of columns, by their numbers: a target with shards that come in any order against the source."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.event import Column, ColumnType, Kind, TableSchema
from penstock.event.column_numbers import (
    ColumnMoves,
    NumberedColumn,
    adapted_by_number,
    column_moves,
    follows_numbers,
)
from penstock.event.schema_changes import SchemaChangedError
from penstock.event.schema_policies import policies_of

TEXT = ColumnType(Kind.STRING)
FOLLOW = policies_of(("evolve", "rename=evolve", "drop=evolve"), "public", "t")


def schema(**columns: int) -> TableSchema:
    return TableSchema(tuple(Column(name, TEXT, number=number) for name, number in columns.items()))


OLD, NEW = schema(id=1, email=2), schema(id=1, mail=2)
KNOWN = {1: NumberedColumn("id", "10"), 2: NumberedColumn("email", "10")}


def moves(
    schemas: list[tuple[str, TableSchema]], *entries: str, known: Any = KNOWN, target: str = "id email"
) -> ColumnMoves:
    return column_moves(
        "t", known, frozenset(target.split()), schemas, policies_of(("evolve", *entries), "", "t")
    )


def test_a_rename_keeps_the_number_and_a_drop_and_a_new_column_do_not() -> None:
    assert moves([("20", NEW)], "rename=evolve").renamed == {"email": "mail"}
    other = moves([("20", schema(id=1, mail=3))], "rename=evolve", "drop=evolve")
    assert (other.renamed, other.dropped) == ({}, ("email",))
    assert moves([("20", schema(id=1, email=3))], "drop=evolve").dropped == ()


def test_an_older_change_does_not_undo_a_rename_and_goes_to_the_column_of_now() -> None:
    known = moves([("20", NEW)], "rename=evolve").known
    late = moves([("15", OLD)], "rename=evolve", known=known, target="id mail")
    assert (late.renamed, late.known) == ({}, known)
    adaptation, named = adapted_by_number(known, OLD, FOLLOW)
    assert adaptation.image({"id": 1, "email": "x"}) == {"id": 1, "mail": "x"}
    assert named.names == ("id", "mail")
    # A newer one does: the column got its old name back.
    assert moves([("30", OLD)], "rename=evolve", known=known, target="id mail").renamed == {"mail": "email"}


def test_a_name_that_came_back_is_followed_once() -> None:
    schemas = [("20", NEW), ("30", OLD)]
    known = moves(schemas, "rename=evolve").known
    assert known[2] == NumberedColumn("email", "30", (("email", "10"), ("mail", "20")))
    again = moves([("15", OLD), *schemas], "rename=evolve", known=known)
    assert (again.known, again.renamed) == (known, {})
    # A change between the last rename and the first one that was seen with the name.
    assert moves([("25", OLD)], "rename=evolve", known=known).known[2].since == "25"


def test_an_older_change_does_not_bring_a_dropped_column_back() -> None:
    known = moves([("20", schema(id=1))], "drop=evolve").known
    assert moves([("15", OLD)], "drop=evolve", known=known, target="id").known == known
    adaptation, named = adapted_by_number(known, OLD, FOLLOW)
    assert adaptation.image({"id": 1, "email": "x"}) == {"id": 1}
    assert named.names == ("id",)


def test_a_column_that_is_younger_than_a_change_is_not_dropped_by_it() -> None:
    known = moves([("20", schema(id=1, email=2, note=3))], "drop=evolve").known
    assert moves([("15", OLD)], "drop=evolve", known=known, target="id email note").dropped == ()


def test_the_policies_stop_and_lenient() -> None:
    with pytest.raises(SchemaChangedError, match="email is called mail in the source now.*rename=lenient"):
        moves([("20", NEW)], "rename=stop")
    with pytest.raises(SchemaChangedError, match="not have the column email any more.*drop=evolve"):
        moves([("20", schema(id=1))], "drop=stop")
    assert moves([("20", NEW)], "drop=stop").renamed == {}
    assert moves([("20", schema(id=1))], "rename=evolve").dropped == ()
    assert not follows_numbers(policies_of("evolve", "", "t"))


def test_columns_that_change_names_with_each_other_and_names_that_are_taken_are_refused() -> None:
    with pytest.raises(SchemaChangedError, match="by hand"):
        moves([("20", schema(id=2, email=1))], "rename=evolve")
    with pytest.raises(SchemaChangedError, match="column of the new name already \\(mail\\)"):
        moves([("20", NEW)], "rename=evolve", target="id email mail")


def test_names_tell_the_numbers_that_the_source_does_not_know_any_more() -> None:
    known = moves([("20", NEW)], "rename=evolve").known
    plain = TableSchema((Column("id", TEXT), Column("email", TEXT)))
    late = moves([("15", plain)], "rename=evolve", known=known, target="id mail")
    assert (late.known, late.numbered) == (known, {plain: OLD})
    with pytest.raises(SchemaChangedError, match="cannot be told which column email is now"):
        moves([("25", plain)], "rename=evolve", known=known, target="id mail")


def test_a_source_without_numbers_tells_nothing() -> None:
    plain = TableSchema((Column("id", TEXT), Column("mail", TEXT)))
    found = column_moves("t", {}, frozenset(("id",)), [("20", plain)], FOLLOW, has_numbers=False)
    assert found == ColumnMoves({})


@given(seed=st.integers(0, 10_000), shards=st.integers(1, 3))
def test_shards_in_any_order_give_the_table_of_the_source(seed: int, shards: int) -> None:
    """DDL between the changes of a few rows. A shard has its rows in order, and batches of shards come in any order."""
    rng = random.Random(seed)
    columns, newest, version = {"id": 1, "c2": 2}, 2, 10
    source: dict[int, dict[int, Any]] = {}
    batches: list[list[list[tuple[str, TableSchema, dict[str, Any]]]]] = [[] for _ in range(shards)]
    for _ in range(rng.randint(1, 12)):
        for _ in range(rng.randint(0, 2)):
            name = rng.choice([each for each in columns if each != "id"] or ["id"])
            match rng.choice(["add", "drop", "rename", "none"]):
                case "add":
                    newest += 1
                    columns = {**columns, f"c{newest}": newest}
                case "drop" if name != "id":
                    columns = {each: number for each, number in columns.items() if each != name}
                    for row in source.values():
                        row.pop(int(name.rpartition("_")[2].lstrip("c")), None)
                case "rename" if name != "id":
                    number = columns[name]
                    # A name is never used for two columns here: see the test of names that are taken.
                    columns = {
                        (f"n{version}_{number}" if each == name else each): held
                        for each, held in columns.items()
                    }
        version += 1
        row_id = rng.randrange(6)
        values = {name: (row_id if name == "id" else version) for name in columns}
        source[row_id] = {columns[name]: value for name, value in values.items()}
        of_shard = batches[row_id % shards]
        change = (str(version), schema(**columns), values)
        if of_shard and rng.random() < 0.5:
            of_shard[-1].append(change)
        else:
            of_shard.append([change])
    known: Any = {}
    target: set[str] = set()
    rows: dict[int, dict[str, Any]] = {}
    while any(batches):
        batch = rng.choice([each for each in batches if each]).pop(0)
        lowest: dict[TableSchema, str] = {}
        for at, of, _ in batch:
            lowest.setdefault(of, at)
        found = column_moves("t", known, frozenset(target), [(at, of) for of, at in lowest.items()], FOLLOW)
        known = found.known
        target = {found.renamed.get(name, name) for name in target} - set(found.dropped)
        rows = {
            row_id: {
                found.renamed.get(name, name): value
                for name, value in row.items()
                if found.renamed.get(name, name) not in found.dropped
            }
            for row_id, row in rows.items()
        }
        for _, of, values in batch:
            adaptation, named = adapted_by_number(known, of, FOLLOW)
            written = adaptation.image(values) or {}
            target |= set(named.names)
            rows[written["id"]] = rows.get(written["id"], {}) | written
        lowest_first = [(at, of) for of, at in lowest.items()]
        again = column_moves("t", known, frozenset(target), lowest_first, FOLLOW)
        assert (again.known, again.renamed, again.dropped) == (known, {}, ())
    # The target's columns are those of the newest change that any shard has brought.
    numbers = {column.name: number for number, column in known.items()}
    assert target == numbers.keys() - {""}
    live = {number for number, column in known.items() if column.name}
    for row_id, row in source.items():
        expected = {number: value for number, value in row.items() if number in live}
        assert {
            numbers[name]: value for name, value in rows[row_id].items() if numbers[name] in expected
        } == expected
