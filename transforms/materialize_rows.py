"""`MaterializeRows`: events with partial images become events with full rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import apache_beam as beam
import msgspec
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import (
    ReadModifyWriteStateSpec,
    TimerSpec,
    on_timer,
)
from apache_beam.transforms.window import TimestampedValue

from penstock.event import ChangeEvent, Image, Op, Source, TableSchema, Version
from penstock.event.coder import ChangeEventCoder, decode_event, encode_event
from penstock.event.keys import changed_key
from penstock.event.schema_changes import merged_schema
from penstock.transforms.element_transform import StatefulTransform
from penstock.transforms.order_by_key import in_version_order, with_key
from penstock.transforms.release import BUFFER, hold, released, require_global_window


class MaterializeRows(StatefulTransform):
    """Fills the images of each event with the values that earlier events of its key have sent.

        events | MaterializeRows()

    A Spanner change stream with NEW_VALUES or OLD_AND_NEW_VALUES sends changed columns only. After this transform
    `after` is the full row, and `before` is the full row before the change, if earlier events of the key have sent all
    columns. Rows that existed before the stream started become full with their changes, or from the READ events of a
    snapshot. A column that no event has sent stays absent, and `event.unavailable` lists it.

    The schema of an event becomes all columns that the events of its row have named, because Spanner names only
    the columns that it sends. A column that was dropped from the table stays until the row is deleted. The source of
    the event becomes `materialized`, so formats accept its images.

    - Order: as `OrderByKey`.
    - Repeats: an event that comes twice is emitted once. A READ event that is older than the row only fills the
      columns that are absent; it is emitted with the row as it is then. A bundle that runs again after a crash gives
      the same output.
    - Watermark: held at the earliest event in the buffer, as by `OrderByKey`.
    - State: the events that the watermark has not passed, and one row for each key that exists. A DELETE removes the
      row; rows that are never deleted stay, so the state is as large as the part of the tables that has changed.

    A change of the primary key comes as a DELETE and a CREATE in Spanner. In PostgreSQL it is one UPDATE: values that
    it does not send stay absent, because the row with the old key is not known here.

    Preconditions: see `OrderByKey`.

    Raises ValueError while running for TRUNCATE, which names no rows, and for events of Bigtable, whose
    deletions of cells an image cannot express. `with_exception_handling` sends them to a second output.
    """

    def expand(self, pcoll: beam.PCollection[ChangeEvent]) -> Any:
        """Apply the transform to events in the global window; with exception handling it has two outputs."""
        require_global_window(self, pcoll)
        # Only this step rejects events, because Beam's exception handling covers no timers.
        checked = beam.Map(_checked_with_key)
        keyed, failed = self._enter(pcoll, "KeyOfEvent", checked, tuple[bytes, ChangeEvent])
        rows = keyed | "MaterializeRowsFn" >> beam.ParDo(_MaterializeRowsFn()).with_output_types(ChangeEvent)
        return (rows, *failed) if failed else rows


def materialize(row: ChangeEvent | None, event: ChangeEvent) -> tuple[ChangeEvent | None, ChangeEvent | None]:
    """Apply one event to a row; return the new row and the event with full images, None for a repeat.

    A row is the last event that was materialized, or None if the row is not known or does not exist.
    """
    # Events without a key, such as messages, describe no row; they pass in their order.
    if event.key is None:
        return row, event
    if row is None:
        return _first(event)
    # The row has this change already. A READ is an exception: an older snapshot knows columns that no change
    # has sent.
    if event.version <= row.version:
        return _filled(row, event) if event.op is Op.READ and event.version < row.version else (row, None)
    # Spanner names only the columns of the change, so the schema of the row grows with each event.
    schema = merged_schema(row.schema, event.schema)
    known = row.after or {}
    # The state of the row ends here, and with it the memory for a table whose rows come and go.
    if event.op is Op.DELETE:
        before = _overlaid(schema, known, event.before)
        return None, msgspec.structs.replace(event, before=before, after=None, schema=schema)
    if event.op is Op.CREATE or changed_key(event) is not None:
        known = {}  # the row that had this key is gone, by an event of another key or one that the source did not send
    after = _overlaid(schema, known, event.after)
    # A CREATE has no row before it. A READ shows the row at one moment and has none either.
    has_before = event.op is Op.UPDATE
    full = msgspec.structs.replace(
        event,
        before=_overlaid(schema, known, event.before) if has_before else event.before,
        after=after,
        schema=schema,
    )
    return full, full


def materialize_all(
    row: ChangeEvent | None, events: Iterable[ChangeEvent]
) -> tuple[ChangeEvent | None, list[ChangeEvent]]:
    """Apply events of one key in version order; return the new row and the events to emit, without repeats."""
    emitted: list[ChangeEvent] = []
    previous: Version | None = None
    for event in events:
        # After a DELETE there is no row whose version would show that the DELETE is repeated.
        # Version order puts repeats side by side, so the previous version is enough.
        if event.version != previous:
            row, full = materialize(row, event)
            emitted += [] if full is None else [_marked(full)]
        previous = event.version
    return row, emitted


def _marked(event: ChangeEvent) -> ChangeEvent:
    # Formats accept partial capture types from a materialized source: they cannot see that by the image alone.
    return event if event.key is None else msgspec.structs.replace(event, source=_materialized(event.source))


# All events of a table share their source, and formats keep a plan for each.
@lru_cache(maxsize=1024)
def _materialized(source: Source) -> Source:
    return msgspec.structs.replace(source, materialized=True)


def _first(event: ChangeEvent) -> tuple[ChangeEvent | None, ChangeEvent]:
    """Return the row and the event if nothing is known about the row."""
    if event.op is Op.DELETE:
        return None, event
    # With other capture types unchanged columns of a row that is not known here stay absent; see `unavailable`.
    if (
        event.op is Op.UPDATE
        and event.source.capture == "NEW_ROW_AND_OLD_VALUES"
        and event.before is not None
    ):
        # This capture type of Spanner sends the old values of all columns that changed. The others are as in `after`.
        event = msgspec.structs.replace(event, before=(event.after or {}) | event.before)
    return event, event


def _filled(row: ChangeEvent, read: ChangeEvent) -> tuple[ChangeEvent, ChangeEvent]:
    """Fill a row from an older snapshot: a column that no change has sent still has the value of the snapshot."""
    schema = merged_schema(read.schema, row.schema)
    # Changes win over the snapshot, because they are newer.
    after = _overlaid(schema, read.after or {}, row.after)
    filled = msgspec.structs.replace(row, after=after, schema=schema)
    # The READ itself is emitted with the row as it is now, so a target that applies it does not go back in
    # time.
    return filled, msgspec.structs.replace(read, after=after, schema=schema)


def _overlaid(schema: TableSchema, below: Image, above: Image | None) -> Image:
    """Return `below` with the values of `above`, in the order of the schema."""
    both = below | (above or {})
    # The order of columns in an image must not depend on which event sent a column first.
    return {name: both[name] for name in schema.names if name in both}


def _checked_with_key(event: ChangeEvent) -> tuple[bytes, ChangeEvent]:
    if event.op is Op.TRUNCATE:
        # A table without rows has no key, so it cannot reach the states of its rows.
        raise ValueError(
            f"MaterializeRows got a TRUNCATE of table {event.source.table}, which names no rows: filter it before"
        )
    if event.source.system == "bigtable":
        raise ValueError(
            "MaterializeRows got an event of Bigtable, whose cells have versions and no full row"
        )
    return with_key(event)


class _MaterializeRowsFn(beam.DoFn):  # type: ignore[misc, unused-ignore]
    ROW = ReadModifyWriteStateSpec("row", ChangeEventCoder())
    RELEASE = TimerSpec("release", TimeDomain.WATERMARK)

    def process(
        self,
        element: tuple[bytes, ChangeEvent],
        at: Any = beam.DoFn.TimestampParam,
        buffer: Any = beam.DoFn.StateParam(BUFFER),
        release: Any = beam.DoFn.TimerParam(RELEASE),
    ) -> None:
        hold(encode_event(element[1]), at, buffer, release)

    @on_timer(RELEASE)
    def emit(
        self,
        fired: Any = beam.DoFn.TimestampParam,
        buffer: Any = beam.DoFn.StateParam(BUFFER),
        row: Any = beam.DoFn.StateParam(ROW),
    ) -> Iterator[TimestampedValue]:
        # The timer of one millisecond releases the events of that millisecond; earlier timers have released the
        # others.
        events = in_version_order(map(decode_event, released(buffer, fired)))
        if not events:
            # A later timer may have fired first and taken these events: runners need not fire timers in the
            # order of their times.
            return
        known, emitted = materialize_all(row.read(), events)
        for event in emitted:
            yield TimestampedValue(event, fired)
        if known is None:
            row.clear()
        else:
            # The image before the last change is not needed, and it would double the state.
            row.write(msgspec.structs.replace(known, before=None))
