"""Pipelines of many transforms and few elements, on Spark and on Beam's own FnApiRunner: wall time of whole processes.

    python benchmarks/wide_graphs.py [--rounds 3] [--shapes groups maps …]

What is measured is the cost of a graph, not of its data: each pipeline has a handful of elements. Every run is a
Python process of its own, from its start to its exit, so the start of the JVM is included: this is what a user's
first test of a pipeline costs. The shapes:

- *groups*: 20 GroupByKeys in a chain, so 21 levels.
- *maps*: one Create and 200 Maps that each read it.
- *sides*: 100 Maps, each with a side input of its own, which is a Create of its own.
- *creates*: 300 Creates and a Flatten.
- *many-sides*: one Map with 400 side inputs.

Each pipeline adds up in a metric what its last transforms saw, and the sum is checked. The runners take turns. The
printed figure is the difference to Beam's runner; the aim is at most 5 s for each shape.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics, MetricsFilter
from apache_beam.options.pipeline_options import PipelineOptions
from measure import Spread, heading, machine, row

CONTENDERS = ("PySparkRunner", "FnApiRunner")
AIM_SECONDS = 5.0


class SumFn(beam.DoFn):
    """Adds its elements up in a metric."""

    def __init__(self) -> None:
        self._sum = Metrics.counter("benchmark", "sum")

    def process(self, element: int) -> None:
        self._sum.inc(element)


def groups(pipeline: beam.Pipeline) -> int:
    """20 GroupByKeys in a chain."""
    pairs: Any = pipeline | beam.Create([(n % 3, n) for n in range(10)])
    for number in range(20):
        pairs = (
            pairs
            | f"Group {number}" >> beam.GroupByKey()
            | f"Apart {number}" >> beam.FlatMapTuple(lambda key, values: [(key, value) for value in values])
        )
    _ = pairs | beam.Values() | beam.ParDo(SumFn())
    return 45


def maps(pipeline: beam.Pipeline) -> int:
    """200 Maps of one Create."""
    numbers = pipeline | beam.Create([1, 2])
    mapped = [numbers | f"Map {number}" >> beam.Map(lambda n: n) for number in range(200)]
    _ = mapped | beam.Flatten() | beam.ParDo(SumFn())
    return 600


def sides(pipeline: beam.Pipeline) -> int:
    """100 Maps, each with a side input."""
    numbers = pipeline | beam.Create([1])
    mapped = []
    for number in range(100):
        side = pipeline | f"Side {number}" >> beam.Create([number])
        mapped.append(
            numbers | f"Map {number}" >> beam.Map(lambda n, s: n + s, s=beam.pvalue.AsSingleton(side))
        )
    _ = mapped | beam.Flatten() | beam.ParDo(SumFn())
    return sum(range(100)) + 100


def creates(pipeline: beam.Pipeline) -> int:
    """300 Creates."""
    made = [pipeline | f"Create {number}" >> beam.Create([number]) for number in range(300)]
    _ = made | beam.Flatten() | beam.ParDo(SumFn())
    return sum(range(300))


def many_sides(pipeline: beam.Pipeline) -> int:
    """One Map with 400 side inputs."""
    given = [
        beam.pvalue.AsSingleton(pipeline | f"Side {number}" >> beam.Create([number])) for number in range(400)
    ]
    _ = pipeline | beam.Create([1]) | beam.Map(lambda n, *s: n + sum(s), *given) | beam.ParDo(SumFn())
    return sum(range(400)) + 1


SHAPES: dict[str, Callable[[beam.Pipeline], int]] = {
    "groups": groups,
    "maps": maps,
    "sides": sides,
    "creates": creates,
    "many-sides": many_sides,
}


def run(contender: str, shape: str) -> None:
    """Run one pipeline in this process.

    Raises:
        SystemExit: the elements do not add up.
    """
    runner: Any = contender
    if contender == "PySparkRunner":
        from penstock.runner import PySparkRunner

        runner = PySparkRunner()
    pipeline = beam.Pipeline(runner=runner, options=PipelineOptions([]))
    expected = SHAPES[shape](pipeline)
    result = pipeline.run()
    result.wait_until_finish()
    counters = result.metrics().query(MetricsFilter().with_name("sum"))["counters"]
    found = sum(counter.result for counter in counters)
    if found != expected:
        raise SystemExit(f"{contender}, {shape}: the sum is {found}, not {expected}")


def seconds(contender: str, shape: str) -> float:
    """How long a process runs one pipeline."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, __file__, "--run", contender, shape], check=True)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        run(*options.run)
        return
    print(f"{machine()}; median of {options.rounds} (lowest to highest); aim: {AIM_SECONDS:g} s more\n")
    print(heading("shape", *(f"{name}, s" for name in CONTENDERS), "more, s"))
    for shape in options.shapes:
        rounds = [[seconds(name, shape) for name in CONTENDERS] for _ in range(options.rounds)]
        ours, theirs = (Spread.of(times) for times in zip(*rounds, strict=True))
        print(row(shape, ours.text(1), theirs.text(1), f"{ours.median - theirs.median:.1f}"), flush=True)


if __name__ == "__main__":
    main()
