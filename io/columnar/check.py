"""`CheckRows`: finds the events that no file or table can hold, before they are staged. Needs the extra `arrow`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.utils.windowed_value import WindowedValue

from penstock.event.model import ChangeEvent
from penstock.io.staging import delivery_coders  # noqa: F401  registers the coder of RefusedEvent
from penstock.io.staging.refused import REFUSED, RefusedEvent

TOGETHER = 1000
"""Events that are checked at once."""


class CheckRows(beam.PTransform):
    """Splits events into those that fit into change rows, and `RefusedEvent`s for the others: two outputs.

    An event does not fit if a value is outside of its column's plain type (`penstock.event.plain_types`): a timestamp
    with nanoseconds, an infinite date, NaN in a decimal. Without this check such an event fails the epoch.

    Order: the events of a bundle keep their order. What repeats: everything, with the bundle. Watermark and state: as
    for a step over single elements; up to `TOGETHER` events until the bundle ends.
    """

    def __init__(self, target: str) -> None:
        super().__init__()
        self._target = target

    def expand(self, events: beam.PCollection[ChangeEvent]) -> Any:
        outputs = events | "Check" >> beam.ParDo(_CheckFn(self._target)).with_outputs(REFUSED, main="fitting")
        outputs["fitting"].element_type = ChangeEvent
        outputs[REFUSED].element_type = RefusedEvent
        return outputs["fitting"], outputs[REFUSED]


@beam.typehints.with_output_types(ChangeEvent)
class _CheckFn(beam.DoFn):
    def __init__(self, target: str) -> None:
        self._target = target
        self._pending: list[WindowedValue] = []

    def start_bundle(self) -> None:
        self._pending = []

    def process(
        self,
        event: ChangeEvent,
        timestamp: Any = beam.DoFn.TimestampParam,
        window: Any = beam.DoFn.WindowParam,
    ) -> list[Any]:
        self._pending.append(WindowedValue(event, timestamp, (window,)))
        return []  # Beam warns if a step returns None

    def finish_bundle(self) -> Iterator[Any]:
        for start in range(0, len(self._pending), TOGETHER):
            yield from self._checked(self._pending[start : start + TOGETHER])

    def _checked(self, some: list[WindowedValue]) -> Iterator[Any]:
        if not unfit([each.value for each in some]):
            yield from some
            return
        for each in some:
            if reason := unfit([each.value]):
                refused = RefusedEvent(each.value, self._target, reason)
                yield beam.pvalue.TaggedOutput(REFUSED, each.with_value(refused))
            else:
                yield each


def unfit(events: list[ChangeEvent]) -> str:
    """Return why some events do not fit into change rows; "" if all do."""
    from penstock.event.change_rows import change_rows

    by_schema: dict[Any, list[ChangeEvent]] = {}
    for event in events:
        by_schema.setdefault(event.schema, []).append(event)
    try:
        for schema, group in by_schema.items():
            change_rows(group, schema)
    except ValueError as error:  # names the column and shows no value
        return str(error)
    return ""
