"""A selection passes exactly the records of the chosen tables, kinds and tags."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import UsageError
from penstock.io.spanner.filter import Selection


def test_the_empty_selection_lets_everything_pass(data: Any) -> None:
    selection = Selection.checked([], [], [])
    assert selection.everything
    assert selection.passes(data(1))


@pytest.mark.parametrize(
    ("selection", "passes"),
    [
        (Selection.checked(["T"], [], []), True),
        (Selection.checked(["t", "sales.T"], [], []), False),
        (Selection.checked(["sales.*", "?"], [], []), True),
        (Selection.checked([], [], [], ["T"]), False),
        (Selection.checked(["?"], [], [], ["sales.*"]), True),
        (Selection.checked([], ["insert", "DELETE"], []), True),
        (Selection.checked([], ["UPDATE"], []), False),
        (Selection.checked([], [], ["loader"]), False),
        (Selection.checked([], [], ["load"]), True),
        (Selection.checked(["T"], ["INSERT"], ["loader"]), False),
    ],
)
def test_a_record_passes_if_table_kind_and_tag_do(data: Any, selection: Selection, passes: bool) -> None:
    assert not selection.everything
    assert selection.passes(data(1, mod_type="INSERT", transaction_tag="loader")) == passes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("Orders", [], []), r"tables='Orders' is not a list of texts: pass a list, such as \['Orders'\]"),
        (([1], [], []), "tables="),
        (([], "INSERT", []), "mod_types='INSERT' is not a list"),
        (([], ["REPLACE"], []), "mod_types has REPLACE: pass one or more of INSERT, UPDATE, DELETE"),
        (([], [], [""]), "exclude_transaction_tags has an empty tag"),
    ],
)
def test_wrong_arguments_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Selection.checked(*arguments)
