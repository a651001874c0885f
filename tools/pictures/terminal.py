"""An asciicast (version 2: https://docs.asciinema.org/manual/asciicast/v2/) as an animated SVG, without any script.

Only plain text is understood, which is all that `penstock quickstart` prints. Each line appears when it was printed,
several times as fast, and the window scrolls. Readers who prefer no motion see the end.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from html import escape

from tools.pictures.style import colours

PLAY_SECONDS = 13.0
"""How long the picture takes to the end of the recording, about."""

END_SECONDS = 8.0
"""How long the end stays before the picture begins again."""

ROWS, COLUMNS = 32, 112
_CHARACTER, _LINE, _MARGIN, _HEAD = 7.83, 18, 14, 30
_COMMAND = "$ penstock quickstart"


@dataclass(frozen=True, slots=True)
class Line:
    """A line and when it appeared, in seconds."""

    at: float
    text: str


def lines_of(cast: str) -> list[Line]:
    """Return the lines of a recording, with the command that was typed as the first one."""
    lines, rest = [Line(0.0, _COMMAND)], ""
    for event in map(json.loads, cast.splitlines()[1:]):
        at, kind, text = event
        if kind == "o":
            *whole, rest = (rest + text.replace("\r", "")).split("\n")
            lines += [Line(at, each) for each in whole]
    return lines


def draw(cast: str) -> str:
    """Return the picture of a recording."""
    lines = lines_of(cast)
    speed = max(1, round(lines[-1].at / PLAY_SECONDS))
    lines = [Line(line.at / speed, line.text) for line in lines]
    length = lines[-1].at + END_SECONDS
    width, height = round(COLUMNS * _CHARACTER) + 2 * _MARGIN, _HEAD + ROWS * _LINE + 2 * _MARGIN
    hidden = max(0, len(lines) - ROWS)
    style = (
        f"{colours()}.w{{fill:var(--page);stroke:var(--line)}}.h{{font:13px sans-serif;fill:var(--dim)}}"
        "text.c{font:13px ui-monospace,Menlo,Consolas,monospace;fill:var(--text);white-space:pre}"
        "text.g{fill:var(--good);font-weight:700}text.b{fill:var(--bad)}text.d{fill:var(--dim)}"
        f".s{{transform:translateY({-hidden * _LINE}px)}}"
        f"{_appearing(lines, length)}{_scrolling(lines, length)}"
        "@media (prefers-reduced-motion:reduce){.s,.s *{animation:none!important}}"
    )
    head = "recorded from a real run" + (f", shown {speed} times as fast" if speed > 1 else "")
    rows = "\n".join(
        f'<text xml:space="preserve" class="c {_kind(line.text)}" y="{(row + 1) * _LINE}" '
        f'style="animation-name:a{row}">{escape(line.text[:COLUMNS], quote=False)}</text>'
        for row, line in enumerate(lines)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-labelledby="t"><title id="t">{_title(lines)}</title><style>{style}</style>'
        f'<rect class="w" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"/>'
        f'<text class="h" x="{_MARGIN}" y="21">{head}</text>'
        f'<svg x="{_MARGIN}" y="{_HEAD}" width="{width - 2 * _MARGIN}" height="{ROWS * _LINE + _MARGIN}">'
        f'<g class="s">{rows}</g></svg></svg>\n'
    )


def _title(lines: list[Line]) -> str:
    result = next(line.text.strip() for line in lines if "lost " in line.text)
    return escape(
        f"penstock quickstart: a pipeline is killed with kill -9 and started again. Result: {result}"
    )


def _kind(text: str) -> str:
    words = text.strip()
    if words.startswith("lost "):
        return "g"
    if "kill -9" in words:
        return "b"
    return "d" if words.startswith("$") and text != _COMMAND else ""


def _appearing(lines: list[Line], length: float) -> str:
    frames = "".join(
        f"@keyframes a{row}{{0%{{opacity:0}}{100 * line.at / length:.2f}%{{opacity:1}}}}"
        for row, line in enumerate(lines)
    )
    return f".c{{animation:{length:.2f}s step-end infinite}}{frames}"


def _scrolling(lines: list[Line], length: float) -> str:
    steps = "".join(
        f"{100 * line.at / length:.2f}%{{transform:translateY({-(row + 1 - ROWS) * _LINE}px)}}"
        for row, line in enumerate(lines)
        if row >= ROWS
    )
    return f"@keyframes scroll{{0%{{transform:none}}{steps}}}.s{{animation:scroll {length:.2f}s step-end infinite}}"
