"""What a real server says about the log that it keeps for a slot."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.postgres.conftest import Database

pytestmark = pytest.mark.slow

MORE_LOG = (
    "insert into t select coalesce((select max(id) from t), 0) + i from generate_series(1, 100000) i",
    "select pg_switch_wal()",
)


def kept(database: Database) -> dict[str, float]:
    found = database.source().measure()
    assert {dict(each.labels)["slot"] for each in found} <= {database.slot}
    return {each.name.removeprefix("penstock_slot_"): each.value for each in found}


@pytest.fixture
def limited(database: Any) -> Any:
    """A database whose slots may keep 20 MB of log."""
    database.execute("create table t (id int primary key)")
    database.execute("alter system set max_slot_wal_keep_size = '20MB'", "select pg_reload_conf()")
    yield database
    database.execute("alter system reset max_slot_wal_keep_size", "select pg_reload_conf()")


def test_a_slot_that_does_not_exist_has_no_values(database):
    assert kept(database) == {}


def test_without_a_limit_a_slot_retains_what_was_written(database):
    database.execute("create table t (id int primary key)")
    database.publish()
    before = kept(database)
    assert before.keys() == {"lost", "retained_bytes"}
    database.execute(*MORE_LOG)
    after = kept(database)
    assert after["retained_bytes"] - before["retained_bytes"] > 5_000_000
    assert after["lost"] == 0


def test_the_rest_until_a_limit_falls_until_the_slot_is_lost(limited):
    limited.publish()
    before = kept(limited)
    assert before["safe_bytes"] > 5_000_000
    limited.execute(*MORE_LOG)
    assert kept(limited)["safe_bytes"] < before["safe_bytes"]
    for _ in range(5):
        limited.execute(*MORE_LOG)
    limited.execute("checkpoint")
    after = kept(limited)
    assert after["lost"] == 1
    assert "safe_bytes" not in after
