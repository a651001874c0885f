"""The checks before a read, on the answers of a server."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import PositionLostError, SetupError, SeveralProblemsError
from penstock.io.change_streams.status import UnreachableError
from penstock.io.postgres import preflight
from penstock.io.postgres.preflight import check_source, unmatched_tables
from penstock.io.postgres.source import ChangeStream
from penstock.tables import TableSelection
from tests.unit.postgres.memory import answers

STREAM = ChangeStream("shop", "changes", "penstock", 0, None)


def check(*, synced: bool = False, row: tuple[Any, ...] = (), streaming: str = "off", **given: Any) -> Any:
    """Check a healthy source with other answers. `row`: the slot; `synced`: whether a standby copies it."""

    def rows(query: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        if query == preflight.SLOT and row:
            return [row]
        return [(synced,)] if query == preflight.SYNCED else answers(query, **given)

    return check_source(STREAM, rows, create_slot=False, streaming=streaming)


def slot(**changed: Any) -> tuple[Any, ...]:
    names = (
        "plugin",
        "database",
        "confirmed",
        "wal_status",
        "two_phase",
        "system",
        "connected",
        "temporary",
        "invalid",
    )
    values = ("pgoutput", "shop", "0/10", "reserved", False, "1", "shop", False, "")
    return tuple({**dict(zip(names, values, strict=True)), **changed}.values())


def test_a_healthy_source_is_read_from_the_confirmed_position() -> None:
    assert check(row=slot()).confirmed_lsn == 16
    assert check(standby=True).system == "1"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"version": 130_000}, "Upgrade it to version 14"),
        ({"wal_level": "replica"}, "Set wal_level = logical"),
        ({"replication": False}, "ALTER ROLE penstock REPLICATION"),
        ({"publications": ("others",)}, "no publication 'changes' .there are: others."),
        ({"standby": True, "version": 150_000}, "from version 16 on"),
        ({"standby": True, "synced": True}, "only a failover makes readable"),
        ({"version": 150_000, "streaming": "parallel"}, "set streaming=on"),
        ({"row": slot(plugin="wal2json")}, "output plugin wal2json"),
        ({"row": slot(database="other")}, "belongs to the database other"),
        ({"row": slot(temporary=True)}, "the slot is temporary"),
    ],
)
def test_a_source_that_cannot_be_read_is_refused_with_the_fix(given: dict[str, Any], said: str) -> None:
    with pytest.raises(SetupError, match=said):
        check(**given)


def test_all_problems_of_a_server_are_told_at_once_with_one_block_of_statements() -> None:
    with pytest.raises(SeveralProblemsError) as raised:
        check(row=slot(plugin=None), replication=False, publications=("others",), wal_level="replica")
    said = str(raised.value)
    assert (
        said.index("wal_level = replica") < said.index("role penstock may not") < said.index("no publication")
    )
    assert said.endswith(
        "Run in the database shop, as a superuser:\n\n"
        "  ALTER ROLE penstock REPLICATION;\n"
        "  CREATE PUBLICATION changes FOR ALL TABLES;\n"
        "  SELECT pg_create_logical_replication_slot('penstock', 'pgoutput');"
    )


def test_a_check_creates_no_slot_and_renews_none() -> None:
    asked: list[str] = []

    def rows(query: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        asked.append(query)
        return [slot(wal_status="lost")] if query == preflight.SLOT else answers(query)

    assert check_source(STREAM, rows, create_slot=True, renew_slot=True) is None
    assert not {preflight.CREATE_SLOT, preflight.DROP_SLOT} & set(asked)


def test_a_slot_that_was_made_before_its_answer_was_lost_is_used() -> None:
    made: list[str] = []

    def rows(query: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        if query == preflight.CREATE_SLOT:
            assert not made, "the server would refuse it: it exists"
            made.extend(parameters)
            raise UnreachableError("the connection broke")
        return [slot() if made else slot(plugin=None)]

    with pytest.raises(UnreachableError):
        preflight.prepared_slot(STREAM, rows, None)
    assert preflight.prepared_slot(STREAM, rows, None) == preflight.check_slot(STREAM, [slot()])
    assert made == [STREAM.slot]


def test_a_table_that_no_publication_has_is_told_with_a_similar_one() -> None:
    published = [("public", "orders", ["id"], True, []), ("public", "visits", ["at"], False, [])]

    def rows(query: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        return published if query == preflight.SOURCE_TABLES else []

    texts = unmatched_tables(STREAM, rows, TableSelection(("public.visit", "orders")))
    assert texts.names == [
        "tables: no table of publication changes matches 'public.visit'; did you mean 'public.visits'? Its tables are: "
        "public.orders, public.visits"
    ]
    assert unmatched_tables(STREAM, rows, TableSelection(without_tables=("audit_*",))).globs == [
        "without_tables: no table of publication changes matches 'audit_*'. Its tables are: public.orders, "
        "public.visits"
    ]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (slot(plugin=None), "the slot does not exist"),
        (slot(wal_status="lost"), "invalidated the slot .wal_status lost"),
        (slot(invalid="idle_timeout"), "invalidated the slot .idle_timeout"),
    ],
)
def test_a_slot_without_its_log_is_lost(row: tuple[Any, ...], said: str) -> None:
    with pytest.raises(PositionLostError, match=said):
        check(row=row)
