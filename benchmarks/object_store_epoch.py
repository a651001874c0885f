"""The cost of an idle epoch with its checkpoint on an S3 server, against the same epoch on the local disk.

    python benchmarks/object_store_epoch.py [--server versitygw] [--latency_ms 0 20] [--evidence
    docs/evidence/object-store-epoch.json]

The stream is the same as in `idle_epoch.py`: it has nothing to read, and one epoch follows the other. The server runs
on loopback, which has no latency of its own; `--latency_ms` adds it to each answer. Local disk and S3 take turns in one
run. Requests are counted by a proxy before the server, so the count does not depend on our code. Requests of a start
are counted up to its first commit.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

from idle_epoch import epochs
from measure import Cost, Spread, heading, machine, ratio, row

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from penstock.runner.spark.session import context
from tests.support.object_stores.faults import FaultProxy
from tests.support.object_stores.servers import MOTO, VERSITYGW, RunningServer

SERVERS = {"versitygw": VERSITYGW, "moto": MOTO}


def on_s3(spark: Any, server: RunningServer, port: int, options: argparse.Namespace, keyed: int) -> Cost:
    """Return the cost of an idle epoch with a new checkpoint behind a port."""
    url = server.url(f"checkpoint-{uuid.uuid4().hex}", port)
    return epochs(spark, keyed, options.tasks, options.epochs, url)


def requests_of_an_epoch(
    spark: Any, server: RunningServer, options: argparse.Namespace, keyed: int
) -> dict[str, float]:
    """Return the number of requests of one epoch. Sweeps are included, the start is not."""
    with FaultProxy(server.port) as proxy:
        on_s3(spark, server, proxy.port, options, keyed)
        commits = [n for n, r in enumerate(proxy.log) if r.operation == "put" and "/records/" in r.path]
        # From the second commit to the last one.
        counted = Counter(request.operation for request in proxy.log[commits[1] : commits[-1]])
        epochs_counted = len(commits) - 2
    return {operation: round(count / epochs_counted, 3) for operation, count in sorted(counted.items())}


def requests_of_starts(spark: Any, server: RunningServer, options: argparse.Namespace) -> dict[str, int]:
    """Return the number of requests of a start with a new checkpoint, and with an existing one."""
    found = {}
    with FaultProxy(server.port) as proxy:
        url = server.url(f"checkpoint-{uuid.uuid4().hex}", proxy.port)
        for kind in ("new checkpoint", "existing checkpoint"):
            begin = len(proxy.log)
            epochs(spark, options.keyed, options.tasks, 1, url)
            log = proxy.log[begin:]
            # The first record is the record of the take-over.
            records = [n for n, r in enumerate(log) if r.operation == "put" and "/records/" in r.path]
            found[kind] = records[1]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", choices=SERVERS, default="versitygw")
    parser.add_argument("--latency_ms", type=float, nargs="+", default=[0, 20])
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=2)
    parser.add_argument("--keyed", type=int, default=1, help="number of keyed stages")
    parser.add_argument("--evidence", type=Path, help="write the figures to this JSON file")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="penstock-s3-") as folder,
        SERVERS[options.server].start(Path(folder)) as server,
    ):
        os.environ.update(server.environment)
        spark = context("local[2,4]", {})
        print(f"{machine()}; {options.server}; {options.tasks} tasks a level, {options.keyed} keyed stages\n")
        print(heading("idle epoch", "S3, ms", "local disk, ms", "ratio"))
        figures = {f"{each:g} ms": tell(spark, server, options, each) for each in options.latency_ms}
        starts = requests_of_starts(spark, server, options)
        print("\nrequests of a start:", ", ".join(f"{count} with a {kind}" for kind, count in starts.items()))
        requests = requests_of_an_epoch(spark, server, options, options.keyed)
        print("requests per epoch:", ", ".join(f"{n:g} {operation}" for operation, n in requests.items()))
    if options.evidence:
        facts = {
            "machine": machine(),
            "server": options.server,
            "latency": figures,
            "requests_per_epoch": requests,
            "requests_of_a_start": starts,
        }
        options.evidence.write_text(json.dumps(facts, indent=2, sort_keys=True) + "\n")


def tell(
    spark: Any, server: RunningServer, options: argparse.Namespace, latency: float
) -> dict[str, dict[str, float]]:
    """Measure both in turn with one latency, print a row each for wall and CPU time, and return the medians in ms."""
    costs: dict[str, list[Cost]] = {"s3": [], "local": []}
    with FaultProxy(server.port, latency_seconds=latency / 1000) as proxy:
        # Without latency the proxy is left out: it would cost more than the request.
        port = proxy.port if latency else server.port
        for number in range(options.rounds + 1):
            for where in ("s3", "local") if number % 2 else ("local", "s3"):
                if where == "s3":
                    cost = on_s3(spark, server, port, options, options.keyed)
                else:
                    cost = epochs(spark, options.keyed, options.tasks, options.epochs)
                if number:  # the first round warms the JVM up
                    costs[where].append(cost)
    medians = {}
    for what in ("wall", "cpu"):
        s3, local = (
            Spread.of(cost.wall if what == "wall" else cost.cpu for cost in costs[where])
            for where in ("s3", "local")
        )
        print(row(f"{latency:g} ms latency, {what}", s3.text(1, 1e-3), local.text(1, 1e-3), ratio(s3, local)))
        medians[what] = {
            "s3": round(s3.median * 1e3, 1),
            "local": round(local.median * 1e3, 1),
            "ratio": round(s3.median / local.median, 2),
        }
    return medians


if __name__ == "__main__":
    main()
