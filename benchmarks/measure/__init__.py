"""What the benchmarks share: wall and CPU of whole process trees, rounds, medians with their spread, rows.

    watch = Stopwatch()
    work()
    cost = watch.stop()          # Cost(wall=…, cpu=…), of this process and everything below it
    print(Spread.of(costs)), print(row("five Maps", cost.wall))

A folder and not a script, because `make bench` runs every script beside it.
"""

from measure.figures import Cost, Spread, heading, machine, percentile, ratio, row
from measure.tree import Stopwatch, tree, tree_cpu

__all__ = [
    "Cost",
    "Spread",
    "Stopwatch",
    "heading",
    "machine",
    "percentile",
    "ratio",
    "row",
    "tree",
    "tree_cpu",
]
