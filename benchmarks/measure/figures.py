"""Figures and their presentation: medians with the lowest and the highest value, ratios, rows for README.md. Pure."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version


@dataclass(frozen=True, slots=True)
class Cost:
    """Wall seconds, and CPU seconds of a whole process tree.

    `parts`: the CPU seconds by part of a pipeline (`measure.tree.part_of`), if they were taken apart. `peak`: the most
    memory that the first process has held, in bytes; 0: not measured.
    """

    wall: float
    cpu: float
    parts: Mapping[str, float] = field(default_factory=dict)
    peak: int = 0

    def per(self, count: int) -> Cost:
        """Return the cost of one of `count` repetitions."""
        return Cost(self.wall / count, self.cpu / count)

    def above(self, other: Cost) -> Cost:
        """Return what this costs more than `other`; its memory as it is."""
        parts = {part: cpu - other.parts.get(part, 0.0) for part, cpu in self.parts.items()}
        return Cost(self.wall - other.wall, self.cpu - other.cpu, parts, self.peak)


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of several rounds, with the lowest and the highest value."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Return the spread of at least one value."""
        known = sorted(values)
        return cls(statistics.median(known), known[0], known[-1])

    def text(self, digits: int = 2, unit: float = 1.0) -> str:
        """``median (lowest to highest)``, in multiples of `unit`."""
        median, lowest, highest = (
            f"{value / unit:,.{digits}f}" for value in (self.median, self.lowest, self.highest)
        )
        return f"{median} ({lowest} to {highest})"


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of the values do not exceed (nearest rank)."""
    known = sorted(values)
    rank = -(-len(known) * percent // 100)
    return known[max(0, int(rank) - 1)]


def ratio(ours: Spread, theirs: Spread) -> str:
    """Return our median divided by the peer's median. Below 1 we are cheaper."""
    return f"{ours.median / theirs.median:.2f}" if theirs.median > 0 else "–"


def row(*cells: object) -> str:
    """Return one row of a Markdown table."""
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def heading(*cells: str) -> str:
    """Return the first two rows of a Markdown table: names on the left, figures on the right."""
    rule = ["---"] + ["--:"] * (len(cells) - 1)
    return f"{row(*cells)}\n{row(*rule)}"


def peers_heading(what: str, ours: str, peers: Sequence[str], unit: str = "") -> str:
    """Return the first two rows of a table of our figures, those of peers, and the ratio to each."""
    ours, *theirs = (f"{name}, {unit}" if unit else name for name in (ours, *peers))
    return heading(what, ours, *(cell for name in theirs for cell in (name, "ratio")))


def peers_row(name: str, ours: Spread, theirs: Sequence[Spread], digits: int = 2, unit: float = 1.0) -> str:
    """Return a row of that table."""
    cells = (cell for spread in theirs for cell in (spread.text(digits, unit), ratio(ours, spread)))
    return row(name, ours.text(digits, unit), *cells)


def machine() -> str:
    """Return one line about the machine. A high load means that the figures are not worth keeping."""
    load = os.getloadavg()[0]
    parts = [
        f"{os.cpu_count()} cores",
        f"load {load:.1f} at the start",
        f"Python {platform.python_version()}",
    ]
    parts += [f"{name} {version(name)}" for name in ("apache-beam", "pyspark")]
    return ", ".join(parts)
