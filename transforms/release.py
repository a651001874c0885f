"""When a buffered element may be emitted: the rules that all transforms with a buffer share.

Beam's rules behind them:

- A watermark W promises that no element with a timestamp before W will come. Elements at W may still come.
- Timers cross the runner's interface in whole milliseconds, rounded down (`TimestampCoderImpl`, Beam 2.77). A timer
  that is set to a microsecond would fire up to a millisecond too early.
- A timer in event time holds the output watermark at the time it is set to. Beam's Python SDK has no other hold. What
  the timer emits must not be earlier, or it is late, and a later step may drop it without an error.

So an element is emitted at the first whole millisecond after its timestamp, and it gets that timestamp.
"""

from __future__ import annotations

from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindow, GlobalWindows
from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp

from penstock.errors import UsageError

MILLISECOND = 1000
"""In microseconds."""

START = MIN_TIMESTAMP
"""The lower end of all ranges of a buffer."""

# Beam fires timers after this time only when the window ends, so it is the last time that a timer can have.
END = Timestamp(micros=GlobalWindow().max_timestamp().micros // MILLISECOND * MILLISECOND)


def release_time(timestamp: Timestamp, delay_us: int = 0) -> Timestamp:
    """Return the first whole millisecond after `timestamp` plus `delay_us`, and no later than the end of time.

    When the watermark reaches it, every element with a timestamp of at most `timestamp` has come.
    """
    micros = timestamp.micros + delay_us
    return min(Timestamp(micros=(micros // MILLISECOND + 1) * MILLISECOND), END)


def released_until(fired: Timestamp) -> Timestamp:
    """Return the exclusive end of the element timestamps that a timer which fired at `fired` releases."""
    # At the end of time all elements have come, also those with timestamps behind the last timer.
    return fired if fired < END else MAX_TIMESTAMP


def take(buffer: Any, until: Timestamp) -> list[Any]:
    """Remove the values before `until` from a state of class OrderedListState, and return them."""
    values = [value for _, value in buffer.read_range(START, until)]
    buffer.clear_range(START, until)
    return values


def require_global_window(transform: beam.PTransform, pcoll: beam.PCollection[Any]) -> None:
    """Refuse windows before a transform that keeps state.

    State and timers end with their window: events of one key in two windows would not be ordered with each other,
    and a timer behind the end of the window would emit too late.

    Raises:
        UsageError: the input is not in the global window.
    """
    windows = pcoll.windowing.windowfn
    if not isinstance(windows, GlobalWindows):
        raise UsageError(
            f"{type(transform).__name__} needs its input in the global window, not in {type(windows).__name__}: "
            "apply WindowInto after it"
        )
