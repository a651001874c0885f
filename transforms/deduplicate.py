"""`Deduplicate`: drop events that were already seen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import msgspec
from apache_beam.coders import BooleanCoder
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec, TimerSpec, on_timer

from penstock.errors import UsageError
from penstock.event import ChangeEvent
from penstock.event.sharding import key_bytes
from penstock.transforms.element_transform import StatefulTransform
from penstock.transforms.release import release_time, require_global_window


class Deduplicate(StatefulTransform):
    """Drops an event if one with the same source, table, key and version came before it.

        events | Deduplicate(horizon_seconds=3600)

    - Order: none; apply `OrderByKey` after it. The first delivery of an event is emitted at once, with its timestamp.
    - Repeats: a bundle that runs again after a crash gives the same output. A repeat that comes after the horizon is
      emitted again.
    - Watermark: not held back.
    - State: a mark for each event. It is removed when the watermark is `horizon_seconds` after the event, so it grows
      with the number of events in the horizon.

    `with_exception_handling` sends an event whose key cannot be encoded to a second output.
    """

    def __init__(self, *, horizon_seconds: float) -> None:
        super().__init__()
        if not horizon_seconds > 0:
            raise UsageError(f"Deduplicate needs a horizon of more than 0 seconds, not {horizon_seconds}")
        self._horizon_seconds = horizon_seconds

    def expand(self, pcoll: beam.PCollection[ChangeEvent]) -> Any:
        """Apply the transform to events in the global window; with exception handling it has two outputs."""
        require_global_window(self, pcoll)
        # The identity is the key of the state, so Beam's own grouping finds the repeat: no set of versions is
        # kept per row.
        identified = beam.Map(_with_identity)
        keyed, failed = self._enter(pcoll, "IdentityOfEvent", identified, tuple[bytes, ChangeEvent])
        mark = _DeduplicateFn(round(self._horizon_seconds * 1_000_000))
        first = keyed | "DeduplicateFn" >> beam.ParDo(mark).with_output_types(ChangeEvent)
        return (first, *failed) if failed else first

    def display_data(self) -> dict[str, Any]:
        return {"horizon_seconds": self._horizon_seconds}


def identity(event: ChangeEvent) -> bytes:
    """Return bytes that are equal for two deliveries of one event, and different for all other events."""
    # The key has source and table. The version alone is not enough: one transaction changes many rows.
    return key_bytes(event) + msgspec.msgpack.encode(event.version)


def _with_identity(event: ChangeEvent) -> tuple[bytes, ChangeEvent]:
    return identity(event), event


class _DeduplicateFn(beam.DoFn):  # type: ignore[misc, unused-ignore]
    SEEN = ReadModifyWriteStateSpec("seen", BooleanCoder())
    FORGET = TimerSpec("forget", TimeDomain.WATERMARK)

    def __init__(self, horizon_us: int) -> None:
        super().__init__()
        self._horizon_us = horizon_us

    def process(
        self,
        element: tuple[bytes, ChangeEvent],
        at: Any = beam.DoFn.TimestampParam,
        seen: Any = beam.DoFn.StateParam(SEEN),
        forget: Any = beam.DoFn.TimerParam(FORGET),
    ) -> Iterator[ChangeEvent]:
        # A repeat within the horizon. It does not set the timer again, so a repeat cannot keep its own trace
        # alive.
        if seen.read():
            return
        seen.write(True)
        # Relative to the element, not to the wall clock: a backlog that is read fast still finds its repeats.
        forget.set(release_time(at, self._horizon_us))
        yield element[1]

    @on_timer(FORGET)
    def expire(self, seen: Any = beam.DoFn.StateParam(SEEN)) -> None:
        seen.clear()
