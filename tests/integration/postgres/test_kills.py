"""`penstock run postgres-to-files` under SIGKILL of the pipeline and of the server: the lines replay to the tables."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter, defaultdict
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.compat import UTC
from penstock.io.postgres import parse_lsn
from penstock_emulators.oracle import kill
from penstock_emulators.oracle.kill import After, python
from penstock_emulators.oracle.lines import Line, read_lines
from penstock_emulators.postgres import PostgresServer
from tests.integration.postgres.conftest import VERSIONS, Database
from tests.integration.postgres.workload import CREATE, Writers
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow(seconds=20)]

KEYS = {"public.accounts": ("id",), "public.notes": ("part", "id")}


@pytest.mark.campaign
def test_kills_lose_nothing_double_nothing_and_keep_order(tmp_path: Path, campaign: Any) -> None:
    """Each round kills the whole pipeline, one of its Python workers, and the server: thirty kills in the campaign."""
    draw = campaign.random("postgres kills")
    killed: Counter[str] = Counter()
    changes = transactions = 0
    for number in range(campaign.size(1, 10)):
        folder = tmp_path / str(number)
        folder.mkdir()
        with PostgresServer.start(version=VERSIONS[number % len(VERSIONS)]) as server:
            database = Database(server)
            database.execute(*CREATE)
            before = rows_of(database.dsn)
            database.publish()
            writers = Writers(database.dsn, campaign.seed + number, pause=0.01)
            driver_dies = 6 + draw.random() * 4
            end = time.time() + driver_dies + 18

            def kill_server(server: PostgresServer = server) -> None:
                server.kill()
                server.restart()
                killed["server"] += 1

            def kill_worker(folder: Path = folder) -> None:
                wait_until(lambda: kill_python_worker(folder), "the pipeline has no Python worker")
                killed["worker"] += 1

            timers = [
                threading.Timer(end - 3 - time.time(), writers.stop),
                threading.Timer(4 + draw.random() * 3, kill_server),
                # After the kill of the driver, in the second run of the pipeline.
                threading.Timer(driver_dies + 4 + draw.random() * 4, kill_worker),
            ]
            for timer in timers:
                timer.start()
            kills = kill.campaign(
                command(database, folder, end),
                [("at random", After(driver_dies))],
                log=folder / "log",
                seconds=end - time.time() + 300,  # a loaded machine needs minutes for the start of Spark
                environment={},
            )
            for timer in timers:
                timer.join()
            lines = list(read_lines(folder / "out"))
            assert_each_change_once_in_order(lines)
            assert replayed(before, lines) == rows_of(database.dsn)
            assert writers.transactions > 100
        killed["driver"] += len(kills)
        changes, transactions = changes + len(lines), transactions + writers.transactions
        assert set(killed.values()) == {number + 1}
    campaign.record("postgres-kills", **killed, changes=changes, transactions=transactions)


def kill_python_worker(folder: Path) -> bool:
    """Kill a Python worker of the pipeline whose checkpoint is in `folder`; return whether there was one."""
    commands = {int(entry): command_of(entry) for entry in os.listdir("/proc") if entry.isdigit()}
    checkpoint = str(folder / "checkpoint")
    for leader in (pid for pid, words in commands.items() if checkpoint in words):
        members = kill.session_members(leader)
        daemons = {pid for pid in members if any("daemon" in word for word in commands.get(pid, ()))}
        # The daemon forks the workers, which keep its command line.
        for pid in daemons:
            if parent_of(pid) in daemons:
                os.kill(pid, signal.SIGKILL)
                return True
    return False


def command_of(pid: str) -> list[str]:
    with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        return Path("/proc", pid, "cmdline").read_text(errors="replace").split("\0")
    return []


def parent_of(pid: int) -> int:
    with suppress(FileNotFoundError, ProcessLookupError):
        return int(Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[1])
    return 0


def command(database: Database, folder: Path, end: float) -> list[str]:
    given = {
        "dsn": database.dsn,
        "publication": database.publication,
        "slot": database.slot,
        "output": str(folder / "out"),
        "end": datetime.fromtimestamp(end, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "roll_seconds": "1",
        "shards": "2",
    }
    sets = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
    options = ["--checkpoint-dir", str(folder / "checkpoint"), "--master", "local[2,4]"]
    return python("penstock.cli.main", "run", "postgres-to-files", *sets, *options)


def place(line: Line) -> tuple[int, int]:
    return parse_lsn(line.content["commit_lsn"]), line.content["sequence"]


def key_of(line: Line, image: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(image[name] for name in KEYS[line.table])


def assert_each_change_once_in_order(lines: list[Line]) -> None:
    places = [place(line) for line in lines]
    assert len(places) == len(set(places)), "a change is in the files twice"
    whole = defaultdict(list)
    for line in sorted(lines, key=place):
        whole[place(line)[0]].append((line.content["sequence"], line.content["last"]))
    for found in whole.values():
        assert found == [(n, n == len(found)) for n in range(1, len(found) + 1)], (
            "a part of a transaction is missing"
        )
    last: dict[Any, tuple[int, int]] = {}
    for line in lines:  # in the order of file names and lines
        key = line.table, key_of(line, line.content["new"] or line.content["old"])
        assert last.get(key, (0, 0)) < place(line), "the changes of a key are out of order"
        last[key] = place(line)


Rows = dict[str, dict[tuple[Any, ...], dict[str, Any]]]


def replayed(rows: Rows, lines: list[Line]) -> Rows:
    """Apply the lines in the order of the log; values are texts."""
    for line in sorted(lines, key=place):
        table, new, old = rows[line.table], line.content["new"], line.content["old"]
        if new is None:
            del table[key_of(line, old)]
        elif line.content["kind"] == "INSERT":
            table[key_of(line, new)] = new
        else:
            before = table.pop(key_of(line, old or new))
            table[key_of(line, new)] = {**before, **new}
    return rows


def rows_of(dsn: str) -> Rows:
    with psycopg.connect(dsn) as session:
        accounts = session.execute("select id::text, balance::text, note from accounts").fetchall()
        notes = session.execute("select id::text, part, body from notes").fetchall()
    return {
        "public.accounts": {(i,): {"id": i, "balance": b, "note": n} for i, b, n in accounts},
        "public.notes": {(part, i): {"id": i, "part": part, "body": body} for i, part, body in notes},
    }
