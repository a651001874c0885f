"""Tables, columns and change streams as DDL defines them. Values only.

Source: Spanner documentation, "GoogleSQL data definition language", "PostgreSQL data definition language" and
"Change streams overview" (watched objects, options and their defaults).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock_emulators.simulated_spanner.column_type import GOOGLESQL, ColumnType
from penstock_emulators.simulated_spanner.errors import failed, not_found
from penstock_emulators.simulated_spanner.value import Value

CAPTURE_TYPES = ("OLD_AND_NEW_VALUES", "NEW_VALUES", "NEW_ROW", "NEW_ROW_AND_OLD_VALUES")
IMMUTABLE, MUTABLE = "IMMUTABLE_KEY_RANGE", "MUTABLE_KEY_RANGE"
DEFAULT_PLACEMENT = "default"
MAX_STREAMS, MAX_STREAMS_PER_TABLE = 10, 3
"""Limits. Source: Spanner documentation, "Quotas and limits", "Change streams"."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column. `length` is n of STRING(n) and BYTES(n), None for MAX and for other types."""

    name: str
    kind: ColumnType
    not_null: bool = False
    length: int | None = None
    placement_key: bool = False
    default: Value = None


@dataclass(frozen=True, slots=True)
class Table:
    """A table. `key` are the indexes of the key columns in `columns`, `descending` those that sort downwards."""

    name: str
    columns: tuple[Column, ...]
    key: tuple[int, ...]
    descending: tuple[bool, ...]

    def index(self, column: str) -> int:
        """Return the index of a column.

        Raises:
            ServiceError: the table has none of that name.
        """
        for number, each in enumerate(self.columns):
            if each.name.lower() == column.lower():
                return number
        raise not_found(f"Column not found in table {self.name}: {column}")

    @property
    def placement_column(self) -> int | None:
        """The index of the placement key; None if the rows have no placement."""
        return next((number for number, each in enumerate(self.columns) if each.placement_key), None)


@dataclass(frozen=True, slots=True)
class StreamDefinition:
    """A change stream. `tables` are the watched columns by table, None for all; `all_tables` is FOR ALL."""

    name: str
    all_tables: bool = False
    tables: Mapping[str, tuple[str, ...] | None] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def capture(self) -> str:
        """The value capture type."""
        return self.options.get("value_capture_type", CAPTURE_TYPES[0])

    @property
    def partition_mode(self) -> str:
        """IMMUTABLE_KEY_RANGE or MUTABLE_KEY_RANGE."""
        return self.options.get("partition_mode", IMMUTABLE)

    @property
    def retention_seconds(self) -> int:
        """How long records can be read."""
        return duration_seconds(self.options.get("retention_period", "1d"))

    def has(self, option: str) -> bool:
        """Return whether a boolean option is set."""
        return self.options.get(option, "false") == "true"

    def watched(self, table: Table) -> tuple[int, ...] | None:
        """Return the indexes of the watched columns that are no key; None if the table is not watched."""
        # Columns of the key are always watched.
        others = [number for number in range(len(table.columns)) if number not in table.key]
        if self.all_tables:
            return tuple(others)
        for name, columns in self.tables.items():
            # Names are compared without case, as in GoogleSQL.
            if name.lower() == table.name.lower():
                wanted = None if columns is None else {each.lower() for each in columns}
                return tuple(n for n in others if wanted is None or table.columns[n].name.lower() in wanted)
        return None


@dataclass(slots=True)
class Schema:
    """The objects that DDL made, by name as it was written; look-ups ignore case."""

    dialect: str = GOOGLESQL
    tables: dict[str, Table] = field(default_factory=dict)
    streams: dict[str, StreamDefinition] = field(default_factory=dict)
    placements: list[str] = field(default_factory=list)
    named_schemas: list[str] = field(default_factory=list)
    proto_messages: set[str] = field(default_factory=set)
    proto_enums: set[str] = field(default_factory=set)
    version_retention: str = "1h"
    statements: list[str] = field(default_factory=list)

    def table(self, name: str) -> Table:
        """Return a table.

        Raises:
            ServiceError: there is none of that name.
        """
        found = find(self.tables, name)
        if found is None:
            raise not_found(f"Table not found: {name}")
        return self.tables[found]

    def stream(self, name: str) -> StreamDefinition:
        """Return a change stream.

        Raises:
            ServiceError: there is none of that name.
        """
        found = find(self.streams, name)
        if found is None:
            raise not_found(f"Change Stream not found: {name}")
        return self.streams[found]


def find(names: Mapping[str, object], name: str) -> str | None:
    """Return the key of `names` that equals `name` but for case."""
    # Usually the case is right, and then no search is needed.
    if name in names:
        return name
    return next((each for each in names if each.lower() == name.lower()), None)


def duration_seconds(text: str) -> int:
    """Return the seconds of a retention period such as ``36h``.

    Raises:
        ServiceError: not a number and one of d, h, m, s.
    """
    units = {"d": 86_400, "h": 3600, "m": 60, "s": 1}
    if not text or text[-1] not in units or not text[:-1].isdigit():
        raise failed(f"Invalid time duration format: {text}.")
    return int(text[:-1]) * units[text[-1]]
