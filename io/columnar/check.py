"""`CheckRows`: finds the events that no file or table can hold, before they are staged. Needs the extra `arrow`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import apache_beam as beam
from apache_beam.pvalue import TaggedOutput
from apache_beam.utils.windowed_value import WindowedValue

from penstock.batches import ElementBatch, is_batched, single
from penstock.errors import UnwritableError
from penstock.event.feed_rows import Layout, check_feed_event, check_feed_names, has_feed_row
from penstock.event.model import ChangeEvent, Image, Op
from penstock.event.replica import replicable_key
from penstock.io.columnar.table_rows import Mode
from penstock.io.staging import delivery_coders  # noqa: F401  registers the coder of RefusedEvent
from penstock.io.staging.blocks import BucketRun
from penstock.io.staging.refused import REFUSED, RefusedEvent
from penstock.io.staging.row_refused import row_refused

if TYPE_CHECKING:
    from penstock.io.columnar.row_runs import EventRows

TOGETHER = 1000
"""Events that are checked at once: one at a time would take fifty times as long."""

TOGETHER_BYTES = 1 << 20
"""Bytes of texts and binary values from which fewer events are checked at once, because they are kept until then."""

_WITHOUT_ROW = (Op.MESSAGE, Op.SCHEMA, Op.TRUNCATE)


class CheckRows(beam.PTransform):
    """Finds the events that a target of rows can never hold: those that no change row can hold, and in the modes
    *current* and *history* those without a primary key.

    An event does not fit into a change row if a value is outside of its column's plain type
    (`penstock.event.plain_types`): a timestamp with nanoseconds, an infinite date, NaN in a decimal. Once such an event
    is staged and committed, no parameter can keep it from the target. So the check comes before that.

    With the layout *table* an event does not fit either if its rows cannot show it (`check_feed_event`), and events
    without rows end here.

    Without `divides` the first such event fails the epoch, before its commit. With it there are two outputs: the events
    that fit, and `RefusedEvent`s for the others.

    Order: the events of a bundle keep their order. What repeats: everything, with the bundle. Watermark and state: as
    for a step over single elements; up to `TOGETHER` events.
    """

    def __init__(
        self,
        target: str,
        mode: Mode = "log",
        *,
        divides: bool,
        rows: EventRows | None = None,
        layout: Layout = "events",
    ) -> None:
        """`rows`: makes the rows of a batch, because a step that has checked them needs little more time for it."""
        super().__init__()
        self._target, self._mode, self._divides, self._rows = target, mode, divides, rows
        self._layout: Layout = layout

    def expand(self, events: beam.PCollection[ChangeEvent]) -> Any:
        fn = _CheckFn(self._target, self._mode, self._layout, divides=self._divides, rows=self._rows)
        output_type = ElementBatch if is_batched(events) else ChangeEvent
        check = beam.ParDo(fn).with_output_types(output_type)
        if not self._divides:
            return events | "Check" >> check
        outputs = events | "Check" >> check.with_outputs(REFUSED, main="fitting")
        outputs["fitting"].element_type = output_type
        outputs[REFUSED].element_type = RefusedEvent
        return outputs["fitting"], outputs[REFUSED]


class _CheckFn(beam.DoFn):
    def __init__(
        self,
        target: str,
        mode: Mode,
        layout: Layout = "events",
        *,
        divides: bool,
        rows: EventRows | None = None,
    ) -> None:
        self._target, self._mode, self._divides, self._rows = target, mode, divides, rows
        self._layout: Layout = layout
        self._pending: list[WindowedValue] = []
        self._bytes = 0

    def start_bundle(self) -> None:
        self._pending, self._bytes = [], 0

    def process(
        self,
        event: ChangeEvent | ElementBatch,
        timestamp: Any = beam.DoFn.TimestampParam,
        window: Any = beam.DoFn.WindowParam,
    ) -> Iterable[Any]:
        # A batch is already a group.
        if isinstance(event, ElementBatch):
            return self._check_batch(self._with_rows(event))
        if self._layout == "table" and not has_feed_row(event):
            return ()
        self._pending.append(WindowedValue(event, timestamp, (window,)))
        # The memory of the pending events is what matters, so their large values are counted.
        self._bytes += _size(event.before) + _size(event.after)
        if len(self._pending) >= TOGETHER or self._bytes >= TOGETHER_BYTES:
            return self.finish_bundle()
        return ()  # Beam warns if a step returns None

    def finish_bundle(self) -> Iterator[Any]:
        some, self._pending, self._bytes = self._pending, [], 0
        # Nearly always all fit. Only a group with a misfit is checked one by one.
        if not unfit([each.value for each in some], self._mode, self._layout):
            yield from some
            return
        for each in some:
            reason = unfit([each.value], self._mode, self._layout)
            yield self._refuse(each, reason) if reason else each

    def _with_rows(self, batch: ElementBatch) -> ElementBatch:
        """Return a batch without the events that have no rows."""
        if self._layout == "events":  # there may be runs of rows too
            return batch
        kept = [number for number, event in enumerate(batch.elements) if has_feed_row(event)]
        return ElementBatch([batch.elements[n] for n in kept], [batch.times_us[n] for n in kept])

    def _check_batch(self, batch: ElementBatch) -> Iterator[Any]:
        try:
            fitted = self._fitted(batch)
        except UnwritableError:
            # The batch keeps its order; only the events that do not fit leave it.
            fitting = ElementBatch([], [])
            for element, time_us in zip(batch.elements, batch.times_us, strict=True):
                is_event = type(element) is not BucketRun
                if is_event and (reason := unfit([element], self._mode, self._layout)):
                    yield self._refuse(single(element, time_us), reason)
                else:
                    fitting.elements.append(element)
                    fitting.times_us.append(time_us)
            fitted = self._fitted(fitting)
        if fitted.elements:
            yield fitted.windowed()

    def _fitted(self, batch: ElementBatch) -> ElementBatch:
        """Return the output for a batch of events that fit.

        Raises:
            UnwritableError: an event does not fit.
        """
        if self._rows is not None:
            check_keys((each for each in batch.elements if type(each) is not BucketRun), self._mode)
            return self._rows(batch)
        check_fit(batch.elements, self._mode, self._layout)
        return batch

    def _refuse(self, event: WindowedValue, reason: str) -> Any:
        """Return the output for an event that does not fit, or raise its error."""
        if not self._divides:
            raise row_refused(event.value, self._target, reason)
        return TaggedOutput(REFUSED, event.with_value(RefusedEvent(event.value, self._target, reason)))


def _size(image: Image | None) -> int:
    """Return the bytes of what may be large in an image: texts and binary values outside of arrays."""
    return sum(len(value) for value in image.values() if isinstance(value, str | bytes)) if image else 0


def unfit(events: list[ChangeEvent], mode: Mode = "log", layout: Layout = "events") -> str:
    """Return why a target of rows can never hold some events; "" if it can hold all."""
    try:
        check_fit(events, mode, layout)
    except UnwritableError as error:  # names table and column, and shows no value
        return str(error)
    return ""


def check_fit(events: list[ChangeEvent], mode: Mode, layout: Layout = "events") -> None:
    """Check that a target of rows can hold events.

    Raises:
        UnwritableError: it can never hold one of them.
        UsageError: a table has a column with a name of the change feed.
    """
    from penstock.event.change_rows import check_images

    # A check builds columns, so events of one schema are checked together.
    by_schema: dict[Any, list[ChangeEvent]] = {}
    for event in events:
        by_schema.setdefault(event.schema, []).append(event)
    for schema, group in by_schema.items():
        check_keys(group, mode)
        if layout == "table":
            check_feed_names(schema.names, group[0].source.qualified_table)
            for event in group:
                check_feed_event(event)
        check_images(group, schema)


def check_keys(events: Iterable[ChangeEvent], mode: Mode) -> None:
    """Check that the changes of rows among some events have a primary key, if the mode needs it.

    Raises:
        UnwritableError: one has none.
    """
    if mode == "log":
        return
    for event in events:
        if event.op not in _WITHOUT_ROW:
            replicable_key(event)
