"""`penstock run spanner-to-files` under churn and SIGKILL: the files replay to the tables, each change once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.integration.spanner.conftest import INSTANCE, PROJECT, TABLES
from tests.oracle import kill
from tests.oracle.change import changes_of
from tests.oracle.kill import After, python
from tests.oracle.lines import read_lines
from tests.oracle.replay import differences, read_table, read_types, replay
from tests.oracle.rules import broken_rules

pytestmark = [pytest.mark.emulator, pytest.mark.spark, pytest.mark.slow]

SECONDS_A_KILL = 16.0


def test_kills_under_churn_lose_nothing_double_nothing_and_keep_order(
    database: Any, writers: Callable[..., Any], tmp_path: Path, campaign: Any
) -> None:
    rng, rounds = campaign.random("spanner kills"), campaign.size(1, 30)
    begun = time.time()
    end = begun + SECONDS_A_KILL * rounds + 8
    moments = [("at random", After(9 + rng.random() * 7)) for _ in range(rounds)]
    with writers(database, threads=1, keys=200, pause=0.05) as writing:
        done = threading.Timer(end - 4 - time.time(), writing.stop)
        done.start()
        kills = kill.campaign(
            _command(database.name, tmp_path, begun, end),
            moments,
            log=tmp_path / "log",
            seconds=end - begun + 180,
            environment=database.emulator.environment(),
        )
        done.join()
    changes = list(changes_of(read_lines(tmp_path / "out")))
    types = read_types(database.client)
    tables = {name: read_table(database.client, name, types[name], ("Id",)) for name in TABLES}
    lost = set(writing.commits) - {change.version[0] for change in changes}
    campaign.record(
        "spanner-kills", kills=len(kills), changes=len(changes), transactions=len(writing.commits)
    )
    assert len(kills) == rounds
    assert len(writing.commits) > 50 * rounds
    assert not lost, f"{len(lost)} of {len(writing.commits)} transactions are not in the files"
    assert broken_rules(changes) == []
    assert differences(replay(changes), tables, types) == []


def _command(database: str, folder: Path, begun: float, end: float) -> list[str]:
    given = {
        "project": PROJECT,
        "instance": INSTANCE,
        "database": database,
        "change_stream": "Changes",
        "output": str(folder / "out"),
        "start": _rfc3339(begun),
        "end": _rfc3339(end),
        "roll_seconds": "1",
        "shards": "2",
    }
    sets = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
    options = ["--checkpoint-dir", str(folder / "checkpoint"), "--master", "local[2,4]"]
    return python("penstock.templates.cli", "run", "spanner-to-files", *sets, *options)


def _rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
