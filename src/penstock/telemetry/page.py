"""One self-contained HTML file that shows a pipeline: watermark lag, throughput, and the lineage of partitions. Pure.

Drawings are inline SVG, so the file needs no network, and no script.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from html import escape
from itertools import pairwise

from penstock.compat import UTC
from penstock.telemetry.lineage import PartitionSpan
from penstock.telemetry.status import PipelineStatus, rate

WIDTH, CHART_HEIGHT, ROW, MARGIN = 960, 160, 14, 60
MAX_PARTITIONS = 500
"""Maximum number of partitions in the drawing: the latest. More rows than that are no picture."""

_STYLE = """
body{font:14px system-ui,sans-serif;margin:2em;color:#222;background:#fff}
table{border-collapse:collapse}td{padding:.15em 1em .15em 0}td:first-child{color:#666}
h2{font-size:1.05em;margin:1.6em 0 .4em}svg{border:1px solid #ddd}
.line{fill:none;stroke:#2563eb;stroke-width:1.5}.grid{stroke:#eee}.axis{fill:#666;font-size:10px}
.open{fill:#2563eb}.closed{fill:#94a3b8}.edge{stroke:#f59e0b;stroke-width:1}
"""


def status_page(
    title: str,
    facts: Mapping[str, str],
    samples: Sequence[PipelineStatus],
    partitions: Sequence[PartitionSpan],
    at: float,
) -> str:
    """Return the page. `facts` are shown as a table; `samples` are in the order of time, `at` is now."""
    lags = [(each.at, each.lag) for each in samples if each.lag is not None]
    rates = [(now.at, max(0.0, rate(before, now))) for before, now in pairwise(samples) if now.at > before.at]
    rows = "".join(f"<tr><td>{escape(name)}</td><td>{escape(text)}</td></tr>" for name, text in facts.items())
    parts = [
        f"<h1>{escape(title)}</h1><p>{_time(at)}</p><table>{rows}</table>",
        _section("Watermark lag, seconds", chart(lags)),
        _section("Changes per second", chart(rates)),
        _section("Partitions", lineage_drawing(partitions, at)),
    ]
    # Everything from outside is escaped: names of tables and partitions are users' and services' texts.
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>\n'


def chart(points: Sequence[tuple[float, float]]) -> str:
    """Return a line chart of (seconds since 1970, value); a sentence if there are fewer than two points."""
    if len(points) < 2:
        return "<p>Not enough commits for a chart yet; --seconds looks longer.</p>"
    first, last = points[0][0], points[-1][0]
    top = max(value for _, value in points) or 1.0
    low = min(0.0, *(value for _, value in points))  # a clock behind the source's gives a negative lag
    # A constant value and a single time have no extent to divide by.
    span, height = (last - first) or 1.0, (top - low) or 1.0

    def point(time: float, value: float) -> str:
        x = MARGIN + (time - first) / span * (WIDTH - MARGIN - 10)
        y = 10 + (top - value) / height * (CHART_HEIGHT - 30)
        return f"{x:.1f},{y:.1f}"

    line = " ".join(point(*at) for at in points)
    labels = [
        f'<text class="axis" x="4" y="{10 + (top - value) / height * (CHART_HEIGHT - 30) + 4:.1f}">{value:,.6g}</text>'
        for value in dict.fromkeys((top, low))
    ]
    ends = _time_axis(first, last, CHART_HEIGHT)
    return _svg(CHART_HEIGHT, f'<polyline class="line" points="{line}"/>{"".join(labels)}{ends}')


def lineage_drawing(partitions: Sequence[PartitionSpan], at: float) -> str:
    """Return a drawing with one bar for each partition, and a line for each transfer of keys."""
    shown = partitions[-MAX_PARTITIONS:]  # they are in the order of their start
    times = [time for span in shown for time in (span.start, span.end) if time is not None]
    if not times:
        return "<p>No lineage: give the folder of the pipeline's lineage_log with --lineage.</p>"
    first, last = min(times), max(at, *times)
    scale = (WIDTH - 2 * MARGIN) / ((last - first) or 1.0)
    rows = {span.name: row for row, span in enumerate(shown)}

    def x(time: float | None, default: float) -> float:
        return MARGIN + ((default if time is None else time) - first) * scale

    bars, edges = [], []
    for span, row in zip(shown, rows.values(), strict=True):
        left, right = x(span.start, first), x(span.end, last)
        kind = "open" if span.end is None else "closed"
        bars.append(
            f'<rect class="{kind}" x="{left:.1f}" y="{row * ROW + 4}" width="{max(1.0, right - left):.1f}" '
            f'height="{ROW - 6}"><title>{escape(_described(span))}</title></rect>'
        )
        # An edge to a partition that is not shown would begin outside of the drawing.
        edges += [
            f'<line class="edge" x1="{x(time, time):.1f}" y1="{rows[source] * ROW + ROW / 2}" '
            f'x2="{x(time, time):.1f}" y2="{row * ROW + ROW / 2}"/>'
            for time, source in span.sources
            if source in rows
        ]
    height = len(shown) * ROW + 24
    left_out = len(partitions) - len(shown)
    note = f"<p>{left_out} older partitions are not shown.</p>" if left_out else ""
    return _svg(height, "".join(edges) + "".join(bars) + _time_axis(first, last, height)) + note


def _described(span: PartitionSpan) -> str:
    start = "from an unknown time" if span.start is None else f"from {_time(span.start)}"
    start += "" if span.sources else ", live at the start"
    end = "read" if span.end is None else f"to {_time(span.end)}"
    return f"{span.name}: {start}, {end}"


def _section(title: str, body: str) -> str:
    return f"<h2>{escape(title)}</h2>{body}"


def _svg(height: float, body: str) -> str:
    return f'<svg width="{WIDTH}" height="{height:.0f}" viewBox="0 0 {WIDTH} {height:.0f}">{body}</svg>'


def _time_axis(first: float, last: float, height: float) -> str:
    y = height - 6
    return (
        f'<text class="axis" x="{MARGIN}" y="{y:.0f}">{_time(first)}</text>'
        f'<text class="axis" x="{WIDTH - 10}" y="{y:.0f}" text-anchor="end">{_time(last)}</text>'
    )


def _time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}Z"
