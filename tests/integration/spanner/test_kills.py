"""`penstock run spanner-to-files` under churn and SIGKILL: the files replay to the tables, each change once."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from penstock.compat import UTC
from penstock_emulators.oracle import kill
from penstock_emulators.oracle.change import changes_of, nanoseconds
from penstock_emulators.oracle.kill import After, python
from penstock_emulators.oracle.lines import read_lines
from penstock_emulators.oracle.replay import differences, read_table, read_types, replay
from penstock_emulators.oracle.rules import broken_rules
from penstock_emulators.simulated_spanner import SimulatedSpanner
from tests.integration.spanner.conftest import (
    GOOGLESQL,
    INSTANCE,
    POSTGRESQL,
    PROJECT,
    TABLES,
    in_a_campaign_on_both_services,
)

pytestmark = [pytest.mark.spark, pytest.mark.slow(seconds=25)]

SECONDS_A_KILL = 11.0
TYPES = {table: {"Id": "INT64", "Value": "STRING", "Version": "INT64"} for table in TABLES}


@in_a_campaign_on_both_services
def test_kills_under_churn_lose_nothing_double_nothing_and_keep_order(
    emulator: Any,
    new_database: Callable[..., Any],
    writers: Callable[..., Any],
    tmp_path: Path,
    campaign: Any,
) -> None:
    """Each round has a new database: for every query the emulator scans everything that the database holds.

    Every second round, which only a campaign has, is in PostgreSQL.
    """
    rng = campaign.random("spanner kills")
    killed = changes = transactions = 0
    for number in range(campaign.size(1, 10)):
        dialect = POSTGRESQL if number % 2 else GOOGLESQL
        database, folder = new_database(emulator, dialect=dialect), tmp_path / str(number)
        folder.mkdir()
        moments = [("at random", After(7 + rng.random() * 4)) for _ in range(campaign.size(1, 3))]
        with writers(database, threads=1, keys=200, pause=0.05) as writing:
            kills = _run(database, folder, moments, writing)
        found = list(changes_of(read_lines(folder / "out")))
        types = TYPES if dialect == POSTGRESQL else read_types(database.client)
        tables = {name: read_table(database.client, name, types[name], ("Id",)) for name in TABLES}
        lost = set(writing.commits) - {change.version[0] for change in found}
        assert len(kills) == len(moments)
        assert len(writing.commits) > 50
        assert not lost, f"{len(lost)} of {len(writing.commits)} transactions are not in the files"
        assert broken_rules(found) == []
        assert differences(replay(found), tables, types) == []
        lineage = [line.content for line in read_lines(folder / "lineage")]
        assert announcements(lineage), "no partition began while the pipeline ran"
        assert lineage_contradictions(lineage) == []
        if isinstance(emulator, SimulatedSpanner):
            assert announcements(lineage) == true_announcements(emulator, database.name, lineage)
        killed, changes = killed + len(kills), changes + len(found)
        transactions += len(writing.commits)
    campaign.record("spanner-kills", kills=killed, changes=changes, transactions=transactions)


def _run(
    database: Any, folder: Path, moments: list[tuple[str, kill.Moment]], writing: Any
) -> list[kill.Kill]:
    """Run the pipeline, killed at each of the moments, to its end, before which the writers stop."""
    begun = time.time()
    end = begun + SECONDS_A_KILL * len(moments) + 6
    done = threading.Timer(end - 4 - begun, writing.stop)
    done.start()
    kills = kill.campaign(
        _command(database.name, folder, begun, end),
        moments,
        log=folder / "log",
        seconds=end - begun + 180,
        environment=database.emulator.environment(),
    )
    done.join()
    return kills


def _command(database: str, folder: Path, begun: float, end: float) -> list[str]:
    given = {
        "project": PROJECT,
        "instance": INSTANCE,
        "database": database,
        "change_stream": "Changes",
        "output": str(folder / "out"),
        "lineage_log": str(folder / "lineage"),
        "start": _rfc3339(begun),
        "end": _rfc3339(end),
        "roll_seconds": "1",
        "shards": "2",
    }
    sets = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
    options = ["--checkpoint-dir", str(folder / "checkpoint"), "--master", "local[2,4]"]
    return python("penstock.cli.main", "run", "spanner-to-files", *sets, *options)


Announcement = tuple[int, str, tuple[str, ...], str]
"""Time in nanoseconds, partition, its parents, and the partition that announced it."""


def announcements(lineage: list[dict[str, Any]]) -> list[Announcement]:
    """Return the announcements of the log, without those of the partitions that were live at the start."""
    return sorted(
        (nanoseconds(each["time"]), each["partition"], tuple(each["parents"]), each["announced_by"])
        for each in lineage
        if each["event"] == "announced" and each["parents"]
    )


def true_announcements(
    simulation: SimulatedSpanner, database: str, lineage: list[dict[str, Any]]
) -> list[Announcement]:
    """Return what the service says about the partitions that begin in the time that was read."""
    path = f"projects/{PROJECT}/instances/{INSTANCE}/databases/{database}"
    first = min(nanoseconds(each["time"]) for each in lineage)
    end = max(nanoseconds(each["time"]) for each in lineage if each["event"] == "ended")
    return sorted(
        (each["start"], each["token"], tuple(sorted(each["parents"])), parent)
        for each in simulation.control.partitions(path, "Changes")
        for parent in each["parents"]
        if first < each["start"] <= end
    )


def lineage_contradictions(lineage: list[dict[str, Any]]) -> list[str]:
    """Return what is wrong in a log of a read that has ended, with any service: each event comes exactly once."""
    announced = {each["partition"] for each in lineage if each["event"] == "announced"}
    over = Counter(each["partition"] for each in lineage if each["event"] in ("closed", "ended"))
    events = Counter((each["event"], each["partition"], each["announced_by"]) for each in lineage)
    wrong = [f"{event} comes {count} times" for event, count in events.items() if count > 1]
    wrong += [f"{token} is over {over[token]} times" for token in announced if over[token] != 1]
    wrong += [f"{token} is over and was never announced" for token in over.keys() - announced if token]
    return wrong


def _rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
