"""A table as the log and the catalogue describe it together."""

from __future__ import annotations

import pytest

from penstock.io.postgres import messages as m
from penstock.io.postgres.catalog import describe

A, B, V = (
    m.RelationColumn("a", 23, -1, True),
    m.RelationColumn("b", 23, -1, True),
    m.RelationColumn("v", 23, -1, False),
)


@pytest.mark.parametrize(
    ("published", "catalog", "key"),
    [
        ((A, B, V), [("a", True, 2, None), ("b", True, 1, None), ("v", False, None, None)], {"a": 2, "b": 1}),
        # The column list of the publication lacks a part of the key.
        ((V,), [("a", True, 1, None), ("v", True, 2, None)], {}),
        # The key column was called a when the change was made.
        ((A, V), [("id", True, 1, None), ("v", False, None, None)], {"a": 1}),
        # The table was dropped since.
        ((A, B, V), [], {"a": 1, "b": 2}),
    ],
)
def test_a_key_has_all_its_columns_or_none(
    published: tuple[m.RelationColumn, ...],
    catalog: list[tuple[str, bool, int | None, None]],
    key: dict[str, int],
) -> None:
    table = describe(m.Relation(1, "public", "t", "d", published), catalog, {})
    assert {each.name: each.key_position for each in table.columns if each.key_position} == key


@pytest.mark.parametrize(
    ("catalog", "numbers"),
    [
        ([("a", True, 1, None, 1), ("v", False, None, None, 3)], {"a": 1, "v": 3}),
        # One column was renamed since, or the table was dropped.
        ([("a", True, 1, None, 1), ("w", False, None, None, 3)], {}),
        ([], {}),
        # The columns have changed their names with each other: the log has them in the order of their numbers.
        ([("a", True, 1, None, 3), ("v", False, None, None, 1)], {}),
    ],
)
def test_columns_have_numbers_unless_the_catalogue_has_other_names_by_now(
    catalog: list[tuple[str, bool, int | None, None, int]], numbers: dict[str, int]
) -> None:
    table = describe(m.Relation(1, "public", "t", "d", (A, V)), catalog, {})
    assert {each.name: each.number for each in table.columns if each.number} == numbers
