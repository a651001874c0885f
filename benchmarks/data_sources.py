"""Changes per second of a Spark data source and of the Beam pipeline over the same backlog, both into Parquet.

    python benchmarks/data_sources.py [--changes 200000] [--rounds 3] [--only SOURCE …] [--layouts LAYOUT …] [--rows N]

- *Data source*: `demo/data_source_job.py`, a Spark program with `availableNow` and `foreachBatch`.
- *Beam pipeline*: `penstock run SOURCE-to-parquet`, with two Python workers.

With the layout *events* each change is one row, whose images are JSON in the data source and structs in the pipeline.
With *table* both write the rows of the change feed: the columns of the table, and for YDB's updates two rows.

Both have two slots of Spark, and their changes are counted. The backlogs are those of
`throughput.py`, and figures are above an empty run in the same way. `ratio` is the figure of the data source divided by
the figure of the pipeline: above 1 the data source is faster.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from backlogs import Backlog
from measure import Cost, heading, machine
from throughput import (
    FIGURES,
    SOURCES,
    Figure,
    Sink,
    above_empty,
    cost_of,
    line,
    new_folder,
    parquet_sink,
    pipeline,
)

LEFT_OUT = {"postgres": {"end"}, "spanner": set[str](), "ydb": {"end", "delivery_seconds"}}
"""Parameters of a pipeline that its data source does not have: its backlog ends where `availableNow` does."""
OWN = {
    "events": {"postgres": {}, "spanner": {}, "ydb": {"layout": "events"}},
    "table": {"postgres": {"table": "public.orders"}, "spanner": {"table": "Orders"}, "ydb": {}},
}
"""Options of a data source, by layout and source."""
WORKERS = 2


def data_source(backlog: Backlog, layout: str) -> Cost:
    """Run the Spark program over nothing and over the backlog; check that each change was written once."""

    def one(empty: bool) -> Cost:
        with tempfile.TemporaryDirectory(prefix="penstock-data-source-") as name:
            folder = Path(name)
            settings = {**backlog.settings(empty), **OWN[layout][backlog.source]}
            pairs = [
                f"{key}={value}" for key, value in settings.items() if key not in LEFT_OUT[backlog.source]
            ]
            program = [sys.executable, "-m", "benchmarks.demo.data_source_job"]
            cost = cost_of([*program, f"penstock-{backlog.source}", folder, "now", *pairs], folder / "log")
            written, expected = _changes(folder / "rows"), 0 if empty else backlog.changes
            if written != expected:
                raise SystemExit(f"penstock-{backlog.source} wrote {written:,} changes of {expected:,}")
            return cost

    return above_empty(lambda: one(False), lambda: one(True))


def sink_with(layout: str) -> Sink:
    sink = parquet_sink()
    return replace(
        sink,
        settings=lambda folder: {**sink.settings(folder), "layout": layout},
        lines=lambda folder: _changes(folder / "output"),
    )


def _changes(folder: Path) -> int:
    """Return how many changes are in the Parquet files. A change has one row that is no old row of an update."""
    import pyarrow.compute as pc
    from pyarrow.parquet import ParquetFile

    def of(file: ParquetFile) -> int:
        if "_change_type" not in file.schema_arrow.names:
            return int(file.metadata.num_rows)
        types = file.read(["_change_type"]).column(0)
        return int(pc.sum(pc.not_equal(types, "update_preimage")).as_py() or 0)

    return sum(of(ParquetFile(path)) for path in folder.rglob("*.parquet"))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--changes", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=LEFT_OUT, default=list(LEFT_OUT), metavar="SOURCE")
    parser.add_argument("--layouts", nargs="+", choices=OWN, default=list(OWN), metavar="LAYOUT")
    parser.add_argument("--rows", type=int, default=500, help="changes in a transaction")
    options = parser.parse_args()
    # A number that both halves and the transactions divide.
    changes = max(1, round(options.changes / (2 * options.rows))) * 2 * options.rows
    print(f"{machine()}; {changes:,} changes, {options.rounds} rounds\n", flush=True)
    print(heading("source, layout", "door", *FIGURES), flush=True)
    for source in options.only:
        with SOURCES[source](changes, options.rows) as backlog:
            for layout in options.layouts:
                sink = sink_with(layout)
                pairs = [
                    (pipeline(backlog, sink, WORKERS, new_folder), data_source(backlog, layout))
                    for _ in range(options.rounds)
                ]
                beam, spark = (Figure(changes, costs) for costs in zip(*pairs, strict=True))
                print(line(beam, beam, f"{source}, {layout}", "Beam pipeline"))
                print(line(spark, beam, f"{source}, {layout}", "data source"), flush=True)


if __name__ == "__main__":
    main()
