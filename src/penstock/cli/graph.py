"""The graph of a pipeline's steps, as text and as an SVG picture. Pure, except for `graph_of`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y = 200, 34, 50, 16


@dataclass(frozen=True, slots=True)
class Graph:
    """Steps by label in the order of the pipeline, and the pairs (from, to) of steps that a PCollection connects."""

    steps: tuple[str, ...]
    edges: tuple[tuple[str, str], ...]

    def levels(self) -> dict[str, int]:
        """Return the level of each step: one more than the highest level of its predecessors."""
        levels = dict.fromkeys(self.steps, 0)
        for _ in self.steps:  # enough rounds for any graph without cycles
            for before, after in self.edges:
                levels[after] = max(levels[after], levels[before] + 1)
        return levels


def graph_of(pipeline: Any, depth: int = 2) -> Graph:
    """Return the graph of a Beam pipeline; composite steps are opened down to `depth`."""
    from apache_beam.pipeline import PipelineVisitor

    owners: dict[Any, str] = {}  # PCollection to the label of the step that makes it
    steps: list[str] = []
    edges: list[tuple[str, str]] = []

    class Visitor(PipelineVisitor):  # type: ignore[misc, unused-ignore]
        def visit_transform(self, node: Any) -> None:
            label = "/".join(node.full_label.split("/")[:depth])
            if label not in steps:
                steps.append(label)
            for collection in node.outputs.values():
                owners[collection] = label
            for collection in (*node.inputs, *(view.pvalue for view in node.side_inputs)):
                before = owners.get(collection)
                if before is not None and before != label and (before, label) not in edges:
                    edges.append((before, label))

    pipeline.visit(Visitor())
    return Graph(tuple(steps), tuple(edges))


def as_text(graph: Graph) -> str:
    """Return one line for each step, indented by its level, with the steps that it takes its input from."""
    levels = graph.levels()
    lines = []
    for step in graph.steps:
        before = [each for each, after in graph.edges if after == step]
        source = f"  <- {', '.join(before)}" if before else ""
        lines.append(f"{'  ' * levels[step]}{step}{source}")
    return "\n".join(lines)


def as_svg(graph: Graph) -> str:
    """Return a picture: one column for each level, an arrow for each edge."""
    levels = graph.levels()
    rows: dict[int, int] = {}
    corners: dict[str, tuple[float, float]] = {}
    for step in graph.steps:
        level = levels[step]
        row = rows.setdefault(level, 0)
        rows[level] += 1
        corners[step] = (10 + level * (BOX_WIDTH + GAP_X), 10 + row * (BOX_HEIGHT + GAP_Y))
    width = 20 + (max(levels.values(), default=0) + 1) * (BOX_WIDTH + GAP_X) - GAP_X
    height = 20 + max(rows.values(), default=1) * (BOX_HEIGHT + GAP_Y) - GAP_Y
    arrows = "".join(_arrow(corners[before], corners[after]) for before, after in graph.edges)
    boxes = "".join(_box(step, corners[step]) for step in graph.steps)
    marker = (
        '<defs><marker id="a" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#64748b"/></marker></defs>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">{marker}{arrows}{boxes}</svg>\n'
    )


def _arrow(start: Sequence[float], end: Sequence[float]) -> str:
    x1, y1 = start[0] + BOX_WIDTH, start[1] + BOX_HEIGHT / 2
    x2, y2 = end[0], end[1] + BOX_HEIGHT / 2
    middle = (x1 + x2) / 2
    return (
        f'<path d="M{x1},{y1} C{middle},{y1} {middle},{y2} {x2},{y2}" fill="none" stroke="#64748b" '
        'marker-end="url(#a)"/>'
    )


def _box(label: str, corner: Sequence[float]) -> str:
    shown = label if len(label) <= 30 else f"{label[:14]}…{label[-15:]}"
    return (
        f'<g><title>{escape(label)}</title><rect x="{corner[0]}" y="{corner[1]}" width="{BOX_WIDTH}" '
        f'height="{BOX_HEIGHT}" rx="5" fill="#eff6ff" stroke="#2563eb"/><text x="{corner[0] + BOX_WIDTH / 2}" '
        f'y="{corner[1] + BOX_HEIGHT / 2 + 4}" text-anchor="middle">{escape(shown)}</text></g>'
    )
