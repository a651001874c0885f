"""`penstock run bigtable-to-files` under churn and SIGKILL: the files replay to the table, each change once."""

from __future__ import annotations

import os
import threading
import time
from base64 import b64decode
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock.io.bigtable import AddToCell, DeleteCells, DeleteFamily, MergeToCell, SetCell
from tests.integration.bigtable.replay import Cells, apply
from tests.oracle import kill
from tests.oracle.kill import After, python
from tests.oracle.lines import Line, read_lines

pytestmark = [pytest.mark.emulator, pytest.mark.spark, pytest.mark.slow]


def test_kills_under_churn_lose_nothing_double_nothing_and_keep_order(
    new_table: Callable[..., Any], writers: Any, tmp_path: Path, campaign_of: Any
) -> None:
    table, rng = new_table(b"\x40", b"\x80", b"\xc0"), campaign_of.random("bigtable kills")
    rounds = campaign_of.size(3, 30)
    seconds, begun = 16.0 * rounds, time.time()
    start, end = rfc3339(begun), rfc3339(begun + seconds)
    table.control.churn(0.5, seed=campaign_of.seed, table=table.name)
    moments = [("at random", After(9 + rng.random() * 7)) for _ in range(rounds)]
    environment = {**os.environ, **table.emulator.environment()}
    with writers(table, threads=2, pause=0.02) as writing:
        done = threading.Timer(seconds - 4, writing.stop)
        done.start()
        kills = kill.campaign(
            command(table.id, start, end, tmp_path),
            moments,
            log=tmp_path / "log",
            seconds=seconds + 180,
            environment=environment,
        )
        done.join()
    table.control.churn(0, table=table.name)
    lines = list(read_lines(tmp_path / "out"))
    campaign_of.record("bigtable-kills", kills=len(kills), lines=len(lines), writes=writing.writes)
    assert len(kills) == rounds
    assert writing.writes > 20 * rounds
    assert repeated(lines) == []
    assert out_of_order(lines) == []
    assert differences(cells_of(lines), table.cells()) == {}


def rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def command(table: str, start: str, end: str, folder: Path) -> list[str]:
    given = {
        "project": "penstock-test",
        "instance": "penstock-test",
        "table": table,
        "output": str(folder / "out"),
        "start": start,
        "end": end,
        "base64": "true",
        "roll_seconds": "1",
        "shards": "2",
        "heartbeat_seconds": "0.2",
    }
    sets = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
    options = ["--checkpoint-dir", str(folder / "checkpoint"), "--master", "local[2,4]"]
    return python("penstock.templates.cli", "run", "bigtable-to-files", *sets, *options)


def identity(line: Line) -> tuple[Any, ...]:
    names = ("row_key", "commit_timestamp", "source_cluster", "tiebreaker", "entry_index")
    return tuple(line.content[name] for name in names)


def repeated(lines: list[Line]) -> list[Any]:
    return [each for each, count in Counter(map(identity, lines)).items() if count > 1]


def out_of_order(lines: list[Line]) -> list[str]:
    last: dict[Any, Any] = {}
    wrong = []
    for line in lines:
        lane = (line.table, line.hour, line.shard, line.content["row_key"])
        at = (line.content["commit_timestamp"], line.content["entry_index"])
        if at <= last.get(lane, ("", -1)):
            wrong.append(line.place)
        last[lane] = at
    return wrong


def cells_of(lines: list[Line]) -> Cells:
    """The table that the lines make when they are applied in their order."""
    table: Cells = {}
    for line in lines:
        key = b64decode(line.content["row_key"])
        apply(table.setdefault(key, {}), entry(line.content))
    return {key: row for key, row in table.items() if row}


def differences(mine: Cells, theirs: Cells) -> dict[bytes, Any]:
    """Row key to the cells that only one side has."""
    return {
        key: dict(mine.get(key, {}).items() ^ theirs.get(key, {}).items())
        for key in mine.keys() | theirs.keys()
        if mine.get(key) != theirs.get(key)
    }


def entry(line: dict[str, Any]) -> object:
    family, column = line["column_family"], b64decode(line["column"] or "")
    match line["mod_type"]:
        case "SET_CELL":
            return SetCell(family, column, line["timestamp"], b64decode(line["value"]))
        case "DELETE_CELLS":
            return DeleteCells(family, column, line["timestamp_from"], line["timestamp_to"])
        case "DELETE_FAMILY":
            return DeleteFamily(family)
        case "ADD_TO_CELL":
            return AddToCell(family, column, line["timestamp"], line["value"])
        case "MERGE_TO_CELL":
            return MergeToCell(family, column, line["timestamp"], b64decode(line["value"]))
    raise AssertionError(line["mod_type"])


@pytest.fixture
def campaign_of(campaign: Any) -> Any:
    """The size of this run; `campaign` is the killer's word here."""
    return campaign
