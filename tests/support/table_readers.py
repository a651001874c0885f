"""Other programs that read tables of Delta and Iceberg: DuckDB with its extensions, and Spark with the jars of both.

They come from pip and Maven, once, into the user's cache. DuckDB's extensions and Spark's jars fit one version only,
so both readers run in processes of their own, whose path has these versions first.

    rows = read_tables("duckdb", {"orders": ("delta", "/lake/orders")}, folder)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from penstock_emulators.maven import cache, fetch
from tools.environments import install_command

SPARK = "4.1.1"
JARS = ("io.delta:delta-spark_4.1_2.13:4.3.1", "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0")
# Of all dependencies those that Spark does not bring itself.
NEEDED = ("delta-", "iceberg-", "unitycatalog-client")
DUCKDB = "1.5.5"
# Iceberg's extension reads manifests with the one of Avro. Each is a package of the version of DuckDB.
EXTENSIONS = ("avro", "delta", "iceberg")
READERS = ("duckdb", "spark")
ROOT = Path(__file__).resolve().parents[2]
_SECONDS_TO_READ = 1_200

Place = tuple[str, str]
"""The format of a table, and where it is: the folder of a Delta table, or the metadata file of an Iceberg table."""


def other_spark() -> Path:
    """Return the folder of PySpark 4.1, installed if it is missing."""
    return _made(cache() / f"pyspark-{SPARK}", _installs(f"pyspark=={SPARK}"))


def other_duckdb() -> Path:
    """Return the folder of DuckDB and its extensions, installed if it is missing."""
    extensions = (f"duckdb-extension-{each}=={DUCKDB}" for each in EXTENSIONS)
    return _made(cache() / f"duckdb-{DUCKDB}", _installs(f"duckdb=={DUCKDB}", *extensions))


def jars() -> list[Path]:
    """Return the jars of Delta and Iceberg, downloaded if they are missing."""
    folder = cache() / "table-jars-4.1"
    fetch(folder, JARS)
    return [each for each in sorted(folder.glob("*.jar")) if each.name.startswith(NEEDED)]


def path_with(*packages: Path) -> dict[str, str]:
    """Return the environment of a process that looks for packages in these folders first."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [*packages, ROOT / "src", ROOT]))}


def read_tables(reader: str, tables: Mapping[str, Place], folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each table as one of `READERS` reads them. Times are texts with microseconds, in UTC."""
    request, found = folder / f"{reader}-request.json", folder / f"{reader}-rows.json"
    request.write_text(json.dumps(tables))
    packages = {"duckdb": other_duckdb, "spark": other_spark}[reader]()
    command = [sys.executable, "-m", "tests.support.read_tables", reader, str(request), str(found)]
    with (folder / f"{reader}-log").open("w") as log:
        subprocess.run(
            command,
            env={**path_with(packages), "TZ": "UTC"},
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=_SECONDS_TO_READ,
            check=False,
        )
    assert found.exists(), (folder / f"{reader}-log").read_text()[-6000:]
    rows: dict[str, list[dict[str, Any]]] = json.loads(found.read_text())
    return rows


def _installs(*packages: str) -> Callable[[Path], None]:
    def install(folder: Path) -> None:
        command = install_command(sys.executable, "--no-deps", "--target", str(folder), *packages)
        subprocess.run(command, check=True, timeout=600)

    return install


def _made(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return a folder that `make` fills; made beside and renamed, so it is complete if it exists."""
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as beside:
            made = Path(beside, "made")
            made.mkdir()
            make(made)
            made.rename(folder)
    return folder
