"""An INTERVAL as the REST API of BigQuery writes it: ``years-months days hours:minutes:seconds``. Pure."""

from __future__ import annotations

import math
import re

_TEXT = re.compile(r"(-?)(\d+)-(\d+) (-?\d+) (-?)(\d+):(\d+):(\d+(?:\.\d+)?)")


def interval_text(seconds: int) -> str:
    """Return an INTERVAL of seconds."""
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    return f"0-0 0 {hours}:{minute}:{second}"


def interval_seconds(text: str | None) -> float:
    """Return the seconds of an INTERVAL; None or no text: 0. Months and years count as their longest ones.

    A text that is no INTERVAL, or that has a negative part, is infinite, so that no limit holds for it.
    """
    if not text:
        return 0.0
    match = _TEXT.fullmatch(text)
    if match is None or "-" in (match[1], match[5]) or match[4].startswith("-"):
        return math.inf
    years, months, days, hours, minutes = (int(match[group]) for group in (2, 3, 4, 6, 7))
    return (years * 366 + months * 31 + days) * 86_400.0 + hours * 3600 + minutes * 60 + float(match[8])
