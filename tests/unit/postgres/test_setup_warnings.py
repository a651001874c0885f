"""What can be read now and may fail later is said before the start, with the statement that changes it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from penstock.io.postgres.setup_warnings import SENT, Facts, start_warnings_of, warnings_from
from penstock.io.postgres.source import ChangeStream
from penstock.setup_warning import SetupWarning

STREAM = ChangeStream("shop", "changes", "penstock", 0, None)
HEALTHY = Facts(180_000, False, "50GB", "0", "reserved", 1 << 30, False, False, 0, "", 3)


def warnings(*, unidentified: tuple[str, ...] = (), **facts: Any) -> list[str]:
    return warnings_from(STREAM, HEALTHY._replace(**facts), list(unidentified))


def test_a_healthy_source_has_no_warning() -> None:
    assert warnings() == []
    assert warnings(is_standby=True, kept_log="-1", standbys=2) == []


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"tables": 0}, "ALTER PUBLICATION changes ADD TABLE"),
        (
            {"unidentified": ("a.b", "c.d")},
            "a.b, c.d: no replica identity.*ALTER TABLE a.b REPLICA IDENTITY FULL",
        ),
        ({"kept_log": "-1"}, "max_slot_wal_keep_size is -1.*ALTER SYSTEM SET max_slot_wal_keep_size"),
        ({"wal_status": "extended"}, "wal_status extended.*1024 MiB of log remain"),
        ({"wal_status": "unreserved", "safe_bytes": -5}, "wal_status unreserved.* 0 MiB of log remain"),
        ({"idle_timeout": "1d"}, "idle_replication_slot_timeout is 1d.*ALTER SYSTEM SET"),
        ({"standbys": 1}, "failover => true.*sync_replication_slots = on"),
        ({"synchronized_slots": "s1"}, "failover => true"),
        ({"standbys": 1, "failover": True}, "synchronized_standby_slots is empty"),
    ],
)
def test_each_danger_is_said_with_its_fix(facts: dict[str, Any], said: str) -> None:
    (warning,) = warnings(**facts)
    assert re.search(said, warning.replace("\n", " ")), warning


def test_failover_slots_are_asked_for_only_where_the_server_has_them() -> None:
    assert warnings(version=160_000, standbys=1) == []
    assert warnings(standbys=1, failover=True, synchronized_slots="s1") == []


def test_a_warning_names_the_word_that_accepts_it() -> None:
    (warning,) = warnings(kept_log="-1")
    assert isinstance(warning, SetupWarning)
    assert warning.endswith(". Or accept it with accept_warnings=max_slot_wal_keep_size")
    assert warning.name == "max_slot_wal_keep_size"
    # It becomes urgent, and cannot be accepted away.
    (urgent,) = warnings(wal_status="unreserved")
    assert not isinstance(urgent, SetupWarning)


@pytest.mark.parametrize(
    ("version", "sent", "told"), [(180_000, 7, True), (180_000, 0, False), (130_000, 7, False)]
)
def test_a_new_checkpoint_is_told_that_another_one_may_read_its_slot(
    version: int, sent: int, told: bool
) -> None:
    def rows(query: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        return [(sent,)] if query == SENT else [(version,)]

    found = start_warnings_of(STREAM, rows)
    assert ["a slot belongs to one checkpoint" in text for text in found] == [True] * told
    assert start_warnings_of(STREAM, lambda query, parameters=(): [] if query == SENT else [(version,)]) == []
