"""Every sink under SIGKILL of driver, executor and worker, a zombie driver, an outage and a row that it refuses.

Four writers make 10,000 statements and more: inserts, partial updates, deletes and changes of keys. At the end each
target has the rows or the log of the source exactly, and each error output has the refused row once.
`PENSTOCK_SINKS=sql,kafka` chooses the sinks of a campaign, and those of one group share a pipeline.
"""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock_emulators.oracle.kill import python
from tests.integration.sinks.disturbances import ALL, DRIVER, EXECUTOR, WORKER, Disturbed, schedule
from tests.support.sinks import TARGETS, TargetUnderTest
from tests.support.sinks.refused import refusal_faults
from tests.support.sinks.source import Truth

pytestmark = [pytest.mark.spark, pytest.mark.slow(seconds=60)]

KILLS, NUMBERS = int(os.environ.get("PENSTOCK_SINK_KILLS", "30")), 2_600
"""Kills of a campaign, and the statements of each of the four writers, at least."""
KINDS = (WORKER, EXECUTOR, ALL, WORKER, EXECUTOR, WORKER, EXECUTOR, DRIVER, WORKER, EXECUTOR)


GROUPS = ("sql", "files,spark", "delta,iceberg", "kafka", "pubsub,spanner,bigtable", "bigquery")
"""Sinks that share a pipeline. The first group is the representative in `make test`."""
MARKERS = {
    "kafka": pytest.mark.kafka,
    "pubsub": pytest.mark.pubsub,
    "spanner": pytest.mark.emulator,
    "bigtable": pytest.mark.emulator,
    "bigquery": pytest.mark.bigquery,
}


def groups() -> list[Any]:
    if given := os.environ.get("PENSTOCK_SINKS"):
        return [given]
    return [GROUPS[0]] + [
        pytest.param(
            group,
            marks=[pytest.mark.campaign, *(MARKERS[name] for name in group.split(",") if name in MARKERS)],
        )
        for group in GROUPS[1:]
    ]


@pytest.mark.parametrize("sinks", groups())
def test_target_equals_the_source_after_kills_zombies_outages_and_a_refused_row(
    sinks: str, tmp_path: Path, campaign: Any
) -> None:
    rng = campaign.random(f"sinks {sinks}")
    hooks, checkpoint, refused = (tmp_path / name for name in ("hooks", "checkpoint", "refused"))
    hooks.mkdir()
    (hooks / "begun").touch()
    with ExitStack() as servers:
        targets: list[TargetUnderTest] = []
        for name in sinks.split(","):
            targets.append(TARGETS[name](tmp_path / name, hooks))
            servers.callback(targets[-1].stop)
            targets[-1].start()
            targets[-1].create("shop")
        names = dict(zip(sinks.split(","), targets, strict=True))
        master = "local-cluster[1,2,1024]" if campaign.full else "local[2,4]"
        configuration = tmp_path / "configuration.json"
        given = {
            "checkpoint": str(checkpoint),
            "hooks": str(hooks),
            "refused": str(refused),
            "master": master,
            "sinks": {name: target.options() for name, target in names.items()},
        }
        configuration.write_text(json.dumps(given))
        disturbances = schedule(
            rng,
            kills=campaign.size(3, KILLS),
            kinds=KINDS if campaign.full else (ALL, WORKER, DRIVER),
            zombies=range(len(targets)) if campaign.full else (),
            outages=[n for n, each in enumerate(targets) if each.outage and campaign.full],
        )
        command = python("tests.integration.sinks.program", str(configuration))
        with Disturbed(command, checkpoint, hooks, tmp_path, targets, rng) as run:
            for each in disturbances:
                run.perform(each)
            truth = Truth(run.end(campaign.size(0, NUMBERS)))
        faults = refusal_faults(refused, [label for target in targets for label in target.error_outputs])
        for name, target in names.items():
            found = target.faults(truth)
            faults += found
            if not found:
                campaign.record(
                    f"sink-kills-{name}",
                    disturbances=dict(run.done),
                    kills=sum(run.done[kind] for kind in (ALL, DRIVER, EXECUTOR, WORKER)),
                    processes=run.processes,
                    outage=f"{target.outage}, 20 s" if target.outage else "",
                    events=truth.events,
                    rows=len(truth.rows()),
                    sinks_of_the_pipeline=sinks,
                    **target.figures(),
                )
    assert faults == []
