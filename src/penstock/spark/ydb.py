"""The data source `penstock-ydb`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import msgspec

from penstock.event.model import ChangeEvent, TableSchema
from penstock.io.change_streams.arguments import in_range, named, period
from penstock.io.ydb.description import Description
from penstock.io.ydb.options import YdbChangefeedOptions
from penstock.io.ydb.slice import Offsets, ends_of, parents_of, slice_end
from penstock.io.ydb.slice_reader import Columns, ReadPart, SliceReader, with_columns
from penstock.io.ydb.source import ChangeStream, Connection, checked_path, checked_scan
from penstock.options import Accepts, options
from penstock.spark.options import TaskOptions, read_options
from penstock.spark.source import Offset, PenstockDataSource, require_same_stream
from penstock.transforms.formats.ydb_events import EventConverter, table_schema

FORMAT = "penstock-ydb"
_LEFT_OUT = {
    "end",
    "delivery_seconds",
    "heartbeat_seconds",
    "max_concurrent_partitions",
    "buffer_bytes",
    "idle_stream_seconds",
    "max_slice_seconds",
    "maxbytespertrigger",
    "timestampasof",
}
_columns_text = msgspec.json.Encoder().encode
_columns_of = msgspec.json.Decoder(Columns).decode


@options
class YdbSourceOptions(TaskOptions, YdbChangefeedOptions):
    """The options of `penstock-ydb`: its own, and the options of `ReadFromYdbChangefeed` for slices."""

    layout: Literal["table", "events"] = "table"
    """The columns of the rows: table has a column for each column of the table, and ``_change_type``,
    ``_commit_version``, ``_commit_timestamp`` and ``_not_sent``; events has ``op``, ``timestamp``, ``key``,
    ``before``, ``after``, ``metadata``."""
    max_rows_per_trigger: Annotated[int | None, Accepts(minimum=1, maximum=1 << 53, example="100000")] = None
    """The most rows of one batch. Default: all that there are. Needs Spark 4.2 or newer. Also written
    ``maxRowsPerTrigger``."""


class YdbDataSource(PenstockDataSource):
    """Changes of a YDB changefeed, in closed slices of its topic.

    - **Order**: rows of one key come in commit order within a batch and between batches, also when partitions split and
      merge. `_commit_version` sorts the changes of a key.
    - **After a crash**: Spark repeats the last batch; its rows are equal.
    - **State**: the offsets of the topic's partitions and the table's columns in Spark's checkpoint. Nothing is written
      to YDB, except the offsets of `consumer`.
    """

    format: ClassVar[str] = FORMAT

    def stream(self) -> YdbSlices:
        """Return the stream that the options describe; see the base class."""
        secrets = ("token", "password")
        return slices_of(
            read_options(
                YdbSourceOptions, self.options, name=self.format, left_out=_LEFT_OUT, secrets=secrets
            )
        )


@dataclass(frozen=True, slots=True)
class YdbSlices:
    """See `penstock.spark.source.SlicedStream`.

    An offset is the stream, the virtual timestamp of the topic's creation, the offsets of its partitions, and the
    columns of the table when the slice was planned: records do not name types, and a repeated slice must be equal.
    """

    reader: SliceReader
    has_table: bool
    max_rows: int | None
    max_tasks: int

    @property
    def has_limit(self) -> bool:
        return self.max_rows is not None

    @property
    def _identity(self) -> str:
        return str(self.reader.stream)

    def _offset(self, found: Description, offsets: Offsets) -> Offset:
        step, tx_id = found.created_at
        # Asked after the offsets: every column that a record of the slice has is known then.
        columns = self.reader.columns()
        return {
            "stream": self._identity,
            "created_at": {"step": step, "tx_id": tx_id},
            "next": {str(number): offset for number, offset in offsets.open.items()},
            "finished": {str(number): offset for number, offset in offsets.finished.items()},
            "columns": _columns_text(columns).decode(),
        }

    def _offsets(self, offset: Offset) -> Offsets:
        require_same_stream(offset, self._identity, FORMAT)
        opened, finished = (
            {int(number): next_ for number, next_ in offset[name].items()} for name in ("next", "finished")
        )
        return Offsets(opened, finished)

    def columns(self) -> TableSchema | None:
        found = self.reader.check()
        return table_schema(found.table) if self.has_table else None

    def first(self, target: Offset | None) -> Offset:
        found = self.reader.check()
        return self._offset(found, self.reader.first(found))

    def last(self) -> Offset:
        found = self.reader.check()
        return self._offset(found, ends_of(found))

    def slice_end(self, start: Offset | None, target: Offset, most_rows: int | None) -> Offset:
        if start is None:
            return target
        found = self.reader.check()
        limits = parents_of(found), self._messages(found, most_rows)
        end = slice_end(self._offsets(start), self._offsets(target), *limits)
        # The same offset as before: Spark runs no batch, also if the table has changed.
        return start if end == self._offsets(start) else self._offset(found, end)

    def _messages(self, found: Description, most_rows: int | None) -> int | None:
        """Return how many messages have at most `most_rows` rows."""
        if most_rows is None:
            return None
        has_preimages = self.has_table and found.table.mode == "NEW_AND_OLD_IMAGES"
        return max(1, most_rows // (1 + has_preimages))

    def parts(self, start: Offset, end: Offset) -> Sequence[ReadPart]:
        created_at = (start["created_at"]["step"], start["created_at"]["tx_id"])
        found = self.reader.check()
        parts = self.reader.parts(found, self._offsets(start), self._offsets(end), created_at, self.max_tasks)
        planned = with_columns(found, _columns_of(end["columns"]))
        return [ReadPart(part, planned) for part in parts]

    def read(self, part: ReadPart) -> Iterator[Sequence[ChangeEvent]]:
        convert = EventConverter("", self.reader.stream.database)
        for records in self.reader.read(part):
            yield [event for record in records for event in convert(record)]

    def commit(self, end: Offset) -> None:
        self.reader.commit(self._offsets(end))

    def bounds(self) -> tuple[Offset, Offset]:
        return self.first(None), self.last()


def slices_of(options: YdbSourceOptions) -> YdbSlices:
    """Return the stream that options describe.

    Raises:
        UsageError: an option is malformed or out of range.
    """
    stream = ChangeStream(
        checked_path("database", options.database, absolute=True),
        checked_path("table", options.table, absolute=False),
        named("changefeed", options.changefeed),
        *period(0 if options.start is None else options.start, None, ahead_seconds=600),
    )
    reader = SliceReader(
        stream,
        Connection.checked(options),
        options.consumer or "",
        "" if options.snapshot is None else checked_scan(options.snapshot),
        in_range("unavailable_seconds", options.unavailable_seconds, 0, 86_400),
    )
    return YdbSlices(reader, options.layout == "table", options.max_rows_per_trigger, options.max_tasks)
