"""Spark's own writers of Delta and Iceberg: the examples of docs/sinks/spark.md on the Spark for which their jars
exist, and the refusal on another one.

The other Spark comes from pip and the jars from Maven, once, into the user's cache.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from penstock_emulators.maven import cache, fetch
from tests.integration.sinks.table_formats import DELETED, EVENTS_WITH_DELETE
from tools.environments import install_command

pytestmark = [pytest.mark.spark, pytest.mark.slow(seconds=120), pytest.mark.campaign]

SPARK = "4.1.1"
JARS = ("io.delta:delta-spark_4.1_2.13:4.3.1", "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0")
# Of all dependencies those that Spark does not bring itself.
NEEDED = ("delta-", "iceberg-", "unitycatalog-client")
ROOT = Path(__file__).resolve().parents[3]


def other_spark() -> Path:
    """Return the folder of PySpark 4.1, installed if it is missing."""
    return _made(cache() / f"pyspark-{SPARK}", _install)


def _install(folder: Path) -> None:
    command = install_command(sys.executable, "--no-deps", "--target", str(folder), f"pyspark=={SPARK}")
    subprocess.run(command, check=True, timeout=600)


def jars() -> list[Path]:
    """Return the jars of Delta and Iceberg, downloaded if they are missing."""
    folder = cache() / "table-jars-4.1"
    fetch(folder, JARS)
    return [each for each in sorted(folder.glob("*.jar")) if each.name.startswith(NEEDED)]


def _made(folder: Path, make: Any) -> Path:
    """Return a folder that `make` fills; made beside and renamed, so it is complete if it exists."""
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as beside:
            made = Path(beside, "made")
            made.mkdir()
            make(made)
            made.rename(folder)
    return folder


def run_program(folder: Path, packages: list[Path], some: list[Path]) -> dict[str, Any]:
    """Run the pipeline in a process that finds `packages` first and has some jars in its session."""
    path = os.pathsep.join(map(str, [*packages, ROOT / "src", ROOT]))
    command = [sys.executable, "-m", "tests.integration.sinks.table_formats", str(folder)]
    with (folder / "log").open("w") as log:
        subprocess.run(
            [*command, ",".join(map(str, some)), "delta,iceberg"],
            env={**os.environ, "PYTHONPATH": path},
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
