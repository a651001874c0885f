"""Changes per second of a Spark data source and of the Beam pipeline over the same backlog, both into Parquet.

    python benchmarks/data_sources.py [--changes 200000] [--rounds 3] [--only SOURCE …] [--rows N]

- *Data source*: `demo/data_source_job.py`, a Spark program with `availableNow`, `foreachBatch` and one row for each
  change, with images as JSON.
- *Beam pipeline*: `penstock run SOURCE-to-parquet`, with two Python workers.

Both have two slots of Spark and write each change as one row, which is counted. The backlogs are those of
`throughput.py`, and figures are above an empty run in the same way. `ratio` is the figure of the data source divided by
the figure of the pipeline: above 1 the data source is faster.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from backlogs import Backlog
from measure import Cost, heading, machine
from throughput import SOURCES, Figure, above_empty, cost_of, line, parquet_sink, pipeline

LEFT_OUT = {"postgres": {"end"}, "spanner": set[str](), "ydb": {"end", "delivery_seconds"}}
"""Parameters of a pipeline that its data source does not have: its backlog ends where `availableNow` does."""
OWN = {"postgres": {}, "spanner": {}, "ydb": {"layout": "events"}}
WORKERS = 2


def data_source(backlog: Backlog) -> Cost:
    """Run the Spark program over nothing and over the backlog; check that each change was written once."""

    def one(empty: bool) -> Cost:
        with tempfile.TemporaryDirectory(prefix="penstock-data-source-") as name:
            folder = Path(name)
            settings = {**backlog.settings(empty), **OWN[backlog.source]}
            pairs = [
                f"{key}={value}" for key, value in settings.items() if key not in LEFT_OUT[backlog.source]
            ]
            program = [sys.executable, "-m", "benchmarks.demo.data_source_job"]
            cost = cost_of([*program, f"penstock-{backlog.source}", folder, "now", *pairs], folder / "log")
            written, expected = _rows(folder / "rows"), 0 if empty else backlog.changes
            if written != expected:
                raise SystemExit(f"penstock-{backlog.source} wrote {written:,} rows of {expected:,}")
            return cost

    return above_empty(lambda: one(False), lambda: one(True))


def _rows(folder: Path) -> int:
    import pyarrow.parquet

    return sum(pyarrow.parquet.read_metadata(path).num_rows for path in folder.rglob("*.parquet"))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--changes", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=LEFT_OUT, default=list(LEFT_OUT), metavar="SOURCE")
    parser.add_argument("--rows", type=int, default=500, help="changes in a transaction")
    options = parser.parse_args()
    # A number that both halves and the transactions divide.
    changes = max(1, round(options.changes / (2 * options.rows))) * 2 * options.rows
    print(f"{machine()}; {changes:,} changes, {options.rounds} rounds\n", flush=True)
    print(heading("source", "door", "changes/s", "ratio", "changes per CPU s", "ratio"), flush=True)
    sink = parquet_sink()
    for source in options.only:
        with SOURCES[source](changes, options.rows) as backlog:
            pairs = [(pipeline(backlog, sink, WORKERS), data_source(backlog)) for _ in range(options.rounds)]
        beam, spark = (Figure(changes, costs) for costs in zip(*pairs, strict=True))
        print(line(beam, beam, source, "Beam pipeline"))
        print(line(spark, beam, source, "data source"), flush=True)


if __name__ == "__main__":
    main()
