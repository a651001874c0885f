"""Decides when a buffered element may be emitted: the rules and the `DoFn` that all transforms with a buffer share.

Beam's rules behind them:

- A watermark W promises that no element with a timestamp before W will come. Elements at W may still come.
- Timers cross the runner's interface in whole milliseconds, rounded down (`TimestampCoderImpl`, Beam 2.77). A timer
  that is set to a microsecond would fire up to a millisecond too early.
- A timer in event time holds the output watermark at the time it is set to. Beam's Python SDK has no other hold. What
  the timer emits must not be earlier, or it is late, and a later step may drop it without an error.

So an element is emitted at the first whole millisecond after its timestamp, and it gets that timestamp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.coders import BytesCoder, Coder
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import OrderedListStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import GlobalWindow, GlobalWindows, TimestampedValue
from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp

from penstock.errors import UsageError

# Bytes, because Beam 2.77 merges the values of earlier bundles with this bundle's values by (timestamp, value), and so
# compares two values of one time (`SynchronousOrderedListRuntimeState.read_range`). Events cannot be compared.
BUFFER = OrderedListStateSpec("buffer", BytesCoder())
"""The state of all buffers: encoded values by their timestamps. Values with one timestamp are in no defined order."""

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
    # Plus one: an element that arrives when the watermark equals its timestamp may still be followed by others
    # with that timestamp.
    return min(Timestamp(micros=(micros // MILLISECOND + 1) * MILLISECOND), END)


def hold(value: bytes, at: Timestamp, buffer: Any, release: Any) -> None:
    """Add a value with timestamp `at` to the state `BUFFER`, and set the timer that releases it."""
    # The timestamp is the order of the state; it is the element's, not the event's, because only the watermark
    # of elements is known.
    buffer.add((at, value))
    due = release_time(at)
    # One timer per millisecond, by its tag. A single timer would need the next due time as a second state.
    release.set(due, dynamic_timer_tag=str(due.micros))


def released(buffer: Any, fired: Timestamp) -> list[bytes]:
    """Remove the values that a timer which fired at `fired` releases from the state `BUFFER`, and return them."""
    # At the end of time all elements have arrived, including those with timestamps after the last timer.
    until = fired if fired < END else MAX_TIMESTAMP
    values = [value for _, value in buffer.read_range(START, until)]
    # Removed in the same step, so a bundle that is repeated releases them again from the state before it.
    buffer.clear_range(START, until)
    return values


class ReleaseInOrderFn(beam.DoFn):  # type: ignore[misc, unused-ignore]
    """(Key, value) to value: emits the values of a key that the watermark has passed, each time in order.

    Values that one timer releases are sorted with `sort`, and values of later timers follow them. For transforms that
    have no other state: a timer callback cannot be overridden to read more state, because Beam compares the callback
    with the one that was registered (`validate_stateful_dofn`, Beam 2.77).
    """

    RELEASE = TimerSpec("release", TimeDomain.WATERMARK)

    def __init__(self, coder: Coder, sort: Callable[[Iterable[Any]], list[Any]]) -> None:
        super().__init__()
        self._coder, self._sort = coder, sort

    def process(
        self,
        element: tuple[bytes, Any],
        at: Any = beam.DoFn.TimestampParam,
        buffer: Any = beam.DoFn.StateParam(BUFFER),
        release: Any = beam.DoFn.TimerParam(RELEASE),
    ) -> None:
        hold(self._coder.encode(element[1]), at, buffer, release)

    @on_timer(RELEASE)
    def emit(
        self, fired: Any = beam.DoFn.TimestampParam, buffer: Any = beam.DoFn.StateParam(BUFFER)
    ) -> Iterator[TimestampedValue]:
        for value in self._sort(map(self._coder.decode, released(buffer, fired))):
            yield TimestampedValue(value, fired)


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
