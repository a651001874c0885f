"""`penstock run spanner-to-files` in every format, killed while it runs: consumers replay the lines to the tables."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from penstock.compat import UTC
from penstock_emulators.oracle import kill
from penstock_emulators.oracle.kill import After, python
from penstock_emulators.oracle.lines import read_lines
from penstock_emulators.simulated_spanner import SimulatedSpanner
from penstock_emulators.spanner import SpannerEmulator
from tests.integration.formats import consumers
from tests.integration.formats.database import INSTANCE, PROJECT, TABLES, Database

pytestmark = [pytest.mark.spark, pytest.mark.long(seconds=20)]

SECONDS_A_KILL = 13.0
OLD_AND_NEW, WHOLE = "OLD_AND_NEW_VALUES", "NEW_ROW_AND_OLD_VALUES"

CASES: dict[str, tuple[str, Callable[..., consumers.Tables], dict[str, str]]] = {
    "debezium": (OLD_AND_NEW, consumers.debezium, {"format": "debezium"}),
    "debezium-new-values": ("NEW_VALUES", consumers.debezium, {"format": "debezium"}),
    "debezium-messages": (
        OLD_AND_NEW,
        consumers.debezium_messages,
        {"format": "debezium", "lines": "messages", "debezium.schemas_enable": "true"},
    ),
    "ydb-updates": (OLD_AND_NEW, consumers.ydb, {"format": "ydb", "ydb.virtual_timestamps": "true"}),
    "ydb-new-image": (
        "NEW_ROW",
        consumers.ydb,
        {"format": "ydb", "ydb.mode": "NEW_IMAGE", "ydb.virtual_timestamps": "true"},
    ),
    "ydb-barriers": (
        OLD_AND_NEW,
        consumers.ydb,
        {
            "format": "ydb",
            "ydb.mode": "NEW_AND_OLD_IMAGES",
            "ydb.virtual_timestamps": "true",
            "materialize_rows": "true",
            "barrier_seconds": "0.5",
        },
    ),
    "ydb-debezium": (
        WHOLE,
        consumers.ydb_debezium,
        {"format": "ydb", "ydb.mode": "NEW_AND_OLD_IMAGES", "ydb.format": "DEBEZIUM_JSON"},
    ),
    "dynamodb": (WHOLE, consumers.dynamodb, {"format": "dynamodb"}),
    "change-feed": (OLD_AND_NEW, consumers.change_feed, {"format": "change_feed"}),
    "cloudevents": (
        OLD_AND_NEW,
        consumers.cloudevents,
        {"format": "cloudevents", "cloudevents.data_format": "ydb", "ydb.virtual_timestamps": "true"},
    ),
    "bigquery": (OLD_AND_NEW, consumers.bigquery, {"format": "bigquery"}),
}
"""Capture type, consumer and parameters of each case."""


@pytest.fixture(scope="module")
def emulator(campaign: Any) -> Iterator[Any]:
    """Google's emulator in a campaign, the simulated service otherwise."""
    start: Any = SpannerEmulator.start if campaign.full else SimulatedSpanner.start
    options = {"token_life_seconds": 1} if campaign.full else {"churn_seconds": 1, "seed": campaign.seed}
    with start(**options) as service, pytest.MonkeyPatch.context() as environment:
        for name, value in service.environment().items():
            environment.setenv(name, value)
        yield service


def test_a_consumer_of_each_format_replays_the_tables_exactly(
    emulator: Any, tmp_path: Path, campaign: Any
) -> None:
    rng, figures = campaign.random("formats of spanner"), {}
    for name in CASES if campaign.full else ["ydb-barriers"]:
        capture, consume, parameters = CASES[name]
        database, folder = Database(emulator, capture), tmp_path / name
        folder.mkdir()
        moments = [("at random", After(8 + 4 * rng.random())) for _ in range(campaign.size(1, 2))]
        kills = run(database, folder, parameters, moments, rng.randrange(1 << 30))
        lines = list(read_lines(folder / "out"))
        assert len(kills) == len(moments)
        assert database.commits > 40
        assert consume(lines, database.types) == {
            table: rows for table, rows in database.rows().items() if rows
        }
        figures[name] = {"kills": len(kills), "commits": database.commits, "lines": len(lines)}
        if "barrier_seconds" in parameters:
            barriers = [line for line in lines if "resolved" in line.content]
            assert consumers.earlier_than_a_barrier(lines) == []
            assert {(line.table, line.shard) for line in barriers} == {
                (table, shard) for table in TABLES for shard in ("00-of-02", "01-of-02")
            }
            figures[name]["barriers"] = len(barriers)
    campaign.record("formats-spanner", **figures)


def run(
    database: Database, folder: Path, parameters: dict[str, str], moments: list[Any], seed: int
) -> list[kill.Kill]:
    """Run the pipeline, killed at each of the moments, to its end, before which the writer stops."""
    begun = time.time()
    end = begun + SECONDS_A_KILL * len(moments) + 6
    given = {
        "project": PROJECT,
        "instance": INSTANCE,
        "database": database.name,
        "change_stream": "Changes",
        "output": str(folder / "out"),
        "start": _rfc3339(begun),
        "end": _rfc3339(end),
        "roll_seconds": "1",
        "shards": "2",
        **parameters,
    }
    sets = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
    options = ["--checkpoint-dir", str(folder / "checkpoint"), "--master", "local[2,4]"]
    with database.written(seed) as stop:
        done = threading.Timer(end - 3 - begun, stop.set)
        done.start()
        kills = kill.campaign(
            python("penstock.cli.main", "run", "spanner-to-files", *sets, *options),
            moments,
            log=folder / "log",
            seconds=end - begun + 180,
            environment=database.emulator.environment(),
        )
        done.join()
    return kills


def _rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
