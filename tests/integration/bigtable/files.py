"""`penstock run bigtable-to-files` as a child process, and the table that its files replay to."""

from __future__ import annotations

from base64 import b64decode
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

from penstock.compat import UTC
from penstock.io.bigtable import AddToCell, DeleteCells, DeleteFamily, MergeToCell, SetCell
from penstock_emulators.oracle.kill import python
from penstock_emulators.oracle.lines import Line
from tests.integration.bigtable.replay import Cells, apply


def rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def command(table: str, folder: Path, master: str, **times: str) -> list[str]:
    """`penstock run bigtable-to-files` on a table of the emulator; `times` are its `start` and `end`."""
    given = {
        "project": "penstock-test",
        "instance": "penstock-test",
        "table": table,
        "output": str(folder / "out"),
        **times,
        "base64": "true",
        "roll_seconds": "1",
        "shards": "2",
        "heartbeat_seconds": "0.2",
    }
    sets = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
    options = ["--checkpoint-dir", str(folder / "checkpoint"), "--master", master]
    return python("penstock.cli.main", "run", "bigtable-to-files", *sets, *options)


def identity(line: Line) -> tuple[Any, ...]:
    names = ("row_key", "commit_timestamp", "source_cluster", "tiebreaker", "entry_index")
    return tuple(line.content[name] for name in names)


def repeated(lines: list[Line]) -> list[Any]:
    return [each for each, count in Counter(map(identity, lines)).items() if count > 1]


def out_of_order(lines: list[Line]) -> list[str]:
    last: dict[Any, Any] = {}
    wrong = []
    for line in lines:
        bucket = (line.table, line.hour, line.shard, line.content["row_key"])
        at = (line.content["commit_timestamp"], line.content["entry_index"])
        if at <= last.get(bucket, ("", -1)):
            wrong.append(line.place)
        last[bucket] = at
    return wrong


def cells_of(lines: list[Line]) -> Cells:
    """Return the table that results from applying the lines in order."""
    table: Cells = {}
    for line in lines:
        key = b64decode(line.content["row_key"])
        apply(table.setdefault(key, {}), entry(line.content))
    return {key: row for key, row in table.items() if row}


def differences(mine: Cells, theirs: Cells) -> dict[bytes, Any]:
    """Return, by row key, the cells that only one side has."""
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
