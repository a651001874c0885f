"""Data larger than memory on real Spark: results are right, and no Python process exceeds a gigabyte.

Without a campaign the sizes are a tenth. The fast tests check the same rules with
small limits.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from penstock_emulators.oracle.kill import python
from tests.support.oracle.memory import Measured, measure

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.campaign]

WORKER_MB = 1000
MORE_MB = 100
"""How much more memory a worker may need for many records of a bundle than for few of them."""
SIZE = 1000
"""Bytes of a value."""


@pytest.fixture
def run(tmp_path: Path, campaign: Any) -> Any:
    """Run a pipeline of `programs/large_data.py` and record its figures."""

    def run(what: str, **sizes: int) -> Measured:
        scratch = tmp_path / "scratch"
        scratch.mkdir()
        command = python("tests.integration.runner.programs.large_data", what, str(tmp_path))
        command += [f"{name}={size}" for name, size in sizes.items()]
        measured = measure(command, 3600.0, {**os.environ, "SPARK_LOCAL_DIRS": str(scratch)})
        print(what, sizes, measured.facts())
        campaign.record(f"memory-{what.replace('_', '-')}", sizes=sizes, **measured.facts())
        assert measured.worker_mb < WORKER_MB
        assert measured.driver_mb < WORKER_MB
        return measured

    return run


def all_numbers(values: int) -> dict[str, int]:
    """Return the counters after each of the numbers below `values` has come once."""
    return {"count": values, "sum": values * (values - 1) // 2}


def shown(measured: Measured) -> dict[str, Any]:
    return {name: measured.figures[name] for name in ("count", "sum")}


def test_the_values_of_one_key_are_read_from_disk_twice(run: Any, campaign: Any) -> None:
    values = campaign.size(200_000, 2_000_000)
    assert shown(run("group", values=values, size=SIZE)) == all_numbers(values)


def test_the_values_of_one_key_in_a_stream_are_read_from_its_state(run: Any, campaign: Any) -> None:
    values = campaign.size(200_000, 2_000_000)
    assert shown(run("group_in_stream", values=values, size=SIZE)) == all_numbers(values)


def test_an_epoch_of_many_records_is_written_to_files_in_the_memory_of_few(
    tmp_path: Path, campaign: Any
) -> None:
    def worker_mb(name: str, values: int) -> int:
        folder, scratch = tmp_path / name, tmp_path / f"{name}-scratch"
        folder.mkdir()
        scratch.mkdir()
        command = python("tests.integration.runner.programs.large_data", "files", str(folder))
        measured = measure(
            [*command, f"values={values}"], 3600.0, {**os.environ, "SPARK_LOCAL_DIRS": str(scratch)}
        )
        assert measured.figures["staged_records"] == values
        return measured.worker_mb

    few, many = 50_000, campaign.size(200_000, 2_000_000)
    before, peak = worker_mb("few", few), worker_mb("many", many)
    print(f"{before} MB for {few} records, {peak} MB for {many}")
    campaign.record("memory-files", few=few, many=many, worker_mb_few=before, worker_mb=peak)
    assert peak - before < MORE_MB


def test_an_iterable_side_input_is_read_from_disk_twice(run: Any, campaign: Any) -> None:
    values = campaign.size(300_000, 3_000_000)
    assert shown(run("iterable_side_input", values=values, size=SIZE)) == all_numbers(values)


def test_a_multimap_side_input_is_looked_up_on_disk(run: Any, campaign: Any) -> None:
    values = campaign.size(300_000, 3_000_000)
    measured = run("multimap_side_input", values=values, size=SIZE, keys=values // 10)
    assert shown(measured) == all_numbers(values)


def test_all_of_a_million_timers_fire(run: Any, campaign: Any) -> None:
    count = campaign.size(100_000, 1_000_000)
    assert shown(run("timers", count=count)) == all_numbers(count)


def test_a_fan_out_of_residuals_is_read_over_many_epochs(run: Any, campaign: Any) -> None:
    count, each = campaign.size(500, 5_000), 20
    measured = run("residuals", count=count, size=20 * SIZE, each=each)
    assert shown(measured) == {"count": count * each, "sum": count * each * (each - 1) // 2}
    assert measured.figures["largest_record_bytes"] <= 1 << 20


def test_an_epoch_that_touches_a_thousand_keys_costs_the_same_with_many_more_keys(
    run: Any, campaign: Any
) -> None:
    keys = campaign.size(1_000_000, 10_000_000)
    figures = run("state", keys=keys, few=10_000, touched=1_000, epochs=60).figures
    assert figures["median_epoch_seconds"] <= 1.5 * figures["median_epoch_seconds_with_few"]
