"""`penstock run bigtable-to-files` under churn and SIGKILL: the files replay to the table, each change once."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock_emulators.oracle import kill
from penstock_emulators.oracle.kill import After
from penstock_emulators.oracle.lines import read_lines
from tests.integration.bigtable.files import (
    cells_of,
    command,
    differences,
    out_of_order,
    repeated,
    rfc3339,
)

pytestmark = [pytest.mark.emulator, pytest.mark.spark, pytest.mark.long(seconds=50)]


def test_kills_under_churn_lose_nothing_double_nothing_and_keep_order(
    new_table: Callable[..., Any], writers: Any, tmp_path: Path, campaign_of: Any
) -> None:
    table, rng = new_table(b"\x40", b"\x80", b"\xc0"), campaign_of.random("bigtable kills")
    rounds = campaign_of.size(3, 30)
    seconds, begun = 11.0 * rounds, time.time()
    start, end = rfc3339(begun), rfc3339(begun + seconds)
    table.control.churn(0.5, seed=campaign_of.seed, table=table.name)
    moments = [("at random", After(7 + rng.random() * 5)) for _ in range(rounds)]
    environment = {**os.environ, **table.emulator.environment()}
    with writers(table, threads=2, pause=0.02) as writing:
        done = threading.Timer(seconds - 4, writing.stop)
        done.start()
        kills = kill.campaign(
            command(table.id, tmp_path, "local[2,4]", start=start, end=end),
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


@pytest.fixture
def campaign_of(campaign: Any) -> Any:
    """The size of this run; `campaign` is the killer's word here."""
    return campaign
