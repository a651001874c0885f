"""A moment as an option of the command line: an RFC 3339 time in UTC, or ``now``."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from penstock.compat import UTC
from penstock.timestamps import EPOCH, parse_timestamp


class Moment(click.ParamType[datetime]):
    """Reads an RFC 3339 time in UTC, or ``now``."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Return the time, or refuse the text."""
        if isinstance(value, datetime):
            return value
        if value == "now":
            return datetime.now(UTC)
        try:
            micros = -(-parse_timestamp(value) // 1000)  # rounded up: never complete too early
            return EPOCH + micros * (EPOCH.resolution)
        except ValueError as error:
            self.fail(f"{error}, or now", param, ctx)
