"""Maps, GroupByKey and CombinePerKey here and on Beam's other runners: wall and CPU time of the process tree.

    python benchmarks/batch.py [--works maps group combine] [--records 1000000 4000000] [--keys 10000] [--rounds 3]
        [--peers FnApiRunner Prism Flink Spark]

Each pipeline distributes ranges over the workers and turns them into integers. Coders are those that Beam infers
(VarInt, and pairs of it). Then come

- *maps*: five Maps, the last of which makes a pair; a DoFn counts the pairs of each bundle;
- *group*: a Map to (n % keys, n) and a GroupByKey; a step iterates over every group and counts its values;
- *combine*: a Map to (n % keys, 1) and CombinePerKey(sum); a step adds the sums;
- *both*: the five Maps of *maps*, then the GroupByKey of *group*.

The benchmark checks the number of records, a metric, after each run.

- *PySparkRunner*, on a session `local[2,4]` with the settings that the runner uses for its own sessions.
- *FnApiRunner*, the peer by default: Beam's reference runner for Python, as `beam.Pipeline(runner="FnApiRunner")` runs
  it, with one worker thread in the same process and everything in memory.
- *Prism*, and Beam's runners on *Flink* and *Spark*, behind job servers (`peers.runners`). The Java runners execute two
  bundles at once.

Each contender runs in its own process, makes one run to warm up, and takes its turn. The order changes from round to
round. CPU time is counted for the whole process tree of the contender: Python driver, JVM, Python daemon, workers, and
children that have ended. A run over one record is the *fixed* cost of this pipeline on a warm session. The *marginal*
cost of a further record is (cost of n records - fixed) / n. For comparison the benchmark also runs the smallest
possible pipeline, one element and one Map: that is the cost of a user's test.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TextIO

import apache_beam as beam
from apache_beam.metrics import Metrics, MetricsFilter
from apache_beam.options.pipeline_options import PipelineOptions
from measure import Cost, Spread, Stopwatch, machine, peers_heading, peers_row
from peers.runners import SERVERS, job_server

RANGES = 8
OURS = "PySparkRunner"
REFERENCE = "FnApiRunner"
LEAST, FIXED = 0, 1
"""Numbers of records of the runs that show the fixed cost. 0 stands for the smallest pipeline."""


class CountOutFn(beam.DoFn):
    def process(self, ends: tuple[int, int]) -> Iterator[int]:
        yield from range(*ends)


class CountFn(beam.DoFn):
    """Counts records. Each element has `weight(element)` of them."""

    def __init__(self, weight: Callable[[Any], int]) -> None:
        self._weight = weight
        self._records = Metrics.counter("benchmark", "records")
        self._found = 0

    def process(self, element: Any) -> None:
        self._found += self._weight(element)

    def finish_bundle(self) -> None:
        self._records.inc(self._found)
        self._found = 0


def five_maps(numbers: beam.PCollection, keys: int) -> beam.PCollection:
    """Apply five Maps to integers; the last one makes pairs (n % keys, n)."""
    return (
        numbers
        | "Map 1" >> beam.Map(lambda n: n + 1)
        | "Map 2" >> beam.Map(lambda n: n * 3)
        | "Map 3" >> beam.Map(lambda n: n - 3)
        | "Map 4" >> beam.Map(lambda n: n // 3)
        | "Map 5" >> beam.Map(lambda n: (n % keys, n)).with_output_types(tuple[int, int])
    )


def maps(numbers: beam.PCollection, keys: int) -> beam.PCollection:
    return five_maps(numbers, keys) | beam.ParDo(CountFn(lambda pair: 1))


def group(numbers: beam.PCollection, keys: int) -> beam.PCollection:
    pairs = numbers | beam.Map(lambda n: (n % keys, n)).with_output_types(tuple[int, int])
    return pairs | beam.GroupByKey() | beam.ParDo(CountFn(values_of))


def combine(numbers: beam.PCollection, keys: int) -> beam.PCollection:
    pairs = numbers | beam.Map(lambda n: (n % keys, 1)).with_output_types(tuple[int, int])
    return pairs | beam.CombinePerKey(sum) | beam.ParDo(CountFn(lambda pair: pair[1]))


def both(numbers: beam.PCollection, keys: int) -> beam.PCollection:
    return five_maps(numbers, keys) | beam.GroupByKey() | beam.ParDo(CountFn(values_of))


def values_of(group: tuple[int, Any]) -> int:
    """Iterate over a group to its end."""
    return sum(1 for _ in group[1])


WORKS: dict[str, Callable[[beam.PCollection, int], beam.PCollection]] = {
    "maps": maps,
    "group": group,
    "combine": combine,
    "both": both,
}


def build(pipeline: beam.Pipeline, work: str, records: int, keys: int) -> None:
    """Apply a measured pipeline, or the smallest one."""
    if records == LEAST:
        _ = pipeline | beam.Create([1]) | beam.Map(lambda n: n + 1)
        return
    bounds = [records * number // RANGES for number in range(RANGES + 1)]
    ranges = [pair for pair in itertools.pairwise(bounds) if pair[0] < pair[1]]
    numbers = (
        pipeline
        | beam.Create(ranges, reshuffle=False)
        | beam.Reshuffle()
        | beam.ParDo(CountOutFn()).with_output_types(int)
    )
    _ = WORKS[work](numbers, keys)


def run(runner: Any, flags: Sequence[str], work: str, records: int, keys: int) -> Cost:
    """Build and run the pipeline once.

    Raises:
        SystemExit: not every record has arrived.
    """
    watch = Stopwatch()
    pipeline = beam.Pipeline(runner=runner, options=PipelineOptions(list(flags)))
    build(pipeline, work, records, keys)
    result = pipeline.run()
    result.wait_until_finish()
    cost = watch.stop()
    counters = result.metrics().query(MetricsFilter().with_name("records"))["counters"]
    arrived = sum(counter.result for counter in counters)
    if arrived != records:
        raise SystemExit(f"{runner} counted {arrived} records of {records}")
    return cost


@contextmanager
def runner_of(contender: str) -> Iterator[tuple[Any, Sequence[str]]]:
    """Yield the runner of a contender, with its Spark session or its server started, and the options of its runs."""
    if contender in SERVERS:
        with job_server(contender) as flags:
            yield "PortableRunner", flags
    elif contender == REFERENCE:
        from apache_beam.runners.portability.fn_api_runner import FnApiRunner

        yield FnApiRunner(), ()
    else:
        from penstock.runner import PySparkRunner
        from penstock.runner.spark.session import context

        yield PySparkRunner(context("local[2,4]", {})), ()


def serve(contender: str) -> None:
    """Run as a contender: one run for each line (work, records, keys) on standard input; print the cost of each."""
    with runner_of(contender) as (runner, flags):
        for line in sys.stdin:
            cost = run(runner, flags, *json.loads(line))
            print(json.dumps([cost.wall, cost.cpu]), flush=True)


class Contender:
    """A contender in another process. Leaving the context ends the process."""

    def __init__(self, name: str, log: TextIO) -> None:
        """Start it; what it prints besides the costs goes to `log`."""
        self._name, self._log = name, log
        self._child = subprocess.Popen(
            [sys.executable, __file__, "--serve", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def __call__(self, work: str, records: int, keys: int) -> Cost:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(json.dumps([work, records, keys]) + "\n")
        self._child.stdin.flush()
        answer = self._child.stdout.readline()
        if not answer:
            self._log.seek(0)
            raise SystemExit(f"{self._name} died:\n{self._log.read()[-4000:]}")
        return Cost(*json.loads(answer))

    def __enter__(self) -> Contender:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait()


Costs = dict[tuple[str, int], list[Cost]]
"""The costs of a work, by contender and number of records."""


def compare(works: list[str], peers: list[str], sizes: list[int], keys: int, rounds: int) -> dict[str, Costs]:
    """Run every contender over every work and size, `rounds` times. The order of the contenders rotates."""
    names = [OURS, *peers]
    costs: dict[str, Costs] = {work: {(name, n): [] for name in names for n in sizes} for work in works}
    with ExitStack() as stack:
        contenders = {
            name: stack.enter_context(Contender(name, stack.enter_context(tempfile.TemporaryFile("w+"))))
            for name in names
        }
        for contender in contenders.values():
            contender(works[0], min(max(sizes), 20_000), keys)  # imports, the JVM's first compilations
        for number, work, size in itertools.product(range(rounds), works, sizes):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                costs[work][name, size].append(contenders[name](work, size, keys))
    return costs


def tell(costs: Costs, peers: list[str], sizes: list[int]) -> None:
    """Print the costs with the ratios to each peer, then the fixed and the marginal costs."""
    print(peers_heading("records", OURS, peers, "s"))
    for size in sizes:
        for what, part in (("wall", _wall), ("CPU", _cpu)):
            ours, *theirs = (Spread.of(map(part, costs[name, size])) for name in (OURS, *peers))
            name = f"{size:,}" if size else "one element, one Map"
            print(peers_row(f"{name}, {what}", ours, theirs))
    print()
    print(peers_heading("per further record", OURS, peers, "µs"))
    for size in sizes[2:]:
        for what, part in (("wall", _wall), ("CPU", _cpu)):
            ours, *theirs = (_marginal(costs, name, size, part) for name in (OURS, *peers))
            print(peers_row(f"{size:,}, {what}", ours, theirs, unit=1e-6))


def _marginal(costs: Costs, name: str, size: int, part: Callable[[Cost], float]) -> Spread:
    fixed = Spread.of(map(part, costs[name, FIXED])).median
    return Spread.of((part(cost) - fixed) / size for cost in costs[name, size])


def _wall(cost: Cost) -> float:
    return cost.wall


def _cpu(cost: Cost) -> float:
    return cost.cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--works", nargs="+", choices=WORKS, default=["maps", "group", "combine"])
    parser.add_argument("--records", type=int, nargs="+", default=[1_000_000, 4_000_000])
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", nargs="+", choices=[REFERENCE, *SERVERS], default=[REFERENCE])
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    print(f"{machine()}; {options.keys:,} keys; median of {options.rounds} (lowest to highest)\n")
    sizes = [LEAST, FIXED, *options.records]
    compared = compare(options.works, options.peers, sizes, options.keys, options.rounds)
    for work, costs in compared.items():
        print(f"{work}\n")
        tell(costs, options.peers, sizes)
        print()


if __name__ == "__main__":
    main()
