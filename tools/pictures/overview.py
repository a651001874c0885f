"""The picture of how it works: sources, frontier, epochs, commit, sinks."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from itertools import pairwise

from tools.pictures.style import colours

WIDTH, HEIGHT = 980, 330
_TOP, _BOTTOM, _CAPTION = 52, 214, 240
_COLUMNS = {"Sources": 10, "Frontier": 194, "Epochs": 402, "Commit": 610, "Sinks": 818}
_BOX = 152
_SOURCES = ("Spanner", "Bigtable", "PostgreSQL", "YDB")
_SINKS = (
    "files, object stores",
    "Delta, Iceberg",
    "BigQuery, Spark",
    "Kafka, Pub/Sub",
    "SQL, Spanner, Bigtable",
)
_PARTITIONS = ((0, 60, 0.3), (70, 146, 0.0), (70, 106, 0.55), (0, 106, 1.0), (116, 140, 0.78))
"""Begin, end, and height: the first two from the left edge, the height as a share from the top."""

_CHILDREN = ((60, 0.3, 0.0), (60, 0.3, 0.55), (106, 0.55, 0.78), (106, 1.0, 0.78))
"""End of the parent, its height, and the height of its child."""

_CAPTIONS = {
    "Sources": ("change streams, log,", "changefeeds; nothing is", "written to them"),
    "Frontier": (
        "how far each partition is read;",
        "a child waits for all its parents;",
        "the minimum is the watermark",
    ),
    "Epochs": ("half a second of changes:", "read, transformed by Beam on", "Spark, staged but not visible"),
    "Commit": ("one atomic record: positions,", "state and output of the epoch,", "all of it or nothing"),
    "Sinks": ("each change once, in commit", "order per key; into Pub/Sub", "with ids that tell repeats"),
}
_TITLE = (
    "Changes flow from sources over the frontier, epochs and an atomic commit to sinks. After kill -9 the pipeline "
    "continues at the last commit."
)


def draw() -> str:
    """Return the picture as SVG."""
    style = (
        f"{colours()}text{{font-family:sans-serif;font-size:13px;fill:var(--text)}}"
        ".title{font-size:16px;font-weight:600}.dim{fill:var(--dim);font-size:12px}"
        ".box{fill:var(--box);stroke:var(--line)}.line{fill:none;stroke:var(--line);stroke-width:1.5}"
        ".strong{fill:none;stroke:var(--strong);stroke-width:2.5}.again{stroke-dasharray:6 5}"
        ".dot{fill:var(--strong)}.page{fill:var(--page)}"
    )
    marker = (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="context-stroke"/></marker></defs>'
    )
    parts = [
        *_columns(),
        *_boxes("Sources", _SOURCES),
        *_boxes("Sinks", _SINKS),
        *_lineage(),
        *_epochs(),
        *_record(),
    ]
    parts += [*_arrows()]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" aria-labelledby="t"><title id="t">{_TITLE}</title><style>{style}</style>{marker}'
        f'<rect class="page" width="{WIDTH}" height="{HEIGHT}" rx="8"/>' + "\n".join(parts) + "</svg>\n"
    )


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="middle" class="{kind}">{escape(text)}</text>'


def _columns() -> Iterator[str]:
    for name, left in _COLUMNS.items():
        middle = left + _BOX / 2
        yield _text(middle, 32, name, "title")
        for row, words in enumerate(_CAPTIONS[name]):
            yield _text(middle, _CAPTION + 16 * row, words, "dim")


def _boxes(column: str, names: tuple[str, ...]) -> Iterator[str]:
    step = (_BOTTOM - _TOP + 8) / len(names)
    for row, name in enumerate(names):
        top = _TOP + row * step
        yield f'<rect class="box" x="{_COLUMNS[column]}" y="{top:g}" width="{_BOX}" height="{step - 8:g}" rx="5"/>'
        yield _text(_COLUMNS[column] + _BOX / 2, top + (step - 8) / 2 + 4, name)


def _lineage() -> Iterator[str]:
    """Partitions from left to right: one splits into two, of which one merges with a third."""
    x = _COLUMNS["Frontier"]

    def at(share: float) -> float:
        return _TOP + 14 + share * (_BOTTOM - _TOP - 28)

    for begin, end, share in _PARTITIONS:
        yield f'<path class="line" d="M{x + begin} {at(share):g}H{x + end}"/>'
        yield f'<circle class="dot" cx="{x + end}" cy="{at(share):g}" r="3.5"/>'
    for begin, before, after in _CHILDREN:
        yield f'<path class="line" d="M{x + begin} {at(before):g}L{x + begin + 10} {at(after):g}"/>'
    yield f'<path class="strong again" d="M{x + 132} {_TOP - 4}V{_BOTTOM + 4}"/>'


def _epochs() -> Iterator[str]:
    step = (_BOTTOM - _TOP + 8) / 3
    for row, name in enumerate(("epoch 41: visible", "epoch 42: visible", "epoch 43: staged")):
        top, left = _TOP + row * step, _COLUMNS["Epochs"]
        again = " again" if row == 2 else ""
        yield f'<rect class="box{again}" x="{left}" y="{top:g}" width="{_BOX}" height="{step - 8:g}" rx="5"/>'
        yield _text(left + _BOX / 2, top + (step - 8) / 2 + 4, name)


def _record() -> Iterator[str]:
    left, middle = _COLUMNS["Commit"], (_TOP + _BOTTOM) / 2
    yield f'<rect class="box" x="{left}" y="{middle - 48:g}" width="{_BOX}" height="96" rx="5"/>'
    yield f'<rect class="strong" x="{left}" y="{middle - 48:g}" width="{_BOX}" height="96" rx="5"/>'
    for row, words in enumerate(("record 42", "positions, state,", "names of the output")):
        yield _text(left + _BOX / 2, middle - 16 + 20 * row, words)


def _arrows() -> Iterator[str]:
    lefts, middle = list(_COLUMNS.values()), (_TOP + _BOTTOM) / 2
    for before, after in pairwise(lefts):
        yield f'<path class="line" marker-end="url(#tip)" d="M{before + _BOX + 6} {middle:g}H{after - 6}"/>'
    commit, frontier = (_COLUMNS[name] + _BOX / 2 for name in ("Commit", "Frontier"))
    low, high = HEIGHT - 18, _CAPTION + 42
    path = f"M{commit + 20:g} {high}V{low}H{frontier:g}V{high}"
    yield f'<path class="strong again" marker-end="url(#tip)" d="{path}"/>'
    yield f'<rect class="page" x="{(commit + frontier) / 2 - 150:g}" y="{low - 10}" width="300" height="20"/>'
    yield _text((commit + frontier) / 2, low + 4, "after kill -9: the same command continues here")
