"""Every sink under SIGKILL of driver, executor and worker, a zombie driver, an outage and a row that it refuses.

Four writers make 10,000 statements and more: inserts, partial updates, deletes and changes of keys. At the end each
target has the rows or the log of the source exactly, and each error output has the refused row once. A reader asks
the targets all the time until when they are complete, and looks whether they are.
`PENSTOCK_SINKS=sql,kafka` chooses the sinks of a campaign, and those of one group share a pipeline.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from penstock.runner import RemoteJob
from penstock_emulators.oracle.kill import python
from tests.conftest import CAMPAIGN
from tests.integration.sinks.disturbances import ALL, DRIVER, EXECUTOR, WORKER, Disturbed, schedule
from tests.support.oracle.trusting import Place, TrustingReader
from tests.support.sinks import TARGETS, TargetUnderTest
from tests.support.sinks.refused import refusal_faults
from tests.support.sinks.source import Truth, event_seconds

pytestmark = [pytest.mark.spark, pytest.mark.long(seconds=90)]

KILLS, NUMBERS = int(os.environ.get("PENSTOCK_SINK_KILLS", "30")), 2_600
"""Kills of a campaign, and the statements of each of the four writers, at least."""
KINDS = (WORKER, EXECUTOR, ALL, WORKER, EXECUTOR, WORKER, EXECUTOR, DRIVER, WORKER, EXECUTOR)


QUICK = "sql,files,delta,iceberg,kafka"
"""The sinks of `make long`: files, and those whose logs say until when they are complete."""
GROUPS = ("sql", "files,spark", "delta,iceberg", "kafka", "pubsub,spanner,bigtable", "bigquery")
"""Sinks that share a pipeline of a campaign."""
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
    return [
        pytest.param(
            group,
            marks=[*more, *(MARKERS[name] for name in group.split(",") if name in MARKERS)],
        )
        for group, more in (
            [(each, []) for each in GROUPS]
            if CAMPAIGN
            else [(QUICK, []), *((each, [pytest.mark.campaign]) for each in GROUPS)]
        )
    ]


def places(targets: Mapping[str, TargetUnderTest], checkpoint: Path) -> list[Place]:
    """Where the times are until which the targets are complete: in the target, and in the checkpoint."""

    def places_of(name: str, target: TargetUnderTest) -> Iterator[Place]:
        def missing(times: Mapping[str, float]) -> Iterator[str]:
            applied = target.applied()
            for at in times.values():
                # The first statement whose time is not below.
                below = math.ceil((at - event_seconds(0)) / 2)
                for writer, numbers in applied.items():
                    if lost := set(range(below)) - numbers:
                        yield f"{writer} lacks {len(lost)} statements below {at}, such as {min(lost)}"

        def recorded() -> Mapping[str, datetime | None]:
            times = RemoteJob.open(str(checkpoint)).complete_until()
            return {step: at for step, at in times.items() if step.startswith(f"To {target.marked}/")}

        yield Place(name, target.complete, missing)
        yield Place(f"{name} in the checkpoint", recorded, missing)

    marked = ((name, target) for name, target in targets.items() if target.marked)
    return [place for name, target in marked for place in places_of(name, target)]


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
        # In two threads, so that a target that waits does not hold up the others.
        reader, waiting = (
            TrustingReader(
                places({name: each for name, each in names.items() if each.waits is waits}, checkpoint)
            )
            for waits in (False, True)
        )
        with Disturbed(command, checkpoint, hooks, tmp_path, targets, rng) as run, reader, waiting:
            for each in disturbances:
                run.perform(each)
            truth = Truth(run.end(campaign.size(0, NUMBERS)))
        faults = refusal_faults(refused, [label for target in targets for label in target.error_outputs])
        seen = reader.seen | waiting.seen
        faults += reader.wrong + waiting.wrong
        faults += [f"{name}: a reader has seen {times} times" for name, times in seen.items() if times < 2]
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
                    times=seen.get(name, 0),
                    **target.figures(),
                )
    assert not faults, "\n".join(faults)
