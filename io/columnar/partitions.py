"""By which columns a table is partitioned: `partition_by` of the table sinks. Pure.

    region                    the value of a column, in all tables
    day(timestamp)            the day of a time in UTC: year, month, day or hour
    orders=day(created_at)    only in some tables: a name or a glob as in `penstock.tables`

All entries that fit a table count, in their order. They are for tables that the sink creates. A table that exists keeps
its own partitions.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from penstock.errors import UsageError
from penstock.event.column_types import Kind
from penstock.event.feed_rows import Layout
from penstock.event.model import Column, Source, TableSchema
from penstock.io.columnar.table_rows import LOG_TIMES, PREFIX, TIMESTAMP, Mode
from penstock.tables import matches_table

logger = logging.getLogger(__name__)

Entries = str | Sequence[str]
"""The value of `partition_by`: one entry, or several."""

TimeUnit = Literal["year", "month", "day", "hour"]
TIME_UNITS: tuple[TimeUnit, ...] = get_args(TimeUnit)

MANY_FILES = 100
"""A commit that adds more files than this to a table is worth a warning: each of them is small."""

_VALUES = frozenset((Kind.BOOL, Kind.INT8, Kind.INT16, Kind.INT32, Kind.INT64, Kind.STRING, Kind.DATE))
_TIMES = frozenset((Kind.TIMESTAMP, Kind.LOCAL_TIMESTAMP, Kind.DATE))
_ENTRY = re.compile(r"(?:(?P<table>[^=]+)=)?(?:(?P<unit>\w+)\((?P<time>[^()]+)\)|(?P<column>[^()=]+))")
_LOG_COLUMNS: Mapping[Layout, tuple[str, str]] = {
    "events": ("op", LOG_TIMES["events"]),
    "table": ("_change_type", LOG_TIMES["table"]),
}
"""The columns of a change log that may partition it: the second one by a unit of time."""


class PartitionField(NamedTuple):
    """A column by which a table is partitioned. `transform`: *identity*, a unit of time, or one of Iceberg's."""

    column: str
    transform: str = "identity"

    def __str__(self) -> str:
        return self.column if self.transform == "identity" else f"{self.transform}({self.column})"


class Partition(msgspec.Struct, frozen=True, array_like=True):
    """The partition of a data file: names and values of its fields in the words of the format.

    `spec` tells several partitionings of one table apart, where the format has them.
    """

    values: dict[str, Any]
    spec: int = 0


class PartitionEntry(NamedTuple):
    """An entry of `partition_by`. `pattern`: of tables; "" is every table."""

    pattern: str
    field: PartitionField


def partition_entries(
    partition_by: Entries, mode: Mode, layout: Layout = "events"
) -> tuple[PartitionEntry, ...]:
    """Return the entries of `partition_by`.

    Raises:
        UsageError: an entry cannot be read, or names a column that cannot partition a table in this mode.
    """
    entries = tuple(map(_entry, (partition_by,) if isinstance(partition_by, str) else partition_by))
    for entry in entries:
        _check_mode(entry.field, mode, layout)
    return entries


def fields_of(entries: Sequence[PartitionEntry], source: Source) -> tuple[PartitionField, ...]:
    """Return by what the target of a table of the source is partitioned, if the sink creates it."""
    meant = (
        entry.field
        for entry in entries
        if not entry.pattern or matches_table((entry.pattern,), source.schema, source.table)
    )
    return tuple(dict.fromkeys(meant))


def check_columns(name: str, fields: Sequence[PartitionField], columns: TableSchema) -> None:
    """Check that a new table with these plain columns can be partitioned.

    Raises:
        UsageError: it cannot; the message names the column and the fix.
    """
    known = {column.name: column for column in columns}
    check_names(name, fields, known)
    for field in fields:
        _check_type(name, field, known[field.column])


def check_names(name: str, fields: Sequence[PartitionField], columns: Collection[str]) -> None:
    """Check that a new table has the columns by which it is to be partitioned.

    Raises:
        UsageError: one is missing.
    """
    for field in fields:
        if field.column not in columns:
            raise UsageError(
                f"partition_by: the table {name} has no column {field.column}. Name the tables that have it, as in "
                f"orders={field}"
            )


def check_own(name: str, own: Sequence[PartitionField], wanted: Sequence[PartitionField]) -> None:
    """Check that a table that exists has the partitions that the option asks for, if it asks for some.

    Raises:
        UsageError: it has others.
    """
    if wanted and tuple(own) != tuple(wanted):
        held = ", ".join(map(str, own)) or "nothing"
        raise UsageError(
            f"the table {name} exists and is partitioned by {held}, and partition_by asks for "
            f"{', '.join(map(str, wanted))}: partitions of a table are not changed. Leave partition_by out for this "
            "table, so that it keeps its own, or give the sink another table"
        )


def derived_name(field: PartitionField) -> str:
    """Return the name of the column with the unit of a time, in formats that partition by values of columns only."""
    return f"{PREFIX}{field.transform}_of_{field.column}"


def field_of_column(name: str) -> PartitionField:
    """Return by what a column of such a format partitions its table."""
    # DOTALL: the name of a column may contain line feeds.
    found = re.fullmatch(rf"{PREFIX}({'|'.join(TIME_UNITS)})_of_(.+)", name, re.DOTALL)
    return PartitionField(name) if found is None else PartitionField(found[2], found[1])


@lru_cache(maxsize=1000)
def warn_of_many_files(name: str) -> None:
    """Warn, once for each table, that a commit has added more than `MANY_FILES` files."""
    logger.warning(
        "a commit has added more than %s files to the table %s: it changes rows of so many partitions. Small files "
        "make reading slow. Use a larger roll_seconds or a coarser partition_by",
        MANY_FILES,
        name,
    )


def _entry(text: str) -> PartitionEntry:
    found = _ENTRY.fullmatch(text.strip())
    if found is None or (found["unit"] is not None and found["unit"] not in TIME_UNITS):
        raise UsageError(
            f"partition_by has entries such as region, day(created_at) or orders=day(created_at), with one of "
            f"{', '.join(TIME_UNITS)}; got {text!r}."
        )
    field = PartitionField(found["column"] or found["time"], found["unit"] or "identity")
    return PartitionEntry(found["table"] or "", field)


def _check_mode(field: PartitionField, mode: Mode, layout: Layout) -> None:
    if mode == "log":
        value, time = _LOG_COLUMNS[layout]
        if field.column != (value if field.transform == "identity" else time):
            raise UsageError(
                f"partition_by={field}: a table with mode=log and layout={layout} can be partitioned by {value}, and "
                f"by a unit of {time} such as day({time}), the commit time."
            )
    elif field.column.startswith(PREFIX) and not (mode == "history" and field.column == TIMESTAMP):
        raise UsageError(
            f"partition_by={field}: with mode={mode} name a column of the source"
            + (f", or a unit of {TIMESTAMP} such as day({TIMESTAMP})." if mode == "history" else ".")
        )


def _check_type(name: str, field: PartitionField, column: Column) -> None:
    kind = column.type.kind
    if field.transform == "identity":
        if kind not in _VALUES:
            advice = f"day({field.column})" if kind in _TIMES else "another column"
            raise UsageError(
                f"partition_by: the column {field.column} of the table {name} has the type {kind.name}. Texts, "
                f"integers, dates and booleans partition a table. Use {advice}"
            )
    elif kind not in _TIMES or (kind is Kind.DATE and field.transform == "hour"):
        raise UsageError(
            f"partition_by: {field} of the table {name} needs a time, and the column has the type {kind.name}"
        )
