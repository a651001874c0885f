"""The geometry of the pictures: charts of values in time, and partitions with their splits, merges and waits. Pure.

The pages draw them as SVG. Coordinates are pixels; x grows with time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from penstock.compat import UTC
from penstock.telemetry.lineage import PartitionSpan
from penstock.telemetry.status import PipelineStatus, rate

WIDTH, CHART_HEIGHT, ROW, MARGIN = 960, 160, 18, 60
LABELS = 150
"""Width of the names beside the bars of partitions."""
MAX_PARTITIONS = 120
"""Maximum number of partitions in the drawing: the open ones first, then the latest. More rows are no picture."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A line. `points` is the text of an SVG polyline, `ticks` are (y, text); `first` and `last` are its times.

    `summary` says the same in words.
    """

    points: str
    ticks: tuple[tuple[float, str], ...]
    first: str
    last: str
    summary: str


def chart(points: Sequence[tuple[float, float]]) -> Chart | None:
    """Return the chart of (seconds since 1970, value); None if there are fewer than two points."""
    if len(points) < 2:
        return None
    first, last = points[0][0], points[-1][0]
    values = [value for _, value in points]
    top = max(values) or 1.0
    low = min(0.0, *values)  # a clock behind the source's gives a negative lag
    # A constant value and a single time have no extent to divide by.
    extent, height = (last - first) or 1.0, (top - low) or 1.0

    def y(value: float) -> float:
        return 10 + (top - value) / height * (CHART_HEIGHT - 40)

    line = " ".join(
        f"{MARGIN + (time - first) / extent * (WIDTH - MARGIN - 10):.1f},{y(value):.1f}"
        for time, value in points
    )
    return Chart(
        points=line,
        ticks=tuple((round(y(value) + 4, 1), f"{value:,.6g}") for value in dict.fromkeys((top, low))),
        first=time_text(first),
        last=time_text(last),
        summary=f"now {values[-1]:,.4g}, lowest {min(values):,.4g}, highest {max(values):,.4g}",
    )


def rates(samples: Sequence[PipelineStatus]) -> list[tuple[float, float]]:
    """Return (seconds since 1970, changes per second) between each two statuses."""
    return [(now.at, max(0.0, rate(before, now))) for before, now in pairwise(samples) if now.at > before.at]


@dataclass(frozen=True, slots=True)
class Bar:
    """A partition in the drawing. `kind`: ``open``, ``waiting`` or ``closed``."""

    span: PartitionSpan
    kind: str
    x: float
    y: float
    width: float


@dataclass(frozen=True, slots=True)
class Link:
    """A vertical line between two bars. `kind`: ``edge``: keys went from one to the other; ``wait``: one waits."""

    kind: str
    x: float
    y1: float
    y2: float


@dataclass(frozen=True, slots=True)
class Lineage:
    """The drawing of partitions; `left_out` is the number of older partitions that it has no room for."""

    height: float
    bars: tuple[Bar, ...]
    links: tuple[Link, ...]
    first: str
    last: str
    left_out: int


def lineage(partitions: Sequence[PartitionSpan], at: float) -> Lineage | None:
    """Return partitions in time as bars; None without any time. `at` is the end of open partitions.

    `partitions` are in the order of their start.
    """
    latest = sorted(range(len(partitions)), key=lambda i: (partitions[i].end is None, i))
    shown = [partitions[i] for i in sorted(latest[-MAX_PARTITIONS:])]
    times = [time for each in shown for time in (each.start, each.end) if time is not None]
    if not times:
        return None
    first, last = min(times), max(at, *times)
    left_edge = LABELS + 10
    scale = (WIDTH - left_edge - 10) / ((last - first) or 1.0)
    rows = {each.name: row * ROW for row, each in enumerate(shown)}

    def x(time: float | None, default: float) -> float:
        return round(left_edge + ((default if time is None else time) - first) * scale, 1)

    bars, links = [], []
    for each in shown:
        y, left, right = rows[each.name], x(each.start, first), x(each.end, last)
        bars.append(Bar(each, kind_of(each), left, y + 3, max(1.0, round(right - left, 1))))
        # A line to a partition that is not shown would begin outside of the drawing.
        links += [
            Link("edge", x(time, time), rows[source] + ROW / 2, y + ROW / 2)
            for time, source in each.sources
            if source in rows
        ]
        waits = sorted(each.waits_for & rows.keys())
        links += [Link("wait", x(last, last) - 4, rows[source] + ROW / 2, y + ROW / 2) for source in waits]
    height = len(shown) * ROW + 24
    left_out = len(partitions) - len(shown)
    return Lineage(height, tuple(bars), tuple(links), time_text(first), time_text(last), left_out)


def kind_of(partition: PartitionSpan) -> str:
    """Return whether a partition is ``open``, ``waiting`` or ``closed``."""
    if partition.end is not None:
        return "closed"
    return "waiting" if partition.waits_for else "open"


def described(partition: PartitionSpan) -> str:
    """Return a partition in one line of words."""
    start = "from an unknown time" if partition.start is None else f"from {time_text(partition.start)}"
    start += "" if partition.sources else ", live at the start"
    end = "read" if partition.end is None else f"to {time_text(partition.end)}"
    if partition.waits_for:
        end = f"waits for {' and '.join(sorted(partition.waits_for))}"
    return f"{partition.name}: {start}, {end}"


def shortened(name: str, characters: int = 20) -> str:
    """Return a name with its middle left out, if it is longer."""
    half = (characters - 1) // 2
    return name if len(name) <= characters else f"{name[:half]}…{name[-half:]}"


def time_text(seconds: float | None) -> str:
    """Return a time as text, in UTC; a dash for an unknown one."""
    return "–" if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}Z"
