"""Moments: integers, nanoseconds since 1970-01-01T00:00:00Z, and their text in RFC 3339.

Source: google/spanner/v1/type.proto, TIMESTAMP: RFC 3339 in UTC with a Z. How many digits the fraction has is
not documented; trailing zeros are left out here.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from functools import lru_cache

SECOND = 1_000_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_TEXT = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|z|[+-]\d\d:?\d\d)", re.ASCII)


def parse_timestamp(text: str) -> int:
    """Return the moment that a text says.

    Raises:
        ValueError: it is not RFC 3339.
    """
    found = _TEXT.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not RFC 3339")
    zone = "+00:00" if found[4] in "Zz" else found[4]
    whole = (datetime.fromisoformat(f"{found[1]}T{found[2]}{zone}") - _EPOCH) // timedelta(seconds=1)
    return whole * SECOND + int((found[3] or "").ljust(9, "0"))


def format_timestamp(timestamp: int) -> str:
    """Return the RFC 3339 text of a moment, in UTC."""
    seconds, nanos = divmod(timestamp, SECOND)
    fraction = f".{nanos:09d}".rstrip("0").rstrip(".")
    return f"{_whole(seconds)}{fraction}Z"


@lru_cache(maxsize=256)
def _whole(seconds: int) -> str:
    moment = _EPOCH + timedelta(seconds=seconds)
    return moment.isoformat()[:19]
