"""Spark's own writers of Delta and Iceberg: the examples of docs/sinks/spark.md on the Spark for which their jars
exist, and the refusal on another one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.sinks.table_formats import DELETED, EVENTS_WITH_DELETE
from tests.support.table_readers import SPARK, jars, other_spark, path_with

pytestmark = [pytest.mark.spark, pytest.mark.slow(seconds=120), pytest.mark.campaign]


def run_program(folder: Path, packages: list[Path], some: list[Path]) -> dict[str, Any]:
    """Run the pipeline in a process that finds `packages` first and has some jars in its session."""
    command = [sys.executable, "-m", "tests.integration.sinks.table_formats", str(folder)]
    with (folder / "log").open("w") as log:
        subprocess.run(
            [*command, ",".join(map(str, some)), "delta,iceberg"],
            env=path_with(*packages),
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=800,
            check=False,
        )
    assert (folder / "found.json").exists(), (folder / "log").read_text()[-6000:]
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return found


def test_repeated_epochs_change_neither_a_merged_delta_table_nor_an_iceberg_log(tmp_path: Path):
    found = run_program(tmp_path, [other_spark()], jars())
    assert found.get("error") is None
    assert found["spark"] == SPARK
    ids = [epoch for epoch, _ in found["calls"]]
    assert sorted(ids) == sorted(2 * list(set(ids))), "each epoch is repeated once"
    assert json.loads(found["mark"]) == {
        "complete_until": "2026-01-31T12:00:00.000000000Z",
        "job": "job",
        "sink": "sink",
    }
    assert found["partitioned"] == 2 * [[[number, 1] for number in range(3)]]
    newest = {each.key["id"]: each.after["name"] for each in EVENTS_WITH_DELETE if each.key and each.after}
    assert found["delta"] == [[id_, name] for id_, name in sorted(newest.items()) if id_ != DELETED]
    logged = [(op, id_, after and json.loads(after)["name"]) for op, id_, after in found["iceberg"]]
    assert sorted(logged, key=repr) == sorted(
        (
            (each.op.value, each.key["id"], each.after and each.after["name"])
            for each in EVENTS_WITH_DELETE
            if each.key
        ),
        key=repr,
    )


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_jars_for_another_spark_are_refused_before_anything_is_written(format: str, tmp_path: Path):
    some = [each for each in jars() if each.name.startswith(f"{format}-")]
    found = run_program(tmp_path, [], some)
    assert "was built for Spark 4.1" in found["error"]
    assert "nothing was written" in found["error"]
    assert not (tmp_path / "calls").exists(), "the function was called"
    assert not (tmp_path / "delta").exists()
    assert not (tmp_path / "warehouse").exists()
