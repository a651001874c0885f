"""A user's pipeline over the changes of PostgreSQL, beside an earlier Penstock: what its steps in Python cost.

    git worktree add ../earlier COMMIT
    python benchmarks/user_pipeline.py --earlier ../earlier [--changes 400000] [--rounds 3]

The pipeline reads a backlog as change events, keeps the updates, parses and enriches each row in steps of its own, and
counts the rows per account and fixed window. Its counts are checked after each run. The earlier version runs
the same program with the same packages, from its checkout. Figures are for the whole process tree, above a run that
finds nothing to read. `ratio` is the figure divided by the figure of the earlier version: above 1, this one is faster.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.window import FixedWindows

ROWS = 500
"""Changes in a transaction."""
ACCOUNTS = 1_000
WINDOW_SECONDS = 10


def is_update(event: Any) -> bool:
    return bool(event.op == "UPDATE")


def parsed(event: Any) -> dict[str, Any]:
    row = event.after
    return {
        "id": row["id"],
        "name": row["name"].upper(),
        "cents": int(row["amount"] * 100),
        "paid": row["paid"],
    }


def enriched(order: dict[str, Any]) -> dict[str, Any]:
    return {**order, "account": order["id"] % ACCOUNTS, "large": order["cents"] > 1_000_000}


def of_account(order: dict[str, Any]) -> tuple[tuple[int, bool], int]:
    return (order["account"], order["large"]), 1


class NoteFn(beam.DoFn):
    """Writes each count of a window into a file of its process."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def process(self, element: Any) -> None:
        with open(f"{self._folder}/{os.getpid()}", "a") as file:
            file.write(f"{element[1]}\n")


def run(arguments: Sequence[str]) -> None:
    """Run the pipeline in this process: dsn, slot, end, folder."""
    from penstock.io.postgres import ReadFromPostgresChangeStream
    from penstock.runner import PySparkRunner
    from penstock.transforms import ToChangeEvents

    dsn, slot, end, folder = arguments  # an earlier version takes a time in UTC only with a Z
    options = PipelineOptions([f"--checkpoint_dir={folder}/checkpoint", "--spark_master=local[2,4]"])
    with beam.Pipeline(PySparkRunner(), options) as pipeline:
        (
            pipeline
            | ReadFromPostgresChangeStream(
                dsn=dsn, publication="benchmark", slot=slot, end=end.replace("+00:00", "Z")
            )
            | ToChangeEvents()
            | "updates" >> beam.Filter(is_update)
            | "parse" >> beam.Map(parsed)
            | "enrich" >> beam.Map(enriched)
            | "key" >> beam.Map(of_account)
            | beam.WindowInto(FixedWindows(WINDOW_SECONDS))
            | beam.CombinePerKey(sum)
            | beam.ParDo(NoteFn(f"{folder}/counts"))
        )


def costs(backlog: Any, checkout: Path | None) -> Any:
    """Return what the pipeline costs above an empty run; `checkout`: of the version, None for this one."""
    from throughput import above_empty, cost_of

    def one(empty: bool) -> Any:
        with tempfile.TemporaryDirectory(prefix="penstock-user-") as name:
            folder = Path(name)
            (folder / "counts").mkdir()
            settings = backlog.settings(empty)
            command: list[object] = [sys.executable, __file__, "--run", settings["dsn"], settings["slot"]]
            command += [settings["end"], folder]
            if checkout is not None:
                command = ["env", f"PYTHONPATH={checkout.resolve()}/src", *command]
            cost = cost_of(command, folder / "log")
            counted = sum(int(line) for path in (folder / "counts").iterdir() for line in path.open())
            expected = 0 if empty else backlog.changes // 2
            if counted != expected:
                raise SystemExit(f"{counted:,} updates were counted of {expected:,}")
            return cost

    return above_empty(lambda: one(False), lambda: one(True))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--changes", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--earlier", type=Path, help="a checkout of an earlier version")
    parser.add_argument("--run", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        run(options.run)
        return
    compare(options.changes // (2 * ROWS) * 2 * ROWS, options.rounds, options.earlier)


def compare(changes: int, rounds: int, earlier: Path | None) -> None:
    """Print the rows of both versions."""
    from backlogs import postgres
    from measure import heading, machine
    from throughput import Figure, line

    print(f"{machine()}; {changes:,} changes, {rounds} rounds\n", flush=True)
    print(heading("version", "changes/s", "ratio", "changes per CPU s", "ratio"), flush=True)
    versions = {"earlier": earlier, "this": None} if earlier else {"this": None}
    with postgres.backlog(changes, ROWS) as backlog:
        rows = [
            {name: costs(backlog, checkout) for name, checkout in versions.items()} for _ in range(rounds)
        ]
    figures = {name: Figure(changes, [each[name] for each in rows]) for name in versions}
    for name, figure in figures.items():
        print(line(figure, next(iter(figures.values())), name))


if __name__ == "__main__":
    main()
