"""One rule for the names of tables in filters, choices of columns and sources."""

import pytest

from penstock.errors import UsageError
from penstock.event import Source
from penstock.io.spanner.filter import Selection
from penstock.tables import SourceTable, TableSelection, matches_table, unmatched, unmatched_selection
from penstock.transforms.tables import matches

VISITS = Source("postgresql", schema="public", table="visits")
TABLES = [
    SourceTable("public", "visits", ("id", "at")),
    SourceTable("public", "orders", ("id", "Email")),
    SourceTable("sales", "orders", ("id",)),
]


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        ("visits", True),
        ("public.visits", True),
        ("vis*", True),
        ("*.visits", True),
        ("public.*", True),
        ("*", True),
        ("sales.visits", False),
        ("public", False),
        ("public*", False),
        ("Visits", False),
        ("visit", False),
    ],
)
def test_a_name_without_a_schema_is_the_table_in_every_schema(pattern: str, matched: bool) -> None:
    assert matches_table((pattern,), "public", "visits") is matched
    assert matches(pattern, VISITS) is matched
    assert Selection.checked([pattern], (), ()).reads_table("public.visits") is matched


def test_a_table_without_a_schema_may_have_a_point_in_its_name() -> None:
    assert matches_table(("shop.orders",), "", "shop.orders")
    assert matches_table(("shop.*",), "", "shop.orders")
    assert not matches_table(("orders",), "", "shop.orders")


def test_a_name_that_matches_no_table_is_told_with_the_tables_that_exist() -> None:
    texts = unmatched("without_tables", ["visit", "orders", "tmp_*"], TABLES, "publication shop")
    assert texts.names == [
        "without_tables: no table of publication shop matches 'visit'; did you mean 'public.visits'? Its tables are: "
        "public.orders, public.visits, sales.orders"
    ]
    assert texts.globs == [
        "without_tables: no table of publication shop matches 'tmp_*'. Its tables are: public.orders, public.visits, "
        "sales.orders"
    ]


@pytest.mark.parametrize(
    ("selection", "selected"),
    [
        (TableSelection(), ["public.visits", "public.orders", "sales.orders"]),
        (TableSelection(("orders",)), ["public.orders", "sales.orders"]),
        (TableSelection(("orders",), ("sales.*",)), ["public.orders"]),
        (TableSelection((), ("[a-o]*",)), ["public.visits"]),
        (TableSelection(("public.visits",), ("*",)), []),
    ],
)
def test_a_table_is_read_if_one_pattern_includes_it_and_none_excludes_it(
    selection: TableSelection, selected: list[str]
) -> None:
    assert [str(each) for each in TABLES if selection.has(each.schema, each.name)] == selected
    assert [str(each) for each in TABLES if selection.has_qualified(str(each))] == selected
    texts = unmatched_selection(selection, TABLES, "publication shop").names
    assert texts == (
        []
        if selected
        else [
            "tables, without_tables: they select no table of publication shop, so nothing would be read. Change the "
            "patterns. Its tables are: public.orders, public.visits, sales.orders"
        ]
    )


def test_patterns_are_a_list_of_texts() -> None:
    with pytest.raises(UsageError, match=r"without_tables='orders' is not a list of texts: .* \['orders'\]"):
        TableSelection.checked([], "orders")


def test_a_long_list_of_tables_is_shortened() -> None:
    many = [SourceTable("public", f"t{number:03}", ()) for number in range(100)]
    (text,) = unmatched("tables", ["x"], many, "publication shop").names
    assert "public.t011 and 88 more" in text
    assert "public.t012" not in text


def test_every_example_of_a_table_in_a_job_file_can_match_in_its_source() -> None:
    from penstock.templates.template import template_named

    parameters = template_named("postgres-to-delta").parameters
    pattern = parameters["without_tables"].example
    assert pattern is not None
    assert matches_table((pattern,), "public", "audit_log")
    for name in ("only_columns", "mask_columns"):
        table, column = (parameters[name].example or "").partition("=")[0].rsplit(".", 1)
        assert matches_table((table,), "public", table.rpartition(".")[2])
        assert column.islower()  # as PostgreSQL folds names that are not quoted
