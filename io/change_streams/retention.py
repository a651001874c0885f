"""How long a service keeps the changes of a stream, as a measurement. Pure.

A pipeline that falls behind by more than this loses changes, so alerts compare it with the age of the watermark.
"""

from __future__ import annotations

from penstock.measurement import Measurement


def retention(stream: str, seconds: float) -> list[Measurement]:
    """Return the measurement of a stream, named without secrets; none if the service does not say it (0)."""
    if not seconds:
        return []
    text = "How long the service keeps changes of the stream."
    return [Measurement("penstock_retention_seconds", seconds, text, "s", labels=(("stream", stream),))]
