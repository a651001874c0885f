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
