"""Shared by the benchmarks: wall and CPU time of process trees, rounds, medians with their spread, table rows.

    watch = Stopwatch()
    work()
    cost = watch.stop()          # Cost(wall=…, cpu=…), of this process and all its descendants
    print(Spread.of(costs)), print(row("five Maps", cost.wall))

This is a folder and not a script, because `make bench` runs every script in `benchmarks`.
"""

from measure.figures import Cost, Spread, heading, machine, peers_heading, peers_row, percentile, ratio, row
from measure.tree import ProgramStopwatch, Stopwatch, tree, tree_cpu

__all__ = [
    "Cost",
    "ProgramStopwatch",
    "Spread",
    "Stopwatch",
    "heading",
    "machine",
    "peers_heading",
    "peers_row",
    "percentile",
    "ratio",
    "row",
    "tree",
    "tree_cpu",
]
