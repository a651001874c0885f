"""An open Parquet file of a table, read by row groups and by the columns of the table. Needs pyarrow.

A format of tables adds how a file gets the columns and types of the table: `OpenFile`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

Bounds = Callable[[str], tuple[Any, Any] | None]
"""The lowest and the highest value that a column can have, both inclusive; None: they are not known."""


class OpenFile(ABC):
    """The row groups of a file. Columns have their names in the table, which may differ from those in the file."""

    def __init__(self, path: str, stream: Any) -> None:
        self.path = path
        self._file = pyarrow.parquet.ParquetFile(stream)
        self._names = self._own_names(self._file.schema_arrow)
        metadata = self._file.metadata
        self._sizes = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
        self.firsts: list[int] = [0, *np.cumsum(self._sizes).tolist()][: len(self._sizes)]
        """The position of the first row of each row group."""

    @property
    def num_rows(self) -> int:
        """The rows of the file."""
        return sum(self._sizes)

    @abstractmethod
    def _own_names(self, shape: pa.Schema) -> Mapping[str, str]:
        """Return by the name of a column in the table its name in this file, whose schema is `shape`."""

    @abstractmethod
    def _table_schema(self) -> pa.Schema:
        """Return the columns of the table."""

    @abstractmethod
    def _fitted(self, rows: pa.Table) -> pa.Table:
        """Give rows of this file the columns of the table, with its types."""

    def bounds(self, number: int) -> Bounds:
        """Return the bounds of a row group, for columns without fields."""
        group = self._file.metadata.row_group(number)
        places = {group.column(place).path_in_schema: place for place in range(group.num_columns)}

        def bounds(name: str) -> tuple[Any, Any] | None:
            place = places.get(self._names.get(name, ""))
            found = None if place is None else group.column(place).statistics
            # Bytes: another program has not said that they are texts.
            if found is None or not found.has_min_max or isinstance(found.min, bytes):
                return None
            return found.min, found.max

        return bounds

    def _read(self, number: int, own: Sequence[str] | None = None) -> pa.Table:
        """Return columns of a row group by their names in the file; None: all."""
        return self._file.read_row_group(number, columns=own)

    def size(self, number: int) -> int:
        """Return the rows of a row group."""
        return self._sizes[number]

    def rows(self, number: int, columns: Sequence[str] | None, places: Any = None) -> pa.Table:
        """Return rows of a row group: those at `places`, or all.

        `columns` are names of columns without fields; None: all columns of the table, with its types. Then `places`
        must not be empty.
        """
        if columns is None:
            whole = self._read(number)
            return self._fitted(whole if places is None else whole.take(places))
        held = [name for name in columns if name in self._names]
        own = [self._names[name] for name in held]
        rows = self._read(number, own).select(own).rename_columns(held)
        # A file that is older than a column has no value for it.
        for name in (name for name in columns if name not in held):
            type_ = self._table_schema().field(name).type
            rows = rows.append_column(name, pa.nulls(self._sizes[number], type_))
        return rows if places is None else rows.take(places)
