"""SIGKILL of driver, JVM and workers while a pipeline under Spark appends to a change log of BigQuery."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock.emulators.bigquery import BigQueryEmulator
from penstock.io.bigquery.clients import rest_client
from penstock.io.bigquery.target import BigQueryTarget
from tests.oracle import kill
from tests.oracle.kill import FileAppears, Later, Moment, python

pytestmark = [pytest.mark.spark, pytest.mark.bigquery, pytest.mark.campaign, pytest.mark.slow(seconds=80)]

KEYS = 3


def test_kills_leave_each_event_in_the_log_once(tmp_path: Path, campaign: Any) -> None:
    hooks, checkpoint = tmp_path / "hooks", tmp_path / "checkpoint"
    hooks.mkdir()
    with BigQueryEmulator.start() as emulator:
        addresses = (emulator.endpoint, emulator.write_endpoint)
        target = BigQueryTarget("p", "shop", endpoint=addresses[0], write_endpoint=addresses[1])
        client = rest_client(target)
        client.create_dataset("p.shop")
        end = 0

        def end_soon() -> None:
            nonlocal end
            ((most,),) = client.query("SELECT MAX(version) FROM shop.counts").result()
            end = int(str(most or "0").split(" ")[0]) + 300
            (hooks / "end.new").write_text(str(end))
            (hooks / "end.new").rename(hooks / "end")

        moments: list[Moment] = [
            FileAppears(checkpoint, "records/*.record", nth=3),
            Later(FileAppears(hooks, "sent-*", nth=2), 0.05),
            FileAppears(hooks, "read-*"),
        ]
        chosen = [(f"moment {number % 3}", moments[number % 3]) for number in range(campaign.size(2, 30))]
        command = python(
            "tests.integration.bigquery.program", *addresses, str(checkpoint), str(hooks), str(KEYS)
        )
        kills = kill.campaign(
            command,
            chosen,
            log=tmp_path / "log",
            seconds=campaign.size(150, 900),
            before_the_end=end_soon,
        )
        rows = client.query("SELECT JSON_VALUE(key, '$.owner'), version FROM shop.counts").result()
        found = Counter(tuple(row.values()) for row in rows)
    assert len(kills) == len(chosen)
    assert max(found.values()) == 1, "an event is in the log twice"
    assert sorted({(owner, int(version.split(" ")[0])) for owner, version in found}) == [
        (f"k{key}", number) for key in range(KEYS) for number in range(end)
    ]
    campaign.record("bigquery-kills", kills=len(kills), events=len(found))
