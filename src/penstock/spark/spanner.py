"""The data source `penstock-spanner`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from penstock.errors import SetupError, UsageError
from penstock.event.model import ChangeEvent, TableSchema
from penstock.io.change_streams.arguments import check_end, in_range, named
from penstock.io.spanner.events import EventConverter, table_schema
from penstock.io.spanner.filter import Selection
from penstock.io.spanner.options import SpannerStreamOptions
from penstock.io.spanner.prefetch import Limits
from penstock.io.spanner.query import checked_name
from penstock.io.spanner.slice import SlicePart
from penstock.io.spanner.slice_reader import RowsPart, SliceReader
from penstock.io.spanner.source import ChangeStream, Connection
from penstock.options import Accepts, options
from penstock.spark.options import REFUSED, SNAPSHOTS, SliceOptions, read_options
from penstock.spark.source import Offset, PenstockDataSource, require_same_stream
from penstock.timestamps import NANOS, Timelike, format_timestamp, nanoseconds, parse_timestamp

FORMAT = "penstock-spanner"
_MICRO = 1000
"""The distance between two commit timestamps, in nanoseconds."""
_LEFT_OUT = {"credentials", "snapshot_data_boost", "idle_stream_seconds"} | SNAPSHOTS | REFUSED


@options
class SpannerSourceOptions(SliceOptions, SpannerStreamOptions):
    """The options of `penstock-spanner`: its own, and the options of `ReadFromSpannerChangeStream` for slices."""

    timestamp_as_of: Annotated[Timelike | None, Accepts(example="2026-01-31T00:00:00Z")] = None
    """Time at which ``spark.read`` reads the rows of `table`, with the columns that the change stream watches then.
    Also written ``timestampAsOf``. Default: changes are read."""


class SpannerDataSource(PenstockDataSource):
    """Changes of a Spanner change stream, in closed slices of its time.

    - **Order**: `_commit_version` sorts all changes. Rows of one key come in that order within a batch unless its
      partition was merged in the batch's time; between batches always.
    - **After a crash**: Spark repeats the last batch; its rows are equal.
    - **State**: one timestamp in Spark's checkpoint. Nothing is written to the database.
    """

    format: ClassVar[str] = FORMAT

    def stream(self) -> SpannerSlices:
        """Return the stream that the options describe; see the base class."""
        return slices_of(self._options())

    def rows(self) -> SpannerRows | None:
        """Return the rows that the options ask for; see the base class."""
        chosen = self._options()
        if chosen.timestamp_as_of is None:
            return None
        if chosen.table is None or chosen.start is not None or chosen.end is not None:
            raise UsageError(
                "timestampAsOf gives the rows of one table at one time: pass table, and neither start nor end"
            )
        slices = slices_of(chosen)
        at = nanoseconds("timestampAsOf", chosen.timestamp_as_of)
        return SpannerRows(slices.reader, chosen.table, at, chosen.max_tasks)

    def _options(self) -> SpannerSourceOptions:
        return read_options(SpannerSourceOptions, self.options, name=self.format, left_out=_LEFT_OUT)


@dataclass(frozen=True, slots=True)
class SpannerRows:
    """See `penstock.spark.source.TableRows`. `timestamp` is in nanoseconds."""

    reader: SliceReader
    table: str
    timestamp: int
    max_tasks: int

    def columns(self) -> TableSchema:
        return table_schema(self.reader.columns(self.table, self.timestamp))

    def parts(self) -> Sequence[RowsPart]:
        return self.reader.row_parts(self.table, self.timestamp, self.max_tasks)

    def read(self, part: RowsPart) -> Iterator[Sequence[ChangeEvent]]:
        stream = self.reader.stream
        convert = EventConverter(f"{stream.project}/{stream.instance}", stream.database, stream.change_stream)
        for record in self.reader.rows(part):
            yield convert(record)


@dataclass(frozen=True, slots=True)
class SpannerSlices:
    """See `penstock.spark.source.SlicedStream`. Times are nanoseconds; None: not given. `start`, `end`: inclusive.

    An offset is the stream and the time before which everything is read.
    """

    reader: SliceReader
    table: str | None
    start: int | None
    end: int | None
    max_tasks: int
    max_slice: int | None

    max_rows = None

    @property
    def has_limit(self) -> bool:
        return self.max_slice is not None

    @property
    def _identity(self) -> str:
        return str(self.reader.stream)

    def _offset(self, before: int) -> Offset:
        return {"stream": self._identity, "before": format_timestamp(before)}

    def _before(self, offset: Offset) -> int:
        require_same_stream(offset, self._identity, FORMAT)
        return parse_timestamp(offset["before"])

    def columns(self) -> TableSchema | None:
        if self.table is None:
            self.reader.check()
            return None
        return table_schema(self.reader.columns(self.table))

    def first(self, target: Offset | None) -> Offset:
        self.reader.check()
        now = self.reader.now()
        check_end(now if self.start is None else self.start, self.end, SetupError)
        if self.start is not None:
            return self._offset(self.start)
        return self._offset((now if target is None else self._before(target)) - _MICRO)

    def last(self) -> Offset:
        now = self.reader.now()
        return self._offset(now if self.end is None else min(now, self.end + 1))

    def slice_end(self, start: Offset | None, target: Offset, most_rows: int | None) -> Offset:
        if start is None:
            return target
        first, end = self._before(start), self._before(target)
        if self.max_slice is not None:
            end = min(end, first + self.max_slice)
        return self._offset(max(first, end))

    def parts(self, start: Offset, end: Offset) -> Sequence[SlicePart]:
        return self.reader.parts(self._before(start), self._before(end), self.max_tasks)

    def read(self, part: SlicePart) -> Iterator[Sequence[ChangeEvent]]:
        stream = self.reader.stream
        convert = EventConverter(f"{stream.project}/{stream.instance}", stream.database, stream.change_stream)
        for records in self.reader.read(part):
            for record in records:
                if self.table is None or record.table_name == self.table:
                    yield convert(record)

    def commit(self, end: Offset) -> None:
        """Do nothing: the service keeps changes for a period, not until they were read."""

    def bounds(self) -> tuple[Offset, Offset]:
        if self.start is None:
            raise UsageError(
                f"spark.read.format({FORMAT!r}) needs the option start, the first commit timestamp to read, such as "
                "2026-01-31T00:00:00Z"
            )
        return self._offset(self.start), self.last()


def slices_of(options: SpannerSourceOptions) -> SpannerSlices:
    """Return the stream that options describe.

    Raises:
        UsageError: an option is malformed or out of range.
    """
    start = None if options.start is None else nanoseconds("start", options.start)
    end = None if options.end is None else nanoseconds("end", options.end)
    stream = ChangeStream(
        named("project", options.project),
        named("instance", options.instance),
        named("database", options.database),
        checked_name(named("change_stream", options.change_stream)),
        0,
        None,
    )
    tables = options.selected_tables(options.tables)
    reader = SliceReader(
        stream,
        Connection.checked(options),
        Limits.checked(
            options,
            max_concurrent_partitions=options.max_concurrent_partitions,
            poll_seconds=in_range("poll_seconds", options.poll_seconds, 0.01, 60),
        ),
        round(1000 * in_range("heartbeat_seconds", options.heartbeat_seconds, 1, 300)),
        Selection.checked(
            tables, options.mod_types, options.exclude_transaction_tags, options.without_tables
        ),
        options.dialect,
    )
    longest = options.max_slice_seconds
    return SpannerSlices(
        reader,
        options.table,
        start,
        end,
        options.max_tasks,
        None if longest is None else round(longest * NANOS),
    )
