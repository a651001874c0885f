"""Converts the text form of a PostgreSQL value to the Python value of its logical type. Pure; in the hot path.

The forms come from a session with ``DateStyle = ISO``, ``IntervalStyle = iso_8601``, ``bytea_output = hex``,
``TimeZone = UTC`` and UTF-8 as the client encoding (`SESSION_SETTINGS`). A time zone in a text is read all the same.

`penstock.event.column_types` defines the Python values. Infinite dates, timestamps and intervals are the floats `inf`
and `-inf`.

Source: PostgreSQL documentation, "Data Types" (output of each type) and "Array Input and Output Syntax".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any

from penstock.event.column_types import Interval
from penstock.timestamps import days_from_civil

SESSION_SETTINGS = {
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "iso_8601",
    "bytea_output": "hex",
    "TimeZone": "UTC",
    "extra_float_digits": "1",
    "client_encoding": "UTF8",
}
"""What a connection must set, so that values arrive in the forms that this module reads."""

Convert = Callable[[str], Any]

_SECOND = 1_000_000_000
_DAY = 86_400 * _SECOND
_EPOCH = datetime(1970, 1, 1)
_INFINITE = {"infinity": float("inf"), "-infinity": float("-inf")}


def boolean(text: str) -> bool:
    if text == "t":
        return True
    if text == "f":
        return False
    raise ValueError("not a boolean")


def bytea(text: str) -> bytes:
    """Read the hex form; the escape form is read too, because a role's settings may force it."""
    if text.startswith("\\x"):
        return bytes.fromhex(text[2:])
    return re.sub(rb"\\(\\|[0-7]{3})", _escaped_byte, text.encode())


def _escaped_byte(match: re.Match[bytes]) -> bytes:
    escape = match[1]
    return b"\\" if escape == b"\\" else bytes([int(escape, 8)])


def date(text: str) -> int | float:
    """Return days since 1970-01-01 in the proleptic Gregorian calendar; also years before 1 and after 9999."""
    if text in _INFINITE:
        return _INFINITE[text]
    era, text = _split_era(text)
    year, month, day = text.split("-")
    return days_from_civil(era(int(year)), int(month), int(day))


def _split_era(text: str) -> tuple[Callable[[int], int], str]:
    if text.endswith(" BC"):
        return (lambda year: 1 - year), text[:-3]  # 1 BC is the year 0
    return (lambda year: year), text


def time(text: str) -> int:
    """Return nanoseconds since midnight; 24:00:00 is a whole day."""
    hours, minutes, seconds = text.split(":")
    whole, _, fraction = seconds.partition(".")
    nanoseconds = int(fraction.ljust(9, "0")) if fraction else 0
    return (int(hours) * 3600 + int(minutes) * 60 + int(whole)) * _SECOND + nanoseconds


def timestamp(text: str) -> int | float:
    """Return nanoseconds since 1970-01-01T00:00:00 on a clock without a time zone."""
    # `datetime` reads the years 1 to 9999 in C, four times as fast as the code below, which reads all of them.
    try:
        since = datetime.fromisoformat(text) - _EPOCH
    except ValueError:
        return _any_timestamp(text)
    return (since.days * 86_400 + since.seconds) * _SECOND + since.microseconds * 1000


def _any_timestamp(text: str) -> int | float:
    if text in _INFINITE:
        return _INFINITE[text]
    era, text = _split_era(text)
    day, _, clock = text.partition(" ")
    year, month, day_of_month = day.split("-")
    return days_from_civil(era(int(year)), int(month), int(day_of_month)) * _DAY + time(clock)


_OFFSET = re.compile(r"([+-])(\d\d)(?::(\d\d))?(?::(\d\d))?( BC)?$")


def timestamp_with_time_zone(text: str) -> int | float:
    """Return nanoseconds since 1970-01-01T00:00:00Z."""
    if text in _INFINITE:
        return _INFINITE[text]
    if text.endswith("+00"):  # nearly all of them: the session's time zone is UTC
        return timestamp(text[:-3])
    match = _OFFSET.search(text)
    if match is None:
        raise ValueError("a timestamp without its time zone")
    sign, hours, minutes, seconds, era = match.groups()
    offset = int(hours) * 3600 + int(minutes or 0) * 60 + int(seconds or 0)
    local = timestamp(text[: match.start()] + (era or ""))
    return local - (offset if sign == "+" else -offset) * _SECOND


