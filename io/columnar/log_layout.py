"""The layouts of a change log: change rows (*events*), or the rows of a change feed (*table*). Needs pyarrow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import UsageError
from penstock.event.change_feed import change_feed, change_feed_schema
from penstock.event.change_rows import IMAGES, change_row_schema, change_rows
from penstock.event.column_types import ColumnType, Field, Kind
from penstock.event.feed_rows import FEED_COLUMNS, Layout, has_feed_row
from penstock.event.model import ChangeEvent, Column, TableSchema
from penstock.io.columnar.table_rows import PREFIX


class LogLayout(ABC):
    """The rows of events of one table, and what their columns say about the columns of the source."""

    @abstractmethod
    def schema(self, columns: TableSchema) -> pa.Schema:
        """Return the Arrow schema of the rows of a table with these columns.

        Raises:
            UsageError: the table has a column with a name of the layout.
        """

    @abstractmethod
    def rows(self, events: Sequence[ChangeEvent], columns: TableSchema) -> pa.Table:
        """Return events of one table as rows, in their order. `columns` has the columns of all events.

        Raises:
            UnwritableError: a value that its column cannot hold, or a change that no row can show.
        """

    @abstractmethod
    def has_row(self, event: ChangeEvent) -> bool:
        """Return whether an event has rows."""

    @abstractmethod
    def versions(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return the version of each row, as a text that sorts as versions do."""

    @abstractmethod
    def source_columns(self, log: TableSchema) -> TableSchema:
        """Return the columns of the source from the columns of a log."""

    @abstractmethod
    def is_own(self, name: str) -> bool:
        """Return whether a column of a log has something else than values of the source."""

    @abstractmethod
    def holding(self, held: TableSchema, wanted: TableSchema, after: TableSchema) -> dict[str, Column]:
        """Return the columns of a log that have the values of the source.

        `held`: the columns of the log. `wanted`: the columns of the source, with its key. `after`: the columns of the
        source that the log is to have.
        """

    @abstractmethod
    def order(self, columns: TableSchema) -> Sequence[str]:
        """Return the columns of a log of a table with these columns in their order. Some may be missing."""


class _ChangeRows(LogLayout):
    """See `penstock.event.change_rows`: the columns of the source are fields of the images."""

    def schema(self, columns: TableSchema) -> pa.Schema:
        return change_row_schema(columns)

    def rows(self, events: Sequence[ChangeEvent], columns: TableSchema) -> pa.Table:
        return change_rows(events, columns)

    def has_row(self, event: ChangeEvent) -> bool:
        return True

    def versions(self, rows: pa.Table) -> pa.ChunkedArray:
        return pc.struct_field(rows.column("metadata"), "version")

    def source_columns(self, log: TableSchema) -> TableSchema:
        keys = {field.name: place for place, field in enumerate(_fields(log, "key"), 1)}
        return TableSchema(
            tuple(
                Column(each.name, each.type, key_position=keys.get(each.name))
                for each in _fields(log, "after")
            )
        )

    def is_own(self, name: str) -> bool:
        return name not in IMAGES

    def holding(self, held: TableSchema, wanted: TableSchema, after: TableSchema) -> dict[str, Column]:
        types = {column.name: column.type for column in after}
        # The table's own order comes first: readers find a field of a struct only in a prefix of the table's struct.
        keys = dict.fromkeys(
            [field.name for field in _fields(held, "key")] + [c.name for c in wanted.key_columns]
        )
        key = tuple(Field(name, types[name]) for name in keys if name in types)
        image = tuple(Field(column.name, column.type) for column in after)
        return {
            name: Column(name, ColumnType(Kind.STRUCT, fields=fields))
            for name, fields in zip(IMAGES, (key, image, image), strict=True)
            if fields
        }

    def order(self, columns: TableSchema) -> Sequence[str]:
        return "op", "timestamp", *IMAGES


class _FeedRows(LogLayout):
    """See `penstock.event.change_feed`: the columns of the source are columns of the log."""

    def schema(self, columns: TableSchema) -> pa.Schema:
        return change_feed_schema(columns, "the table")

    def rows(self, events: Sequence[ChangeEvent], columns: TableSchema) -> pa.Table:
        return change_feed(events, columns)

    def has_row(self, event: ChangeEvent) -> bool:
        return has_feed_row(event)

    def versions(self, rows: pa.Table) -> pa.ChunkedArray:
        return rows.column("_commit_version")

    def source_columns(self, log: TableSchema) -> TableSchema:
        return TableSchema(tuple(column for column in log if not self.is_own(column.name)))

    def is_own(self, name: str) -> bool:
        # A unit of time by which the table is partitioned begins with the prefix.
        return name in FEED_COLUMNS or name.startswith(PREFIX)

    def holding(self, held: TableSchema, wanted: TableSchema, after: TableSchema) -> dict[str, Column]:
        return {column.name: Column(column.name, column.type) for column in after}

    def order(self, columns: TableSchema) -> Sequence[str]:
        return *columns.names, *FEED_COLUMNS


LOG_LAYOUTS: Mapping[Layout, LogLayout] = {"events": _ChangeRows(), "table": _FeedRows()}


def has_feed(names: Iterable[str]) -> bool:
    """Return whether rows with columns of these names are a change feed."""
    # A file may lack the other ones, which can partition its table.
    return {"_commit_version", "_not_sent"} <= set(names)


def check_layout(
    what: str,
    columns: TableSchema,
    layout: Layout,
    fix: str = "set the other layout, or give the sink another table",
) -> None:
    """Check that rows with these columns have a layout. `what` has them, in the message; `fix` ends it.

    Raises:
        UsageError: they have another one.
    """
    is_feed = has_feed(columns.names)
    if is_feed != (layout == "table"):
        own = "the columns of a change feed" if is_feed else "other columns than a change feed"
        raise UsageError(f"{what} has {own}, and the sink has layout={layout}: {fix}")


def _fields(log: TableSchema, name: str) -> tuple[Field, ...]:
    return next((column.type.fields for column in log if column.name == name), ())
