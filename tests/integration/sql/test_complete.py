"""The table that says until when a target is complete."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from penstock.io.sql.write import connector_of
from penstock.io.staging.send import SendBatchesFn
from tests.integration.sql.conftest import Database, Target

pytestmark = pytest.mark.slow(seconds=5)

NOON_US = 1_769_860_800_000_000
NOON = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)


def times(target: Target) -> list[tuple[Any, ...]]:
    return target.database.rows("select job, sink, complete_until from penstock_complete order by 1, 2")


def step(target: Target, sink: str = "one") -> SendBatchesFn:
    return SendBatchesFn(connector_of(target.target), sink, None)


def test_the_time_of_a_sink_moves_on_and_never_back(database: Database) -> None:
    target = Target(database, mark_complete=True)
    step(target).mark_complete("job", 10, NOON_US)
    assert times(target) == [("job", "one", NOON)]
    # A driver that was paused wakes up.
    step(target).mark_complete("job", 9, NOON_US - 1_000_000)
    assert times(target) == [("job", "one", NOON)]
    step(target).mark_complete("job", 11, NOON_US + 1)
    step(target, "two").mark_complete("job", 11, NOON_US)
    assert times(target) == [("job", "one", NOON + timedelta(microseconds=1)), ("job", "two", NOON)]


def test_without_the_option_there_is_no_table(database: Database) -> None:
    target = Target(database)
    step(target).mark_complete("job", 10, NOON_US)
    target.deliver([])
    assert target.database.rows("select to_regclass('penstock_complete')") == [(None,)]
