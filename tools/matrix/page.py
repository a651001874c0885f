"""docs/versions.md, from the recorded results. Pure."""

# ruff: noqa: E501 - tables
from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.matrix.cells import CELLS, RUNNER, Cell

ROOT = Path(__file__).resolve().parents[2]
EVIDENCE = ROOT / "docs" / "evidence" / "versions.json"
PAGE = ROOT / "docs" / "versions.md"
NOT_RUN = "not run"

INTRODUCTION = """# Versions

Written by `make matrix` from docs/evidence/versions.json. Each row is one environment, in which this checkout is installed
as a wheel. *not run* means that the combination was not tried; it may work. A result with a commit was recorded later
than the rest of its row.

This is what pip admits; only the rows below it were tried, and the other tests of the repository run with Python 3.11,
Spark 4.3 and Beam 2.77.

| Part | Python | Beam | Spark | Java |
|---|---|---|---|---|
| Sources, sinks, transforms (`penstock`) | 3.10 to 3.13 | 2.72 and newer | – | – |
| `PySparkRunner` (`penstock[runner]`) | 3.10 to 3.13, as far as Spark admits it | 2.77 | 3.5 to 4.3 | 17 and newer |

The runner uses internals of Beam's worker, so it refuses every Beam version that it was not tested with. Sources and sinks
use Beam's public API only.

| Column | What is run |
|---|---|
| kills | SIGKILL of driver, JVM and workers at hooks of an epoch; a checker without Penstock finds nothing lost, doubled or out of order |
| lost worker | a Python worker is killed in mid-epoch; its task runs again |
| Spanner | two reads of one change stream in one pipeline on Spark |
| Bigtable | a change stream with splits and merges is replayed and compared with the table |
| data sources | Spanner and PostgreSQL as [Spark data sources](spark-data-source.md), in batch and with `availableNow`, and PostgreSQL with Spark Connect; a query over PostgreSQL under SIGKILL of all processes, a worker and the driver; Spark 3.5 has no such sources |
| FnApiRunnerTest | Beam's own suite of a runner, on this one; Beam skips some of its tests itself |
| units | the unit tests of sources, files and transforms |
| sink on Beam's runner | the file sink on Beam's own runner |
"""

LACKS = """
## What older versions lack

| Version | What is different |
|---|---|
| Spark 3.5, 4.0 | Spark has no Unix domain sockets between the JVM and Python workers: an epoch costs about twice as much |
| Spark 3.5 | Spark supports Python 3.11 and older officially; Java 8, 11 or 17, of which Penstock needs 17 |
| Python 3.10 | obstore 0.11, because 0.12 needs Python 3.11 (all tests of object stores pass with it); notes on errors (the place of a failure in the pipeline) are not printed with a traceback; state runs go through a temporary file |
"""


def page(recorded: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page."""
    runner = [cell for cell in CELLS if cell.part == RUNNER]
    sources = [cell for cell in CELLS if cell.part != RUNNER]
    parts = [INTRODUCTION, "\n## On Spark\n\n", _table(runner, recorded)]
    parts += ["\n## Sources and sinks on Beam's own runner\n\n", _table(sources, recorded)]
    return "".join([*parts, LACKS])


def _table(cells: list[Cell], recorded: Mapping[str, Mapping[str, Any]]) -> str:
    head = ["Python", "Spark", "Java", "Beam", *cells[0].columns, "Commit"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for cell in cells:
        entry = recorded.get(cell.name, {})
        results, versions = entry.get("results", {}), entry.get("versions", {})
        facts = [
            versions.get("python", cell.python),
            versions.get("pyspark", cell.spark or "–"),
            versions.get("java", str(cell.java or "17") if cell.spark else "–"),
            versions.get("apache-beam", cell.beam),
        ]
        later = {name: f" ({_short(of)})" for name, of in entry.get("commits", {}).items()}
        facts += [results.get(name, NOT_RUN) + later.get(name, "") for name in cell.columns]
        lines.append(f"| {' | '.join([*facts, _short(entry.get('commit', '–'))])} |")
    return "\n".join(lines) + "\n"


def _short(commit: str) -> str:
    """Return the first letters of a commit, with the `+` of a changed work tree."""
    return commit[:10] + ("+" if commit.endswith("+") else "")
