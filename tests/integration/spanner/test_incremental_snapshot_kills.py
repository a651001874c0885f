"""Incremental snapshots under SIGKILL of driver, JVM and workers: the published files replay to the tables."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from penstock.compat import UTC
from penstock.io.change_streams.incremental.signal_folder import write_signal
from penstock_emulators.oracle import kill
from penstock_emulators.oracle.change import Change, changes_of
from penstock_emulators.oracle.kill import python
from penstock_emulators.oracle.lines import read_lines
from penstock_emulators.oracle.replay import differences, read_table, read_types, replay
from penstock_emulators.oracle.rules import broken_rules
from tests.integration.spanner.conftest import INSTANCE, PROJECT, TABLES, in_a_campaign_on_both_services
from tests.integration.spanner.test_snapshot_kills import published

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROWS = 6_000
"""In each of the two tables. `published` counts in shares of twice as many."""


@pytest.mark.campaign
@in_a_campaign_on_both_services
def test_kills_while_chunks_are_read_lose_nothing(
    emulator: Any,
    new_database: Callable[..., Any],
    writers: Callable[..., Any],
    tmp_path: Path,
    campaign: Any,
) -> None:
    rng = campaign.random("spanner incremental snapshot kills")
    killed = rows = changes = 0
    for number in range(campaign.size(1, 4)):
        database, folder = new_database(emulator), tmp_path / str(number)
        folder.mkdir()
        fill(database)
        for id_ in (1, 2):
            data = {"data-collections": ["Accounts|Orders"], "chunk-size": 300}
            write_signal(folder / "signals", str(id_), "execute-snapshot", data, id_)
        shares = sorted(rng.uniform(0.02, 0.5) for _ in range(3))
        begun = time.time()
        with writers(database, threads=2, keys=ROWS, pause=0.03) as writing:
            end = begun + 12 + 12 * len(shares)
            done = threading.Timer(end - 4 - begun, writing.stop)
            done.start()
            kills = kill.campaign(
                command(database.name, folder, begun, end),
                [(f"{share:.2f} of the rows", published(folder / "out", share)) for share in shares],
                log=folder / "log",
                seconds=end - begun + 180,
                environment=database.emulator.environment(),
            )
            done.join()
        found = list(changes_of(read_lines(folder / "out")))
        read = [change for change in found if change.mod_type == "READ"]
        changed = [change for change in found if change.mod_type != "READ"]
        assert len(kills) == len(shares), "the snapshots were read before their moment"
        assert len(read) > 1.5 * ROWS * len(TABLES), "a snapshot has not the rows"
        assert_rows_follow_only_what_they_see(found)
        lost = set(writing.commits) - {change.version[0] for change in changed}
        assert not lost, f"{len(lost)} transactions are not in the files"
        assert broken_rules(changed) == []
        types = read_types(database.client)
        tables = {name: read_table(database.client, name, types[name], ("Id",)) for name in TABLES}
        replica = replay(found)
        replica.wrong.clear()  # a row of an incremental snapshot may exist already, and a change may come before it
        assert differences(replica, tables, types) == []
        killed, rows, changes = killed + len(kills), rows + len(read), changes + len(changed)
    name = f"spanner-incremental-snapshot-kills-{type(emulator).__name__.lower()}"
    campaign.record(name, kills=killed, rows=rows, changes=changes)


def assert_rows_follow_only_what_they_see(found: list[Change]) -> None:
    last: dict[Any, int] = {}
    for change in found:
        key = change.table, change.key
        assert last.get(key, 0) <= change.version[0], "a row or a change of a key came out of order"
        if change.mod_type != "READ":
            last[key] = change.version[0]


def fill(database: Any) -> None:
    for table in TABLES:
        for start in range(0, ROWS, 2000):
            with database.client.batch() as batch:
                batch.insert(
                    table, ["Id", "Value"], [(key, "row " * 50) for key in range(start, start + 2000)]
                )


def command(database: str, folder: Path, start: float, end: float) -> list[str]:
    given = {
        "project": PROJECT,
        "instance": INSTANCE,
        "database": database,
        "change_stream": "Changes",
        "output": str(folder / "out"),
        "signal_folder": str(folder / "signals"),
        "start": timestamp(start),
        "end": timestamp(end),
        "roll_seconds": "0",
    }
    sets = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
    options = ["--checkpoint-dir", str(folder / "checkpoint"), "--master", "local[2,4]"]
    return python("penstock.cli.main", "run", "spanner-to-files", *sets, *options)


def timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
