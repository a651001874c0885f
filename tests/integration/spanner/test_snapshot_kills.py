"""`penstock run spanner-to-files` with a snapshot, killed while it reads rows: the files replay to the tables."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from penstock.compat import UTC
from penstock_emulators.oracle import kill
from penstock_emulators.oracle.change import Change, changes_of
from penstock_emulators.oracle.kill import python
from penstock_emulators.oracle.lines import read_lines
from penstock_emulators.oracle.replay import differences, read_table, read_types, replay
from penstock_emulators.oracle.rules import broken_rules
from tests.conftest import CAMPAIGN
from tests.integration.spanner.conftest import INSTANCE, PROJECT, TABLES

pytestmark = [pytest.mark.spark, pytest.mark.slow(seconds=25)]

GOOGLE = pytest.param("google", marks=pytest.mark.emulator)
ROWS = 12_000
"""In each of the two tables."""


class RowsPublished:
    """The moment when so many lines are in published files."""

    def __init__(self, folder: Path, lines: int) -> None:
        self._folder, self._lines = folder, lines
        self._counted: dict[Path, int] = {}

    def arm(self) -> None:
        self._counted.clear()

    def is_now(self) -> bool:
        # A published file never changes, so each is counted once.
        for path in self._folder.glob("[!._]*/**/*.jsonl"):
            if path not in self._counted:
                self._counted[path] = path.read_bytes().count(b"\n")
        return sum(self._counted.values()) >= self._lines


@pytest.mark.parametrize(
    "emulator", ["simulated", *([GOOGLE] if CAMPAIGN else [])], indirect=True, scope="session"
)
def test_kills_while_rows_are_read_lose_nothing_and_double_nothing(
    emulator: Any,
    new_database: Callable[..., Any],
    writers: Callable[..., Any],
    tmp_path: Path,
    campaign: Any,
) -> None:
    rng = campaign.random("spanner snapshot kills")
    killed = rows = changes = 0
    for number in range(campaign.size(1, 10)):
        database, folder = new_database(emulator), tmp_path / str(number)
        folder.mkdir()
        filling = time.time()
        fill(database)
        shares = sorted(rng.uniform(0.02, 0.7) for _ in range(campaign.size(1, 3)))
        with writers(database, threads=1, keys=ROWS, pause=0.05) as writing:
            begun = time.time()
            # The snapshot must begin before the end. A busy machine needs long for the first start, and for the rows.
            end = begun + campaign.size(20, 60) + 12 * len(shares) + (begun - filling)
            done = threading.Timer(end - 4 - begun, writing.stop)
            done.start()
            kills = kill.campaign(
                command(database.name, folder, end),
                [(f"{share:.2f} of the rows", published(folder / "out", share)) for share in shares],
                log=folder / "log",
                seconds=end - begun + 600,
                environment=database.emulator.environment(),
            )
            done.join()
        found = list(changes_of(read_lines(folder / "out")))
        read = [change for change in found if change.mod_type == "READ"]
        changed = [change for change in found if change.mod_type != "READ"]
        assert len(kills) == len(shares), "the snapshot was read before its moment"
        check(database, found, read, changed, writing.commits)
        killed, rows, changes = killed + len(kills), rows + len(read), changes + len(changed)
    campaign.record(
        f"spanner-snapshot-kills-{type(emulator).__name__.lower()}", kills=killed, rows=rows, changes=changes
    )


def published(folder: Path, share: float) -> RowsPublished:
    return RowsPublished(folder, int(share * ROWS * len(TABLES)))


def check(
    database: Any, found: list[Change], read: list[Change], changed: list[Change], commits: list[int]
) -> None:
    (snapshot,) = {change.version[0] for change in read}
    assert len({(change.table, change.key) for change in read}) == len(read), "a row is in the files twice"
    assert changed, "nothing was changed after the snapshot"
    assert all(change.version[0] > snapshot for change in changed), "a change that the snapshot has"
    lost = {commit for commit in commits if commit > snapshot} - {change.version[0] for change in changed}
    assert not lost, f"{len(lost)} transactions are not in the files"
    assert broken_rules(changed) == []
    types = read_types(database.client)
    tables = {name: read_table(database.client, name, types[name], ("Id",)) for name in TABLES}
    assert differences(replay(found), tables, types) == []


def fill(database: Any) -> None:
    for table in TABLES:
        for start in range(0, ROWS, 2000):
            with database.client.batch() as batch:
                batch.insert(
                    table, ["Id", "Value"], [(key, "row " * 50) for key in range(start, start + 2000)]
                )


def command(database: str, folder: Path, end: float) -> list[str]:
    given = {
        "project": PROJECT,
        "instance": INSTANCE,
        "database": database,
        "change_stream": "Changes",
        "output": str(folder / "out"),
        "snapshot": "initial",
        "end": datetime.fromtimestamp(end, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "roll_seconds": "0",
        "shards": "2",
    }
    sets = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
    options = ["--checkpoint-dir", str(folder / "checkpoint"), "--master", "local[2,4]"]
    return python("penstock.cli.main", "run", "spanner-to-files", *sets, *options)
