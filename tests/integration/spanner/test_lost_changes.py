"""A new snapshot in place of changes that the service has dropped. Google's emulator drops none."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.spanner.test_incremental_snapshots import records, replayed, run_until_completed
from tests.integration.spanner.test_snapshot import insert
from tests.support.epochs import Epochs
from tests.support.waiting import wait_until

pytestmark = pytest.mark.parametrize("emulator", ["simulated"], indirect=True, scope="session")


@pytest.mark.slow
@pytest.mark.parametrize("parts", [3, pytest.param(1, marks=pytest.mark.campaign)])
def test_a_new_snapshot_replaces_changes_that_were_lost(emulator: Any, new_database: Any, parts: int) -> None:
    database = new_database(emulator)
    insert(database, "Accounts", {1: "first", 2: "first"})
    transform = database.reading(snapshot="when_needed", idle_stream_seconds=0)
    driver = Epochs(transform.with_notifications(lambda reports: reports), parts)
    driver.run_until(insert(database, "Accounts", {2: "second"}))
    insert(database, "Accounts", {2: "lost", 3: "lost"})
    path = database.client.name
    emulator.control.retention(path, "Changes", 0)
    wait_until(
        lambda: driver.run(0.05) is not None and any(frontier.lost for frontier, _ in driver.residuals),
        "the loss is not noticed",
    )
    emulator.control.retention(path, "Changes", 86_400)
    run_until_completed(driver)
    driver.run_until(insert(database, "Accounts", {4: "after"}))
    rows = {key: value for key, (value, _) in replayed(records(driver), "Accounts").items()}
    assert rows == {1: "first", 2: "lost", 3: "lost", 4: "after"}
