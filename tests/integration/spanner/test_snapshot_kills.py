"""`penstock run spanner-to-files` with a snapshot, killed while it reads rows: the files replay to the tables."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from penstock_emulators.oracle import kill
from penstock_emulators.oracle.change import Change, changes_of, nanoseconds
from penstock_emulators.oracle.kill import python
from penstock_emulators.oracle.lines import read_lines
from penstock_emulators.oracle.replay import differences, read_table, read_types, replay
from penstock_emulators.oracle.rules import broken_rules
from tests.integration.spanner.conftest import INSTANCE, PROJECT, TABLES, in_a_campaign_on_both_services
from tests.support.waiting import RUN_PATIENCE_SECONDS, drain, wait_for_run

pytestmark = [pytest.mark.spark, pytest.mark.long(seconds=25)]

ROWS = 12_000
"""In each of the two tables."""


class Published:
    """What the published files contain. A file never changes, so each is read once."""

    def __init__(self, folder: Path) -> None:
        self.lines = 0
        self.commits: set[int] = set()
        """Of the changes, without the rows of the snapshot."""
        self._snapshots: set[int] = set()
        self._records: dict[tuple[str, int], set[str]] = defaultdict(set)
        """The records of each transaction, by its id and the number of records that it has in all partitions."""
        self._folder, self._known = folder, set[Path]()

    def look(self) -> Published:
        for path in set(self._folder.glob("[!._]*/**/*.jsonl")) - self._known:
            self._known.add(path)
            lines = [json.loads(line) for line in path.read_bytes().splitlines()]
            self.lines += len(lines)
            for line in lines:
                is_row = line["mod_type"] == "READ"
                (self._snapshots if is_row else self.commits).add(nanoseconds(line["commit_timestamp"]))
                if not is_row:
                    transaction = line["server_transaction_id"], line["number_of_records_in_transaction"]
                    self._records[transaction].add(line["record_sequence"])
        return self

    def have(self, commits: Iterable[int]) -> bool:
        """Whether all records of the transactions are read, but for those that the snapshot has."""
        snapshot = max(self.look()._snapshots)
        whole = all(len(records) == number for (_, number), records in self._records.items())
        return whole and self.commits.issuperset(commit for commit in commits if commit > snapshot)


class RowsPublished:
    """The moment when so many lines are in published files."""

    def __init__(self, folder: Path, lines: int) -> None:
        self._folder, self._lines = folder, lines

    def arm(self) -> None:
        self._published = Published(self._folder)

    def is_now(self) -> bool:
        return self._published.look().lines >= self._lines


@in_a_campaign_on_both_services
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
        fill(database)
        shares = sorted(rng.uniform(0.02, 0.7) for _ in range(campaign.size(1, 3)))
        with writers(database, threads=1, keys=ROWS, pause=0.05) as writing:
            run_and_kill(database, folder, shares, writing)
        found = list(changes_of(read_lines(folder / "out")))
        read = [change for change in found if change.mod_type == "READ"]
        changed = [change for change in found if change.mod_type != "READ"]
        check(database, found, read, changed, writing.commits)
        killed, rows, changes = killed + len(shares), rows + len(read), changes + len(changed)
    campaign.record(
        f"spanner-snapshot-kills-{type(emulator).__name__.lower()}", kills=killed, rows=rows, changes=changes
    )


def run_and_kill(database: Any, folder: Path, shares: list[float], writing: Any) -> None:
    """Run the pipeline, killed at these shares of the rows, until it has published what was written meanwhile."""
    log, changes = folder / "log", Published(folder / "out")

    def run() -> kill.Run:
        return kill.Run(command(database.name, folder), log=log, environment=database.emulator.environment())

    for share in shares:
        moment = published(folder / "out", share)
        moment.arm()
        with run() as running:
            killed = kill.kill_at(running, moment, f"{share:.2f} of the rows", RUN_PATIENCE_SECONDS)
            assert killed is not None, "the snapshot was read before its moment"
    with run() as running:
        wait_for_run(running, lambda: changes.look().commits, "a change after the snapshot", log)
        writing.stop()
        # Of all partitions: a drain does not read what they still have.
        wait_for_run(running, lambda: changes.have(writing.commits), "the last changes", log)
        drain(running, folder / "checkpoint", log)


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


def command(database: str, folder: Path) -> list[str]:
    given = {
        "project": PROJECT,
        "instance": INSTANCE,
        "database": database,
        "change_stream": "Changes",
        "output": str(folder / "out"),
        "snapshot": "initial",
        "roll_seconds": "0",
        "shards": "2",
    }
    sets = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
    options = ["--checkpoint-dir", str(folder / "checkpoint"), "--master", "local[2,4]"]
    return python("penstock.cli.main", "run", "spanner-to-files", *sets, *options)
