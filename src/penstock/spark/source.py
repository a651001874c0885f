"""The parts that the data sources share: readers of PySpark over the slices of a source.

A source gives a `SlicedStream`: where it is now, the parts of a slice, the events of a part. Spark's checkpoint has the
offsets; a batch that Spark repeats is the same slice, so it has equal rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from inspect import signature
from typing import Any, ClassVar, Protocol

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

from penstock.errors import SetupError, UsageError
from penstock.event.model import ChangeEvent, TableSchema

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # Spark 4.0 and 4.1: availableNow is one batch

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Stands in for a class that this Spark does not have."""


Offset = dict[str, Any]
"""A position between two slices, as Spark stores it: texts, integers and further mappings."""


class SlicedStream(Protocol):
    """A change stream that is read in slices. Picklable."""

    @property
    def max_rows(self) -> int | None:
        """The most rows of a batch, if the options say it."""

    @property
    def has_limit(self) -> bool:
        """Whether the options limit a batch, which needs Spark 4.2 or newer."""

    def columns(self) -> TableSchema | None:
        """Return the columns of the chosen table; None if there is none. It asks the service."""

    def first(self, target: Offset | None) -> Offset:
        """Return the offset at which a new query begins; before `target`, unless the options say where.

        Spark stores no position before the first batch, and runs no batch from an offset to the same offset. A query
        with availableNow that begins "now" would otherwise store nothing, and its next run would begin at a later now.
        """

    def last(self) -> Offset:
        """Return the offset that all changes of now are before, or the end of the stream if that comes first."""

    def slice_end(self, start: Offset | None, target: Offset, most_rows: int | None) -> Offset:
        """Return the offset at which a slice from `start` ends: at `target`, or earlier if the options limit it.

        Never before `start`, also if a clock was set back or a server lags. `most_rows`: the most rows of the slice.
        None: the start is not known, or there is no limit.
        """

    def parts(self, start: Offset, end: Offset) -> Sequence[Any]:
        """Return the parts of the slice between two offsets; equal ones for equal offsets."""

    def read(self, part: Any) -> Iterator[Sequence[ChangeEvent]]:
        """Yield the events of a part."""

    def commit(self, end: Offset) -> None:
        """Tell the service, if it wants to know, that everything before `end` was processed and is not read again."""

    def bounds(self) -> tuple[Offset, Offset]:
        """Return the start and the end of a batch query.

        Raises:
            UsageError: the options do not say where it begins.
        """


class TableRows(Protocol):
    """The rows of a table at one time, which are read in parts. Picklable."""

    def columns(self) -> TableSchema:
        """Return the columns of the table at that time. It asks the service."""

    def parts(self) -> Sequence[Any]:
        """Return parts that together have every row once."""

    def read(self, part: Any) -> Iterator[Sequence[ChangeEvent]]:
        """Yield the rows of a part, as READ events."""


class Part(InputPartition):
    """One part of a slice."""


class PenstockDataSource(DataSource):
    """The base of the data sources. Subclasses say how options become a stream."""

    format: ClassVar[str]
    rows_option: ClassVar[str] = "timestampAsOf"
    """The option that asks for rows in place of changes, for messages."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(…)`."""
        return cls.format

    def stream(self) -> SlicedStream:
        """Return the stream that the options describe.

        Raises:
            UsageError: an option is unknown, missing or malformed.
        """
        raise NotImplementedError

    def rows(self) -> TableRows | None:
        """Return the rows that the options ask for; None: they ask for changes.

        Raises:
            UsageError: an option is unknown, missing or malformed.
        """
        return None

    def schema(self) -> Any:
        """Return the schema of the rows. With a table, the service is asked for its columns."""
        from pyspark.sql.pandas.types import from_arrow_schema

        from penstock.event.change_feed import change_feed_schema, rows_schema
        from penstock.io.spark.json_rows import json_schema

        rows = self.rows()
        if rows is not None:
            return from_arrow_schema(rows_schema(rows.columns()))
        columns = self.stream().columns()
        table = self.options.get("table", self.format)
        return from_arrow_schema(json_schema() if columns is None else change_feed_schema(columns, table))

    def reader(self, schema: Any) -> DataSourceReader:
        """Return the reader of a closed slice, or of the rows of a table."""
        rows = self.rows()
        if rows is not None:
            return _RowsReader(rows, schema)
        return _BatchReader(self.stream(), schema, leaves_out=self._leaves_out)

    @property
    def _leaves_out(self) -> bool:
        """Whether columns are left out that the DataFrame does not have; `TaskOptions` checks the option."""
        return bool(self.options.get("schema_changes") == "ignore")

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        """Return the reader of one slice after another.

        Raises:
            UsageError: an option limits batches, and this Spark does not tell a source where a batch begins; or the
                options ask for rows.
        """
        if self.rows() is not None:
            raise UsageError(
                f"{self.format}: {self.rows_option} is for spark.read, which gives the rows of a table. Leave it out "
                "for a stream of changes"
            )
        stream = self.stream()
        if stream.has_limit and not hasattr(DataSourceStreamReader, "getDefaultReadLimit"):
            raise UsageError(
                f"{self.format}: an option limits batches, which needs Spark 4.2 or newer. Leave it out: a batch then "
                "has everything that there is"
            )
        return _StreamReader(stream, schema, leaves_out=self._leaves_out)


