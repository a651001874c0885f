"""Colours of the pictures for light and dark pages. The browser chooses, also where a page shows one as an image."""

from __future__ import annotations

LIGHT = {
    "page": "#ffffff", "box": "#eef1f7", "line": "#5b6b8c", "text": "#1b2333", "dim": "#56627a", "strong": "#3949ab",
    "good": "#1b7f3b", "bad": "#b3261e",
}  # fmt: skip
DARK = {
    "page": "#0d1117", "box": "#1b2333", "line": "#8b9bbd", "text": "#e8edf7", "dim": "#a3b0c9", "strong": "#9fa8ff",
    "good": "#5fd38a", "bad": "#ff8a80",
}  # fmt: skip


def colours() -> str:
    """Return CSS that sets each colour as a variable, `var(--text)` for example."""
    light, dark = (_variables(each) for each in (LIGHT, DARK))
    return f"svg{{{light}}}@media (prefers-color-scheme:dark){{svg{{{dark}}}}}"


def _variables(values: dict[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in values.items())
