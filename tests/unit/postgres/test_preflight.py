"""The checks before a read, on the answers of a server."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import PositionLostError, SetupError
from penstock.io.postgres import preflight
from penstock.io.postgres.preflight import check_source
from penstock.io.postgres.source import ChangeStream
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
