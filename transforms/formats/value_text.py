"""Values as text, shared by the formats: whole seconds, times of day and intervals. Pure."""

from __future__ import annotations

import re
from functools import lru_cache

from penstock.event import Interval
from penstock.timestamps import NANOS, format_timestamp

_TIME = re.compile(r"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?", re.ASCII)
_INTERVAL = re.compile(
    r"P(?:(-?\d+)Y)?(?:(-?\d+)M)?(?:(-?\d+)D)?(?:T(?:(-?\d+)H)?(?:(-?\d+)M)?(?:(-?)(\d+)(?:\.(\d{1,9}))?S)?)?",
    re.ASCII,
)


@lru_cache(maxsize=1024)  # changes of one time are neighbours
def whole_second(seconds: int) -> str:
    """Return seconds since the epoch as ``YYYY-MM-DDTHH:MM:SS``, in UTC."""
    return format_timestamp(seconds * NANOS)[:19]


def fraction(nanos: int) -> str:
    """Return a point and the digits that are needed, or nothing for a whole second."""
    return f".{nanos:09d}".rstrip("0") if nanos else ""


def time_text(value: int) -> str:
    """Return nanoseconds since midnight as ``HH:MM:SS[.fraction]``."""
    seconds, nanos = divmod(value, NANOS)
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{fraction(nanos)}"


def parse_time(text: str) -> int:
    """Return the nanoseconds since midnight of `time_text`.

    Raises:
        ValueError: another form.
    """
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError("not a time of the form HH:MM:SS")
    hours, minutes, seconds = int(match[1]), int(match[2]), int(match[3])
    return ((hours * 60 + minutes) * 60 + seconds) * NANOS + int((match[4] or "").ljust(9, "0"))


def interval_text(value: Interval) -> str:
    """Return ISO 8601, each part with its own sign: ``P1Y2M-3DT-1H-2M-3.5S``."""
    years, months = divmod(abs(value.months), 12)
    sign = "-" if value.months < 0 else ""
    seconds, nanos = divmod(abs(value.nanoseconds), NANOS)
    minus = "-" if value.nanoseconds < 0 else ""
    hours, minutes, rest = seconds // 3600, seconds // 60 % 60, f"{seconds % 60}{fraction(nanos)}"
    day_part = f"P{sign}{years}Y{sign}{months}M{value.days}D"
    return f"{day_part}T{minus}{hours}H{minus}{minutes}M{minus}{rest}S"


def parse_interval(text: str) -> Interval:
    """Return the interval of `interval_text`; parts may be left out.

    Raises:
        ValueError: another form.
    """
    match = _INTERVAL.fullmatch(text)
    if match is None or len(text) < 3:
        raise ValueError("not an ISO 8601 duration")
    years, months, days, hours, minutes = (int(part or 0) for part in match.groups()[:5])
    nanoseconds = int(match[7] or 0) * NANOS + int((match[8] or "").ljust(9, "0"))
    time = (hours * 60 + minutes) * 60 * NANOS + (-nanoseconds if match[6] else nanoseconds)
    return Interval(years * 12 + months, days, time)
