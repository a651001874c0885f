"""`penstock run bigtable-to-files` on a cluster: two executors, each a separate process, read in parallel."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock_emulators.oracle.kill import Run, session_members
from penstock_emulators.oracle.lines import Line, count_lines, read_lines
from tests.integration.bigtable.files import (
    cells_of,
    command,
    differences,
    out_of_order,
    repeated,
    rfc3339,
)

pytestmark = [pytest.mark.emulator, pytest.mark.spark, pytest.mark.slow(seconds=40)]


@pytest.mark.campaign
def test_replay_equals_the_table_on_a_cluster_through_churn(
    new_table: Callable[..., Any], writers: Callable[..., Any], tmp_path: Path, campaign: Any
) -> None:
    table, log = new_table(b"\x40", b"\x80", b"\xc0"), tmp_path / "log"
    table.control.churn(0.5, seed=campaign.seed, table=table.name)
    reading = command(table.id, tmp_path, "local-cluster[2,1,1024]", start=rfc3339(time.time()))
    with Run(reading, log=log, environment={**os.environ, **table.emulator.environment()}) as run:

        def wait_for(happens: Callable[[], bool], what: str) -> None:
            until = time.monotonic() + campaign.size(300, 1800)
            while not happens():
                assert run.alive(), log.read_text()[-3000:]
                assert time.monotonic() < until, f"{what} never came"
                time.sleep(campaign.size(300, 3000) / 1000)

        def published() -> list[Line]:
            return list(read_lines(tmp_path / "out"))

        with writers(table, threads=2, pause=campaign.size(100, 0) / 1000):
            wait_for(lambda: len(readers_of(run)) == 2, "a reading worker in both executors")
            enough = count_lines(tmp_path / "out") + campaign.size(50, 200_000)
            wait_for(lambda: count_lines(tmp_path / "out") >= enough, "a live reading")
        written = table.cells()
        wait_for(lambda: differences(cells_of(published()), written) == {}, "the table in the files")
        lines = published()
    assert repeated(lines) == []
    assert out_of_order(lines) == []
    layout_changes = table.control.statistics(table.name)["layout_changes"]
    assert layout_changes >= campaign.size(5, 50)
    campaign.record("bigtable-replay-cluster", mutations=len(lines), layout_changes=layout_changes)


def readers_of(run: Run) -> set[int]:
    """Return the executors of a run that have Python workers."""
    members = session_members(run.process.pid)
    executors = {pid for pid in members if b"CoarseGrainedExecutorBackend" in part_of(pid, "cmdline")}
    daemons = [pid for pid in members if b"penstock.runner.daemon" in part_of(pid, "cmdline")]
    return executors & {parent for pid in daemons for parent in parents(pid)}


def parents(pid: int) -> Iterator[int]:
    while pid > 1:
        yield pid
        pid = int(part_of(pid, "stat").rpartition(b")")[2].split()[1] or 0)


def part_of(pid: int, name: str) -> bytes:
    try:
        return Path("/proc", str(pid), name).read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b") ? 0"
