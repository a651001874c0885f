"""`penstock run ydb-to-files` under SIGKILL while topic partitions split and merge: the lines replay to the table."""

from __future__ import annotations

import os
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock_emulators.oracle import kill
from penstock_emulators.oracle.kill import FileAppears, Later, python
from penstock_emulators.oracle.lines import Line, read_lines
from penstock_emulators.ydb import YdbEmulator
from tests.integration.ydb.conftest import Table, Writers

pytestmark = [pytest.mark.spark, pytest.mark.long(seconds=35)]

SECONDS_A_KILL = 16.0
"""A start and the commits before a kill, on a busy machine. On an idle one half of it is enough."""


def test_kills_lose_nothing_double_nothing_and_keep_order(tmp_path: Path, campaign: Any) -> None:
    draw, rounds = campaign.random("ydb kills"), campaign.size(2, 30)
    with YdbEmulator.start(scan_rows=2) as service:
        table = Table(service, "orders", rows=60, initial_scan=True, partitions=2)
        table.control.add_consumer(table.topic, "penstock")
        seconds = SECONDS_A_KILL * rounds + 6
        end = time.time() + seconds
        writers = Writers(table, campaign.seed, pause=0.02)
        # After commits of this run, however long its start takes, so that later runs begin behind the first message.
        commits = FileAppears(tmp_path / "checkpoint", "records/*.record", nth=3)
        moments = [("at random", Later(commits, draw.random() * 2)) for _ in range(rounds)]
        done = threading.Timer(end - 2 - time.time(), writers.stop)
        done.start()
        kills = kill.campaign(
            command(table, tmp_path, end),
            moments,
            log=tmp_path / "log",
            seconds=seconds + 120,
            environment=dict(os.environ),
        )
        done.join()
        lines = list(read_lines(tmp_path / "out"))
        rows = {tuple(key): row for key, row in table.control.rows(table.name)}
        offsets = table.control.offsets(table.topic)
        committed = table.control.committed(table.topic, "penstock")
    assert len(kills) == rounds
    assert min(writers.splits, writers.merges) > 0
    assert_each_change_once_in_order(lines)
    assert replayed(lines) == rows
    # Only what is in a checkpoint is committed, so the commit is never after the last message.
    assert all(0 <= committed[number] <= end for number, (_, end, _) in offsets.items())
    assert sum(committed.values()) > 0
    campaign.record(
        "ydb-kills",
        kills=len(kills),
        changes=len(lines),
        transactions=writers.transactions,
        splits=writers.splits,
        merges=writers.merges,
    )


def command(table: Table, folder: Path, end: float) -> list[str]:
    given = {
        "endpoint": table.service.endpoint,
        "database": table.service.database,
        "table": table.name,
        "changefeed": "feed",
        "consumer": "penstock",
        "output": str(folder / "out"),
        "end": datetime.fromtimestamp(end, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "roll_seconds": "1",
        "shards": "2",
    }
    sets = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
    options = ["--checkpoint-dir", str(folder / "checkpoint"), "--master", "local[2,4]"]
    return python("penstock.cli.main", "run", "ydb-to-files", *sets, *options)


def assert_each_change_once_in_order(lines: list[Line]) -> None:
    places = [(line.content["partition"], line.content["offset"]) for line in lines]
    assert len(places) == len(set(places)), "a change is in the files twice"
    last: dict[Any, tuple[int, int]] = {}
    scanned: set[Any] = set()
    for line in lines:  # in the order of file names and lines
        content = line.content
        key, at = tuple(content["record"]["key"]), (content["step"], content["tx_id"])
        assert last.get(key, (0, 0)) < at, "the changes of a key are out of order"
        assert not content["initial_scan"] or key not in last, "a row of the scan follows a change of it"
        last[key] = at
        if content["initial_scan"]:
            scanned.add(key)
    assert scanned == {(number,) for number in range(60)}, "a row of the scan is missing"


def replayed(lines: list[Line]) -> dict[Any, dict[str, Any]]:
    """Apply the lines in their order; each old image must be the row as it is then."""
    rows: dict[Any, dict[str, Any]] = {}
    for line in lines:
        record = line.content["record"]
        key = tuple(record["key"])
        if not line.content["initial_scan"]:
            assert record.get("oldImage") == rows.get(key), "a change before this one is missing"
        if "erase" in record:
            rows.pop(key, None)
        else:
            rows[key] = record["newImage"]
    return rows
