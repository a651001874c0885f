"""When a window expires: nothing of it is waited for any more, and all that is known of it is forgotten."""

from __future__ import annotations

from typing import Any

from apache_beam.utils.timestamp import MAX_TIMESTAMP


def expiry_us(window: Any, lateness_us: int) -> int:
    """The watermark, in µs, at which a window expires: past its end and the allowed lateness, or where time is over."""
    return int(min(window.max_timestamp().micros + lateness_us + 1, MAX_TIMESTAMP.micros))
