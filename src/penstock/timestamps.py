"""Timestamps of change streams: integers, nanoseconds since 1970-01-01T00:00:00Z. Pure."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TypeAlias

from penstock.compat import UTC

NANOS = 1_000_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WHOLE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", re.ASCII)

Timelike: TypeAlias = datetime | str | int
"""A time: an aware datetime, RFC 3339 text ending in Z, or integer nanoseconds since the epoch."""


def parse_timestamp(text: str) -> int:
    """Return the nanoseconds since the epoch of an RFC 3339 timestamp in UTC (``…Z``), however many digits.

    Raises:
        ValueError: not of the form YYYY-MM-DDTHH:MM:SS[.fraction]Z.
    """
    digits = text[20:26]
    try:
        if len(text) == 27 and text[19] == "." and text[26] == "Z" and digits.isdigit() and digits.isascii():
            # Microseconds, the usual form, in less time.
            return _whole_seconds(text[:19]) * NANOS + int(digits) * 1000
        rest, fraction = text[19:], text[20:-1]
        if rest != "Z" and not (_is_fraction(fraction) and rest[0] == "." and rest[-1] == "Z"):
            raise ValueError
        return _whole_seconds(text[:19]) * NANOS + (int(fraction.ljust(9, "0")) if fraction else 0)
    except ValueError:
        raise ValueError(
            f"{text!r} is not an RFC 3339 timestamp in UTC such as 2026-01-31T12:00:00.123456789Z"
        ) from None


def format_timestamp(timestamp: int) -> str:
    """Return nanoseconds since the epoch as RFC 3339 in UTC with nine digits; the inverse of parsing."""
    seconds, nanos = divmod(timestamp, NANOS)
    whole = datetime.fromtimestamp(seconds, UTC).isoformat()[
        :19
    ]  # `strftime` does not fill up years below 1000
    return f"{whole}.{nanos:09d}Z"


def nanoseconds(name: str, moment: Timelike) -> int:
    """Return `moment` in nanoseconds since the epoch; `name` is what errors call it.

    Raises:
        ValueError: text that is not RFC 3339 in UTC, a datetime without a time zone, or anything else.
    """
    if isinstance(moment, int):
        return moment
    if isinstance(moment, str):
        try:
            return parse_timestamp(moment)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    if not isinstance(moment, datetime):
        raise ValueError(
            f"{name} is a {type(moment).__name__}: pass an aware datetime, RFC 3339 text in UTC, or integer "
            "nanoseconds since 1970"
        )
    if moment.tzinfo is None:
        raise ValueError(
            f"{name} {moment!r} has no time zone: pass an aware datetime, such as datetime.now(UTC)"
        )
    return round((moment - EPOCH) / timedelta(microseconds=1)) * 1000


def days_from_civil(year: int, month: int, day: int) -> int:
    """Return days since 1970-01-01 in the proleptic Gregorian calendar; the year 0 is 1 BC. Any year.

    Source: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", days_from_civil. A year starts in March here,
    so that the leap day is its last one.
    """
    if month <= 2:
        year -= 1
        month += 12
    era, year_of_era = divmod(year, 400)
    day_of_year = (153 * (month - 3) + 2) // 5 + day - 1
    return era * 146_097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719_468


def _is_fraction(text: str) -> bool:
    """Return whether the text is 1 to 9 digits; `int` would take a sign, spaces and underscores too."""
    return len(text) <= 9 and text.isdigit() and text.isascii()


@lru_cache(maxsize=256)
def _whole_seconds(text: str) -> int:
    if not _WHOLE.fullmatch(text):  # `fromisoformat` knows more forms, weeks among them
        raise ValueError
    return int((datetime.fromisoformat(text).replace(tzinfo=UTC) - EPOCH).total_seconds())
