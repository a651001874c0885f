"""`OrderByKey`: the events of each key in the order of their versions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import apache_beam as beam

from penstock.event import ChangeEvent
from penstock.event.coder import ChangeEventCoder
from penstock.event.sharding import key_bytes
from penstock.transforms.element_transform import StatefulTransform
from penstock.transforms.release import ReleaseInOrderFn, require_global_window


class OrderByKey(StatefulTransform):
    """Emits the events of each key in the order of their versions.

        events | OrderByKey()

    - Order: the events of one table and primary key are emitted in the order of `version`. Events without a key have
      the order of their table. There is no order between keys. The next step sees the order if it is fused with this
      one, as a sink is; a shuffle between two steps does not promise any order.
    - Repeats: an event that comes twice is emitted twice, side by side. A bundle that runs again after a crash gives
      the same output.
    - Watermark: held at the earliest event in the buffer. Each event is emitted when the watermark has passed it.
      It gets the timestamp of that moment, which is at most a millisecond later than its own; `event.timestamp`
      stays exact.
    - State: the events that the watermark has not passed. They are removed when they are emitted.

    Precondition: the timestamps of elements grow with the version, as they do in all sources. An event that is already
    late when it arrives is emitted at once and stays late.

    `with_exception_handling` sends an event whose key cannot be encoded to a second output.
    """

    def expand(self, pcoll: beam.PCollection[ChangeEvent]) -> Any:
        """Apply the transform to events in the global window; with exception handling it has two outputs."""
        require_global_window(self, pcoll)
        # The key is encoded once and used as Beam's key: equal keys have equal bytes on every worker.
        keyed, failed = self._enter(pcoll, "KeyOfEvent", beam.Map(with_key), tuple[bytes, ChangeEvent])
        release = ReleaseInOrderFn(ChangeEventCoder(), in_version_order)
        ordered = keyed | "OrderByKeyFn" >> beam.ParDo(release).with_output_types(ChangeEvent)
        return (ordered, *failed) if failed else ordered


def in_version_order(events: Iterable[ChangeEvent]) -> list[ChangeEvent]:
    """Return the events in the order of their versions; equal versions keep their order."""
    # `sorted` is stable, so repeats of an event stay side by side in the order of their arrival.
    return sorted(events, key=_version)


def with_key(event: ChangeEvent) -> tuple[bytes, ChangeEvent]:
    """Return (`key_bytes`, event)."""
    return key_bytes(event), event


def _version(event: ChangeEvent) -> Any:
    return event.version
