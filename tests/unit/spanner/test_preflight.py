"""The checks before a read: dialect, functions, watched tables, and names that do not exist."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import SetupError
from penstock.io.spanner import ReadFromSpannerChangeStream
from penstock.io.spanner.preflight import StreamFacts, check_source, check_tables
from penstock.io.spanner.query import DIALECT, ROUTINES, STREAMS, TABLES, Query, list_of_placements
from penstock.io.spanner.source import ChangeStream
from penstock.tables import TableSelection

STREAM = ChangeStream("p", "i", "d", "Changes", 0, None)
GOOGLESQL, POSTGRESQL = "GOOGLE_STANDARD_SQL", "POSTGRESQL"


def service(
    dialect: str = GOOGLESQL,
    streams: tuple[str, ...] = ("Changes",),
    routines: tuple[str, ...] = (),
    **options: str,
) -> Any:
    def rows(query: Query) -> list[list[str]]:
        if query.sql == DIALECT:
            return [[dialect]]
        if query.sql in (STREAMS, ROUTINES):
            return [[name] for name in (streams if query.sql == STREAMS else routines)]
        if query.sql == TABLES:
            return [["", "Orders"], ["sales", "Orders"], ["public", "lines"]]
        ((_, _, name),) = query.params
        assert name in streams, "options are asked for by the spelling of the database"
        return [[name, value] for name, value in options.items()]

    return rows


def test_the_dialect_functions_and_options_of_a_stream_are_returned() -> None:
    found = check_source(STREAM, service(value_capture_type="NEW_ROW"))
    assert found == StreamFacts(GOOGLESQL, ("READ_Changes",), {"value_capture_type": "NEW_ROW"})
    assert not found.mutable
    assert found.roots("Changes") == ("",), "the root of the usual function has an empty key"


def test_names_are_compared_as_googlesql_does() -> None:
    assert check_source(STREAM, service(streams=("CHANGES",))).functions == ("READ_Changes",)


@pytest.mark.parametrize(
    ("mode", "function"),
    [("IMMUTABLE_KEY_RANGE", "read_json_changes"), ("MUTABLE_KEY_RANGE", "read_proto_bytes_changes")],
)
def test_a_stream_of_a_postgresql_database_has_a_function_for_its_partition_mode(
    mode: str, function: str
) -> None:
    found = check_source(STREAM, service(POSTGRESQL, ("changes",), partition_mode=mode))
    assert found.functions == (function,)
    assert found.mutable == (mode == "MUTABLE_KEY_RANGE")
    assert found.roots("Changes") == (f"{function}\n",)


def test_a_quoted_name_of_a_postgresql_database_keeps_its_letter_case() -> None:
    both = service(POSTGRESQL, ("changes", "Changes"))
    assert check_source(STREAM, both).functions == ("read_json_Changes",)


def test_the_dialect_is_not_asked_for_if_it_is_given() -> None:
    known = service("not asked")
    assert check_source(STREAM, known, GOOGLESQL).dialect == GOOGLESQL


def test_each_placement_has_a_function() -> None:
    routines = (
        "READ_Changes_default",
        "READ_Changes_eu",
        "READ_Other",
        "READ_Changes_too",
        "READ_Changes_too_eu",
    )
    found = check_source(
        STREAM,
        service(streams=("Changes", "Changes_too", "Other"), routines=routines, per_placement_tvf="true"),
    )
    assert found.functions == ("READ_Changes_default", "READ_Changes_eu"), (
        "not those of the stream Changes_too"
    )
    assert found.roots("Changes") == (
        "READ_Changes_default\n",
        "READ_Changes_eu\n",
        list_of_placements("READ_Changes", found.functions),
    )


def test_a_stream_whose_functions_cannot_be_seen_is_refused() -> None:
    with pytest.raises(SetupError, match="these credentials see none .* READ_Changes_.* grant EXECUTE"):
        check_source(STREAM, service(per_placement_tvf="true"))


@pytest.mark.parametrize(("dialect", "clause"), [(GOOGLESQL, "OPTIONS"), (POSTGRESQL, "WITH")])
def test_unknown_stream_is_refused_with_the_names_that_exist(dialect: str, clause: str) -> None:
    with pytest.raises(
        SetupError, match=rf"no change stream 'Changes' .*there are: Audit, Other\).*{clause} \("
    ):
        check_source(STREAM, service(dialect, streams=("Other", "Audit")))
    with pytest.raises(SetupError, match=r"there are: none"):
        check_source(STREAM, service(dialect, streams=()))


def test_kinds_that_this_release_does_not_know_are_refused() -> None:
    with pytest.raises(SetupError, match="partition_mode LATER_MODE, which this release does not know"):
        check_source(STREAM, service(partition_mode="LATER_MODE"))
    with pytest.raises(SetupError, match="has the dialect LATER_SQL"):
        check_source(STREAM, service("LATER_SQL"))


def test_a_table_that_does_not_exist_is_refused_with_a_similar_name() -> None:
    check_tables(STREAM, service(), TableSelection(("Orders", "sales.Orders", "lines"), ("sales.*",)))
    with pytest.raises(
        SetupError, match=r"^tables: no table .* matches 'orders'; did you mean '(sales.)?Orders'\?"
    ):
        check_tables(STREAM, service(), TableSelection(("orders",)))
    with pytest.raises(SetupError, match=r"^without_tables: no table .* matches 'order'"):
        check_tables(STREAM, service(), TableSelection(without_tables=("order",)))


def test_a_selection_of_no_table_is_refused() -> None:
    with pytest.raises(
        SetupError, match="^tables, without_tables: they select no table of .* Its tables are: "
    ):
        check_tables(STREAM, service(), TableSelection(("Orders",), ("*",)))
    with pytest.raises(SetupError, match="they select no table"):
        check_tables(STREAM, service(), TableSelection(("nothing_*",)))


@pytest.mark.parametrize(
    ("options", "capture"), [({}, "OLD_AND_NEW_VALUES"), ({"value_capture_type": "NEW_ROW"}, "NEW_ROW")]
)
def test_the_transform_tells_formats_the_capture_type_of_its_stream(
    options: dict[str, str], capture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = StreamFacts("GOOGLE_STANDARD_SQL", ("READ_S",), options)
    source = ReadFromSpannerChangeStream(project="p", instance="i", database="d", change_stream="S")
    monkeypatch.setattr(source.bounded_fn, "check", lambda self, stream: facts)
    assert source.capture_type() == capture
