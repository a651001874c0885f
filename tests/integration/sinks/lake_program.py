"""The pipeline of the kill campaign of tables: PostgreSQL into tables of both formats, in all modes.

    python -m tests.integration.sinks.lake_program CONFIGURATION [runner options]

The configuration is a JSON file: `checkpoint`, `master`, `lake` (a folder), and `source` (the arguments of the read).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import apache_beam as beam

from penstock.io.delta import WriteToDelta
from penstock.io.iceberg import WriteToIceberg
from penstock.io.postgres import ReadFromPostgresChangeStream
from penstock.runner import PySparkRunner
from penstock.transforms import ToChangeEvents
from tests.support.catalogs import catalog_in

ROOT = Path(__file__).resolve().parents[3]
"""Executors of a cluster have another working folder, and a client library installs a package `tests` too."""

REPLACING: Mapping[str, Any] = {"partition_by": ["notes=part"], "roll_seconds": 0}
LOG: Mapping[str, Any] = {"mode": "log", "partition_by": ["op"], "roll_seconds": 0}
DELTA: Mapping[str, Mapping[str, Any]] = {
    "log": LOG,
    "current": {**REPLACING, "mode": "current", "deletion_vectors": True},
    "history": {**REPLACING, "mode": "history", "deletion_vectors": True},
    # Without deletion vectors each commit writes the files again.
    "merged": {**REPLACING, "mode": "current"},
}
ICEBERG: Mapping[str, Mapping[str, Any]] = {
    "log": LOG,
    "current": {**REPLACING, "mode": "current"},
    "history": {**REPLACING, "mode": "history"},
}


def main(path: str, *options: str) -> int:
    """Run to the end; 0 if the pipeline is drained."""
    given = json.loads(Path(path).read_text())
    arguments = [f"--checkpoint_dir={given['checkpoint']}", "--streaming", "--epoch_retries=10"]
    arguments += [f"--spark_master={given['master']}", f"--spark_conf=spark.executorEnv.PYTHONPATH={ROOT}"]
    pipeline = beam.Pipeline(runner=PySparkRunner(), argv=[*arguments, *options])
    events = pipeline | ReadFromPostgresChangeStream(**given["source"]) | ToChangeEvents()
    for name, more in DELTA.items():
        sink = WriteToDelta(f"{given['lake']}/delta/{name}/{{table}}", **more)
        _ = events | f"Delta {name}" >> sink
    properties = catalog_in(given["lake"])
    for name, more in ICEBERG.items():
        sink = WriteToIceberg(f"{name}.{{table}}", catalog_properties=properties, **more)
        _ = events | f"Iceberg {name}" >> sink
    return 0 if pipeline.run().wait_until_finish() in ("DONE", "DRAINED") else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