def _arrow_batches(stream: SlicedStream, schema: Any, part: Any, *, leaves_out: bool) -> Iterator[Any]:
    from penstock.spark.rows import batches

    return batches(stream.read(part), _arrow_schema(schema), leaves_out=leaves_out)


def _arrow_schema(schema: Any) -> Any:
    """Return a schema of Spark as Spark compares it with the schema of batches.

    See `records_to_arrow_batches` in pyspark/sql/worker/plan_data_source_read.py.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    # Spark 4.0 and 4.1 have no such argument: there the zone of an Arrow schema is always UTC.
    named = "timezone" in signature(to_arrow_schema).parameters
    return to_arrow_schema(schema, **({"timezone": "UTC"} if named else {}))


class _BatchReader(DataSourceReader):
    def __init__(self, stream: SlicedStream, schema: Any, *, leaves_out: bool = False) -> None:
        self._stream, self._schema, self._leaves_out = stream, schema, leaves_out

    def partitions(self) -> Sequence[InputPartition]:
        # Spark takes an empty list for one partition without a value.
        return [Part(each) for each in self._stream.parts(*self._stream.bounds())] or [Part(None)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if partition.value is None:
            return iter(())
        return _arrow_batches(self._stream, self._schema, partition.value, leaves_out=self._leaves_out)


class _RowsReader(DataSourceReader):
    def __init__(self, rows: TableRows, schema: Any) -> None:
        self._rows, self._schema = rows, schema

    def partitions(self) -> Sequence[InputPartition]:
        return [Part(each) for each in self._rows.parts()]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        from penstock.spark.rows import row_batches

        return row_batches(self._rows.read(partition.value), _arrow_schema(self._schema))


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are planned on the driver; `read` runs on executors and knows its part only."""

    def __init__(self, stream: SlicedStream, schema: Any, *, leaves_out: bool = False) -> None:
        self._stream, self._schema, self._leaves_out = stream, schema, leaves_out
        self._target: Offset | None = None

    def initialOffset(self) -> Offset:
        return self._stream.first(self._target)

    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:
        """Return where the next batch ends. Spark 4.0 and 4.1 pass no arguments."""
        target = self._stream.last() if self._target is None else self._target
        return self._stream.slice_end(start, target, getattr(limit, "max_rows", None))

    def getDefaultReadLimit(self) -> Any:
        from pyspark.sql.streaming.datasource import ReadMaxRows

        most = self._stream.max_rows
        return super().getDefaultReadLimit() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._stream.last()

    def reportLatestOffset(self) -> Offset:
        return self._stream.last()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        return [Part(each) for each in self._stream.parts(start, end)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _arrow_batches(self._stream, self._schema, partition.value, leaves_out=self._leaves_out)

    def commit(self, end: Offset) -> None:
        self._stream.commit(end)


def require_same_stream(offset: Offset, identity: str, name: str) -> None:
    """Reject the checkpoint of another stream.

    Raises:
        SetupError: the offset has another identity.
    """
    found = offset.get("stream")
    if found != identity:
        raise SetupError(
            f"the checkpoint of the query belongs to the {found}, but {name} reads the {identity}. Change the options "
            "to continue from the checkpoint, or pass another checkpointLocation to read the other one"
        )
