"""Four writers transfer money across tables and partitions: each transaction arrives whole, once, behind no barrier."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from penstock.compat import UTC
from penstock.runner import PySparkRunner
from penstock_emulators.oracle import kill
from penstock_emulators.oracle.kill import After, python
from penstock_emulators.simulated_spanner import SimulatedSpanner
from penstock_emulators.spanner import SpannerEmulator
from tests.integration.transforms.transfers import Bank, build, check_barriers, check_transactions

pytestmark = [pytest.mark.spark, pytest.mark.slow(seconds=10)]


SERVICES: dict[str, Any] = {"simulated": SimulatedSpanner.start, "google": SpannerEmulator.start}


@contextmanager
def service(name: str, seed: int) -> Iterator[Any]:
    """A service whose partitions split, merge and move every second."""
    churn = {"churn_seconds": 1, "seed": seed} if name == "simulated" else {"token_life_seconds": 1}
    with SERVICES[name](**churn) as emulator, pytest.MonkeyPatch.context() as environment:
        for variable, value in emulator.environment().items():
            environment.setenv(variable, value)
        yield emulator


@pytest.mark.long(seconds=10)
def test_every_transfer_is_whole_once_and_behind_no_barrier(
    request: pytest.FixtureRequest, tmp_path: Path, campaign: Any
) -> None:
    """In a campaign the pipeline is a program that is killed while it runs, on both services."""
    for name in SERVICES if campaign.full else ["simulated"]:
        folder = tmp_path / name
        with service(name, campaign.seed) as emulator:
            spark = None if campaign.full else request.getfixturevalue("spark")
            bank = Bank(emulator, "transfers")
            end = bank.opened + campaign.size(9, 90)
            with bank.open(campaign.seed) as stop:
                threading.Timer(end - 2 - time.time(), stop.set).start()
                if campaign.full:
                    kills = killed(emulator, bank, folder, end, campaign.random("transfers"))
                else:
                    kills = run(spark, bank, folder, end)
        commits = bank.committed_until(end)
        transactions = check_transactions(folder / "out", commits)
        barriers = check_barriers(folder / "out", commits)
        assert transactions > 20
        assert barriers > 5
        campaign.record(
            f"transfers-{name}", kills=kills, transactions=transactions, barriers_per_shard=barriers
        )


def run(spark: Any, bank: Bank, folder: Path, end: float) -> int:
    """Run the pipeline in this process, without a kill."""
    options = PipelineOptions([f"--checkpoint_dir={folder / 'checkpoint'}", "--spark_parallelism=2"])
    pipeline = beam.Pipeline(runner=PySparkRunner(spark), options=options)
    times = {"start": rfc3339(bank.opened), "end": rfc3339(end)}
    build(pipeline, database=bank.name, output=str(folder / "out"), **times)
    pipeline.run().wait_until_finish()
    return 0


def killed(emulator: Any, bank: Bank, folder: Path, end: float, rng: Any) -> int:
    """Run the pipeline as a program, killed six times; return the number of kills."""
    moments = [("at random", After(8 + 5 * rng.random())) for _ in range(6)]
    folder.mkdir()
    given = {
        "database": bank.name,
        "output": folder / "out",
        "start": rfc3339(bank.opened),
        "end": rfc3339(end),
        "checkpoint_dir": folder / "checkpoint",
        "spark_master": "local[2,4]",
    }
    flags = [f"--{name}={each}" for name, each in given.items()]
    kills = kill.campaign(
        python("tests.integration.transforms.transfers", *flags),
        moments,
        log=folder / "log",
        seconds=end - bank.opened + 180,
        environment=emulator.environment(),
    )
    assert len(kills) == len(moments)
    return len(kills)


def rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
