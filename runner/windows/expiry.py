"""Expiry of a window: its end plus the allowed lateness. Later elements are dropped and its state is deleted. Pure."""

from __future__ import annotations

from typing import Any

from apache_beam.utils.timestamp import MAX_TIMESTAMP


def expiry_us(window: Any, lateness_us: int) -> int:
    """Return the watermark, in µs, at which a window expires: 1 µs after its end plus lateness, within Beam's time."""
    return int(min(window.max_timestamp().micros + lateness_us + 1, MAX_TIMESTAMP.micros))
