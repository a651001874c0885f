"""Values as text, shared by the formats: whole seconds, times of day and intervals. Pure."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import lru_cache

from penstock.event import Interval
from penstock.timestamps import NANOS, days_from_civil, format_timestamp, parse_timestamp

_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799
"""The years 1 to 9999, which `datetime` has."""
_TIME = re.compile(r"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?", re.ASCII)
_INTERVAL = re.compile(
    r"P(?:(-?\d+)Y)?(?:(-?\d+)M)?(?:(-?\d+)D)?(?:T(?:(-?\d+)H)?(?:(-?\d+)M)?(?:(-?)(\d+)(?:\.(\d{1,9}))?S)?)?",
    re.ASCII,
)


@lru_cache(maxsize=1024)  # changes of one time are neighbours
def whole_second(seconds: int) -> str:
    """Return seconds since the epoch as ``YYYY-MM-DDTHH:MM:SS``, in UTC; see `iso_date` for years of other lengths."""
    if _FIRST_SECOND <= seconds <= _LAST_SECOND:
        return format_timestamp(seconds * NANOS)[:19]
    days, rest = divmod(seconds, 86_400)
    return f"{iso_date(days)}T{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"


def iso_date(days: int) -> str:
    """Return days since 1970-01-01 as ``YYYY-MM-DD``.

    As in ISO 8601 and Java, the year 1 BC is 0000, 2 BC is -0001, and years after 9999 have a plus sign.

    Source: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", civil_from_days.
    """
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month_from_march = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month_from_march + 2) // 5 + 1
    month = month_from_march + 3 if month_from_march < 10 else month_from_march - 9
    year = era * 400 + year_of_era + (month <= 2)
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04d}-{month:02d}-{day:02d}"


_DATE = re.compile(r"([+-]?)(\d{4,})-(\d\d)-(\d\d)", re.ASCII)


def parse_iso_date(text: str) -> int:
    """Return the days since 1970-01-01 of `iso_date`.

    Raises:
        ValueError: another form.
    """
    match = _DATE.fullmatch(text)
    if match is None:
        raise ValueError("not a date of the form YYYY-MM-DD")
    year = int(match[2])
    return days_from_civil(-year if match[1] == "-" else year, int(match[3]), int(match[4]))


def parse_iso_timestamp(text: str) -> int:
    """Return the nanoseconds since the epoch of a timestamp in UTC, of any year: an `iso_date`, T, a time, Z.

    Raises:
        ValueError: another form.
    """
    if text[4:5] == "-":  # nearly all of them have a year of four digits, and years from 1 on are read in C
        with suppress(ValueError):
            return parse_timestamp(text)
    day, _, time = text.removesuffix("Z").partition("T")
    return parse_iso_date(day) * 86_400 * NANOS + parse_time(time)


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


def interval_text(value: Interval | float) -> str:
    """Return ISO 8601, each part that is not zero with its own sign: ``P1Y2M-3DT0H-2M-3.5S``.

    PostgreSQL 17 has infinite intervals, which are floats: ``infinity``, ``-infinity``.
    """
    if isinstance(value, float):
        return "infinity" if value > 0 else "-infinity"
    years, months = divmod(abs(value.months), 12)
    seconds, nanos = divmod(abs(value.nanoseconds), NANOS)
    later, time_later = value.months >= 0, value.nanoseconds >= 0
    hours, minutes = _signed(seconds // 3600, time_later), _signed(seconds // 60 % 60, time_later)
    rest = f"{seconds % 60}{fraction(nanos)}"
    minus = "" if time_later or rest == "0" else "-"
    return f"P{_signed(years, later)}Y{_signed(months, later)}M{value.days}DT{hours}H{minutes}M{minus}{rest}S"


def _signed(amount: int, positive: bool) -> int:
    return amount if positive else -amount


def parse_interval(text: str) -> Interval | float:
    """Return the interval of `interval_text`; parts may be left out.

    Raises:
        ValueError: another form.
    """
    if text.endswith("infinity"):
        return float(text)
    match = _INTERVAL.fullmatch(text)
    if match is None or len(text) < 3:
        raise ValueError("not an ISO 8601 duration")
    years, months, days, hours, minutes = (int(part or 0) for part in match.groups()[:5])
    nanoseconds = int(match[7] or 0) * NANOS + int((match[8] or "").ljust(9, "0"))
    time = (hours * 60 + minutes) * 60 * NANOS + (-nanoseconds if match[6] else nanoseconds)
    return Interval(years * 12 + months, days, time)
