"""A span of time as an option of the command line: `90s`, `10m`, `2h`, or a number of seconds."""

from __future__ import annotations

import re
from typing import Any

import click

_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")


class Span(click.ParamType[float]):
    """Reads a span as seconds."""

    name = "span"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds, or refuse the text."""
        if isinstance(value, float):
            return value
        match = _SPAN.fullmatch(value)
        if not match:
            self.fail(f"{value!r} is no span of time; write it as 90s, 10m or 2h", param, ctx)
        return float(match[1]) * _SECONDS[match[2]]
