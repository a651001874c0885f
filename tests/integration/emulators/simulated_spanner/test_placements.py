"""A placement that is added while a stream with per_placement_tvf is read."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock.io.spanner import ReadFromSpannerChangeStream
from penstock.timestamps import NANOS
from penstock_emulators.simulated_spanner import SimulatedSpanner
from tests.integration.emulators.simulated_spanner.conftest import GOOGLESQL, INSTANCE, POSTGRESQL, PROJECT
from tests.support.epochs import Epochs

pytestmark = pytest.mark.long(seconds=5)
NAMES = {GOOGLESQL: ("T", "Changes"), POSTGRESQL: ("t", "changes")}
DDL = {
    GOOGLESQL: [
        "CREATE PLACEMENT us",
        "CREATE TABLE T (Id INT64 NOT NULL, Place STRING(MAX) NOT NULL PLACEMENT KEY) PRIMARY KEY (Id)",
        "CREATE CHANGE STREAM Changes FOR ALL OPTIONS (per_placement_tvf = true, partition_mode = '{mode}')",
    ],
}


@pytest.mark.parametrize("mode", ["IMMUTABLE_KEY_RANGE", "MUTABLE_KEY_RANGE"])
def test_changes_of_a_placement_that_is_added_later_are_read_and_hold_the_watermark(
    connect: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr("penstock.io.spanner.read._LOOK", NANOS // 10)
    with SimulatedSpanner.start(partitions=2, churn_seconds=0.3) as simulation:
        ddl = [each.replace("{mode}", mode) for each in DDL[GOOGLESQL]]
        simulation.create_database(PROJECT, INSTANCE, "placed", ddl)
        database = connect(simulation, "placed")
        read = Epochs(
            ReadFromSpannerChangeStream(
                project=PROJECT,
                instance=INSTANCE,
                database="placed",
                change_stream="Changes",
                api_endpoint=simulation.host,
                plain_text=True,
            ),
            2,
        )
        write(database, range(10), "us")
        read.run_until(time.time_ns())
        database.update_ddl(["CREATE PLACEMENT eu"]).result()
        write(database, range(10, 20), "eu")
        read.run(0.2, crash=True)
        database.update_ddl(["CREATE PLACEMENT asia"]).result()
        write(database, range(20, 30), "asia")
        read.run_until(time.time_ns())
        write(database, range(30, 40), "eu")
        read.run_until(time.time_ns())
    ids = [mod.parsed()[0]["Id"] for record in read.committed for mod in record.mods]
    assert sorted(map(int, ids)) == list(range(40))


def write(database: Any, ids: range, placement: str) -> None:
    for number in ids:
        with database.batch() as batch:
            batch.insert("T", ("Id", "Place"), [(number, placement)])
