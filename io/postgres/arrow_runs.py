"""Batches of PostgreSQL's log records as runs of change rows, for sinks of files. Needs the extra `arrow`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from penstock.event.model import Source, TableSchema
from penstock.io.columnar.row_runs import MIN_ROWS, TableRows, runs_of_rows
from penstock.io.columnar.whole_rows import are_whole, rows_of_changes
from penstock.io.postgres.arrow_rows import TablesInArrow
from penstock.io.postgres.events import EventConverter
from penstock.io.postgres.initial_scan.copied_rows import CopiedRows
from penstock.io.postgres.logged_rows import neighbours_by_table
from penstock.io.postgres.record import LogRecord, Table

Output = tuple[list[Any], list[int]]
"""`BucketRun`s and events in order, and the event time of each in µs since 1970: of a run the earliest of its rows."""


class RowsOfTables:
    """Converts the records of a table of one database to rows. Picklable.

    `whole`: to whole rows (`penstock.io.columnar.whole_rows`).
    """

    def __init__(self, database: str = "", stream: str = "", *, whole: bool = False) -> None:
        self._arguments, self._whole = (database, stream), whole
        self.convert = EventConverter("", database, stream)
        self._tables = TablesInArrow(self.convert)

    def __reduce__(self) -> Any:
        # What is known of the tables is made again in the worker.
        return partial(RowsOfTables, whole=self._whole), self._arguments

    def rows(self, table: Table, records: Sequence[LogRecord]) -> TableRows | None:
        """Return the records of a table as rows; None: they must be made from events."""
        source, schema = self.convert.source_and_schema(table)
        if self._whole and not are_whole(schema):
            return None
        rows = self._tables.rows(table, records)
        if rows is None or not self._whole:
            return None if rows is None else TableRows(source, rows)
        whole = rows_of_changes(rows, schema)
        return None if whole is None else TableRows(source, whole, schema)


class LogRows:
    """Converts batches of the records of one database. Picklable.

    `bucket` is a function from a source, columns and an event time, in µs since 1970, to the bucket of the rows.
    `whole`: see `penstock.io.columnar.row_runs.EventRows`.
    """

    def __init__(
        self,
        bucket: Callable[[Source, TableSchema, int], str],
        *,
        database: str = "",
        stream: str = "",
        whole: bool = False,
    ) -> None:
        self._bucket, self._tables = bucket, RowsOfTables(database, stream, whole=whole)

    def __call__(self, records: Sequence[LogRecord], times_us: Sequence[int]) -> Output:
        """Return the records as `BucketRun`s, and as events where they are few or have no short way.

        Raises:
            ValueError: a value does not have the form of its type; the message names table and column, not the value.
        """
        made: Output = [], []
        if isinstance(records, CopiedRows):
            self._add(made, records.table, records, times_us)
            return made
        start = 0
        for table, neighbours in neighbours_by_table(records):
            end = start + len(neighbours)
            self._add(made, table, neighbours, times_us[start:end])
            start = end
        return made

    def _add(
        self, made: Output, table: Table | None, records: Sequence[LogRecord], times_us: Sequence[int]
    ) -> None:
        elements, event_times = made
        if table is not None and len(records) >= MIN_ROWS:
            rows = self._tables.rows(table, records)
            if rows is not None:
                source, schema = self._tables.convert.source_and_schema(table)
                for run in runs_of_rows(rows, times_us, partial(self._bucket, source, schema)):
                    elements.append(run)
                    event_times.append(min(run.times_us))
                return
        for record, time_us in zip(records, times_us, strict=True):
            for event in self._tables.convert(record):
                elements.append(event)
                event_times.append(time_us)
