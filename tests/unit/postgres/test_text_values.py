"""Text forms of PostgreSQL's values become Python values, and nothing else passes."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.compat import UTC
from penstock.event import Interval
from penstock.io.postgres import text_values

SECOND = 1_000_000_000
INFINITY = float("inf")


@given(st.dates())
def test_a_date_is_its_days_since_1970(day):
    assert text_values.date(day.isoformat()) == day.toordinal() - date(1970, 1, 1).toordinal()


@given(st.dates(), st.integers(1, 24))
def test_the_calendar_repeats_after_400_years(day, cycles):
    text = f"{day.year + 400 * cycles}-{day.month:02}-{day.day:02}"
    assert text_values.date(text) == text_values.date(day.isoformat()) + 146_097 * cycles


@given(st.datetimes())
def test_a_timestamp_is_its_nanoseconds_since_1970(moment):
    text = moment.isoformat(sep=" ")
    micros = (moment - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    assert text_values.timestamp(text) == micros * 1000
    assert text_values.timestamp_with_time_zone(f"{text}+00") == micros * 1000
    # The reader of every year agrees with that of the years 1 to 9999.
    assert text_values._any_timestamp(text) == micros * 1000


@given(st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1)), st.integers(-50_000, 50_000))
def test_the_time_zone_of_a_timestamp_counts(moment, offset):
    sign, seconds = "-" if offset < 0 else "+", abs(offset)
    zone = f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    instant = (moment.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    read = text_values.timestamp_with_time_zone(f"{moment.isoformat(sep=' ')}{zone}")
    assert read == instant * 1000 - offset * SECOND


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (text_values.date, "infinity", INFINITY),
        (text_values.date, "0001-12-31 BC", -719_163),
        (text_values.timestamp, "-infinity", -INFINITY),
        (text_values.timestamp, "0001-12-31 23:59:59.5 BC", -719_163 * 86_400 * SECOND + 86_399_500_000_000),
        (text_values.timestamp_with_time_zone, "12000-01-01 00:00:00+00", 316_516_204_800 * SECOND),
        (text_values.time, "00:00:00.000001", 1000),
        (text_values.interval, "PT-0.5S", Interval(0, 0, -500_000_000)),
        (text_values.interval, "P1Y2M3DT4H5M6.789S", Interval(14, 3, 14_706_789_000_000)),
        (text_values.interval, "PT0S", Interval()),
        (text_values.interval, "infinity", INFINITY),
        (text_values.decimal, "1.50", Decimal("1.50")),
        (text_values.bytea, "\\x", b""),
        (text_values.bytea, "a\\\\b\\000", b"a\\b\0"),
        (text_values.array(int), "{}", []),
        (text_values.array(int), "[0:1]={1,2}", [1, 2]),
        (text_values.array(int), "[-1:0][2:3]={{1,2},{NULL,4}}", [[1, 2], [None, 4]]),
        (text_values.array(str), '{"{}",a b,"NULL"}', ["{}", "a b", "NULL"]),
    ],
)
def test_each_text_form_of_the_server_is_read(read, text, value):
    result = read(text)
    assert (result, str(result)) == (value, str(value))


@pytest.mark.slow
@given(st.lists(st.none() | st.text(max_size=6), max_size=5))
def test_an_array_of_texts_is_read_back(items):
    quoted = [
        '"' + item.replace("\\", r"\\").replace('"', r"\"") + '"' if item is not None else "NULL"
        for item in items
    ]
    assert text_values.array(str)("{" + ",".join(quoted) + "}") == items


@given(st.lists(st.none() | st.integers(), max_size=5), st.booleans())
def test_an_array_of_numbers_is_read_back(items, has_bounds):
    plain = ",".join("NULL" if item is None else str(item) for item in items)
    bounds = f"[0:{len(items) - 1}]=" if has_bounds and items else ""
    assert text_values.array(int)(f"{bounds}{{{plain}}}") == items


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (text_values.boolean, "true"),
        (text_values.interval, "1 day"),
        (text_values.date, "yesterday"),
        (text_values.timestamp_with_time_zone, "2024-01-01 00:00:00"),
        (text_values.array(int), "{1"),
        (text_values.array(int), "{1}2"),
        (text_values.array(int), "{1}2}"),
        (text_values.array(str), "{1,,2}"),
        (text_values.array(str), "{,}"),
        (text_values.array(int), "1"),
        (text_values.array(int), '{"1"2}'),
    ],
)
def test_a_text_in_another_form_is_an_error(read, text):
    with pytest.raises((ValueError, IndexError)):
        read(text)
