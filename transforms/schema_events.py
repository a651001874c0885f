"""`AddSchemaEvents`: events that tell when the columns of a table have changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import msgspec
from apache_beam.coders import BytesCoder
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec

from penstock.errors import UsageError
from penstock.event import ChangeEvent
from penstock.event.schema_events import KnownColumns, note_columns, schema_events
from penstock.transforms.element_transform import StatefulTransform
from penstock.transforms.release import require_global_window


class AddSchemaEvents(StatefulTransform):
    """Adds an event with the operation SCHEMA before the first change of a table that has other columns.

        events | AddSchemaEvents(shards=4) | FormatEvents(ChangeFeedFormat())

    The event has the new columns (`schema`), the old ones (`schema_change.before`), and the version and the commit time
    of the change that it precedes. The first change of a table has one too, without old columns. Each shard gets a
    copy: with `shard_of`, which the sinks use, it goes to the shard that its number names.

    - Sources: PostgreSQL; inserts and updates of Spanner with the capture type NEW_ROW or NEW_ROW_AND_OLD_VALUES. Other
      records do not have all columns and add no event. Neither do rows of snapshots, which have the columns of the time
      of their query.
    - Order: the events of a table keep their order, and the added event comes before the change in every shard, if the
      sink is fused with this step. Older changes may follow it, if the source has several partitions.
    - Repeats: an event that comes twice adds one event. A bundle that runs again after a crash gives the same output.
    - Watermark: nothing is held.
    - State: the newest columns of each table, which stay. The events of one table pass through one worker.

    `with_exception_handling` sends an event whose table cannot be encoded to a second output.
    """

    def __init__(self, *, shards: int = 1) -> None:
        super().__init__()
        if shards < 1:
            raise UsageError(f"AddSchemaEvents needs at least 1 shard, not {shards}")
        self._shards = shards

    def expand(self, pcoll: beam.PCollection[ChangeEvent]) -> Any:
        """Apply the transform to events in the global window; with exception handling it has two outputs."""
        require_global_window(self, pcoll)
        keyed, failed = self._enter(pcoll, "TableOfEvent", beam.Map(_with_table), tuple[bytes, ChangeEvent])
        add = beam.ParDo(_SchemaEventsFn(self._shards))
        events = keyed | "SchemaEventsFn" >> add.with_output_types(ChangeEvent)
        return (events, *failed) if failed else events

    def display_data(self) -> dict[str, Any]:
        return {"shards": self._shards}


def _with_table(event: ChangeEvent) -> tuple[bytes, ChangeEvent]:
    source = event.source
    table = (source.system, source.server, source.database, source.schema, source.table)
    return msgspec.msgpack.encode(table), event


_decode_known = msgspec.msgpack.Decoder(KnownColumns).decode


class _SchemaEventsFn(beam.DoFn):  # type: ignore[misc, unused-ignore]
    KNOWN = ReadModifyWriteStateSpec("known", BytesCoder())

    def __init__(self, shards: int) -> None:
        super().__init__()
        self._shards = shards
        # Neighbours have the same state, and to decode it costs more than the comparison.
        self._last: tuple[bytes | None, KnownColumns | None] = (None, None)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": (None, None)}

    def process(
        self, element: tuple[bytes, ChangeEvent], state: Any = beam.DoFn.StateParam(KNOWN)
    ) -> Iterator[ChangeEvent]:
        _, event = element
        before = self._known(state.read())
        known, change = note_columns(before, event)
        if known is not before:
            encoded = msgspec.msgpack.encode(known)
            state.write(encoded)
            self._last = encoded, known
        if change is not None:
            yield from schema_events(event, change, self._shards)
        yield event

    def _known(self, encoded: bytes | None) -> KnownColumns | None:
        if encoded != self._last[0]:
            self._last = encoded, None if encoded is None else _decode_known(encoded)
        return self._last[1]