_INTERVAL = re.compile(
    r"P(?:(-?\d+)Y)?(?:(-?\d+)M)?(?:(-?\d+)W)?(?:(-?\d+)D)?"
    r"(?:T(?:(-?\d+)H)?(?:(-?\d+)M)?(?:(-?)(\d+)(?:\.(\d{1,9}))?S)?)?"
)


def interval(text: str) -> Interval | float:
    if text in _INFINITE:
        return _INFINITE[text]
    match = _INTERVAL.fullmatch(text)
    if match is None:
        raise ValueError("not an ISO 8601 interval")
    years, months, weeks, days, hours, minutes, sign, seconds, fraction = match.groups()
    # The sign stands before the seconds and belongs to their fraction too: -0.5 has no negative whole part.
    nanoseconds = int(seconds or 0) * _SECOND + int((fraction or "").ljust(9, "0"))
    return Interval(
        int(years or 0) * 12 + int(months or 0),
        int(weeks or 0) * 7 + int(days or 0),
        (int(hours or 0) * 3600 + int(minutes or 0) * 60) * _SECOND + (-nanoseconds if sign else nanoseconds),
    )


def decimal(text: str) -> Decimal:
    return Decimal(text)


# One item of an array: a quoted text, or an unquoted one, up to the next delimiter or bracket.
_ITEM = {
    delimiter: re.compile(rf'"((?:[^"\\]|\\.)*)"|([^{delimiter}{{}}"]+)', re.DOTALL) for delimiter in ",;"
}
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def array(element: Convert, delimiter: str = ",") -> Convert:
    """Return the reader of arrays of `element`. Dimensions are nested lists; lower bounds are dropped.

    `delimiter` depends on the element type: ";" for box, "," for every other type.
    """
    item = _ITEM[delimiter]

    def convert(text: str) -> list[Any]:
        at = text.index("=") + 1 if text.startswith("[") else 0  # [0:1]={…}: lower bounds that are not 1
        # Most arrays, in a third of the time.
        if (items := _plain_items(text, at, delimiter)) is not None:
            return [None if each == "NULL" else element(each) for each in items]
        values, end = _dimension(text, at, item, delimiter, element)
        if end != len(text):
            raise ValueError("text after an array")
        return values

    return convert


def _plain_items(text: str, at: int, delimiter: str) -> list[str] | None:
    """Return the items of an array of one dimension without quoted and escaped texts; None for any other text."""
    if '"' in text or "\\" in text or not text.startswith("{", at):
        return None
    if text.find("{", at + 1) >= 0 or text.find("}", at) != len(text) - 1:
        return None
    items = text[at + 1 : -1].split(delimiter)
    # An empty array looks like one empty item here.
    return None if "" in items else items


def _dimension(
    text: str, at: int, item: re.Pattern[str], delimiter: str, element: Convert
) -> tuple[list[Any], int]:
    """Read one pair of braces that starts at `at`; return its values and the place after it."""
    if text[at] != "{":
        raise ValueError("not an array")
    values: list[Any] = []
    value: Any
    at += 1
    # Invariant: at `at` an item begins, or the brace that ends the array.
    while text[at] != "}":
        if text[at] == "{":
            value, at = _dimension(text, at, item, delimiter, element)
        else:
            match = item.match(text, at)
            if match is None:
                raise ValueError("not an item of an array")
            quoted, plain = match.groups()
            if quoted is not None:
                value = element(_ESCAPED.sub(r"\1", quoted) if "\\" in quoted else quoted)
            else:
                value = None if plain == "NULL" else element(_ESCAPED.sub(r"\1", plain))
            at = match.end()
        values.append(value)
        if text[at] == delimiter:
            at += 1
        elif text[at] != "}":
            raise ValueError("two items of an array without a delimiter")
    return values, at + 1
