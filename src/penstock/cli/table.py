"""A table of texts for a terminal. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def as_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[tuple[str, Sequence[str]]]
) -> str:
    """Return lines with aligned columns, and below them a list for each of the `notes` (heading, texts) with a text.

    Each row has as many texts as the header; an empty one is shown as ``-``.
    """
    lines = [list(header), *([text or "-" for text in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = [
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    for heading, texts in notes:
        if texts:
            table += ["", heading, *("  - " + text.replace("\n", "\n    ") for text in texts)]
    return "\n".join(table)
