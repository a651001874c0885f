"""INTERVALs of BigQuery."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.io.bigquery.interval import interval_seconds, interval_text


@given(st.integers(0, 86_400))
def test_seconds_come_back(seconds: int) -> None:
    assert interval_seconds(interval_text(seconds)) == seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, 0),
        ("", 0),
        ("0-0 0 0:15:0", 900),
        ("0-0 1 0:0:0.5", 86_400.5),
        ("1-1 0 0:0:0", 397 * 86_400),
        ("-0-1 0 0:0:0", math.inf),
        ("0-0 -1 0:0:0", math.inf),
        ("0-0 0 -0:0:1", math.inf),
        ("15 minutes", math.inf),
    ],
)
def test_texts_of_the_service(text: str | None, seconds: float) -> None:
    assert interval_seconds(text) == seconds
