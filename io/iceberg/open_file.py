"""An open Parquet file of an Iceberg table, read by row groups and by the columns of the table.

Needs the extra `iceberg`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from penstock.errors import UsageError

_ID = b"PARQUET:field_id"

Bounds = Callable[[str], tuple[Any, Any] | None]
"""The lowest and the highest value that a column can have, both inclusive; None: they are not known."""


@contextmanager
def opened(table: Any, file: Any) -> Iterator[OpenFile]:
    """Open a data file, an entry of pyiceberg.

    Raises:
        UsageError: it is not Parquet.
    """
    from pyiceberg.manifest import FileFormat

    if file.file_format != FileFormat.PARQUET:
        raise UsageError(
            f"the Iceberg table {'.'.join(table.name())} has files of another format than Parquet, in which the modes "
            "current and history cannot look for rows. Write its files again as Parquet, or give the sink another table"
        )
    with table.io.new_input(file.file_path).open() as stream:
        yield OpenFile(table, file, stream)


class OpenFile:
    """The row groups of a file. Columns have their names in the table, which may differ from those in the file."""

    def __init__(self, table: Any, file: Any, stream: Any) -> None:
        self.path: str = file.file_path
        self._table, self._entry = table, file
        self._file = pyarrow.parquet.ParquetFile(stream)
        self._names = _own_names(self._file.schema_arrow, table.schema())
        metadata = self._file.metadata
        self._sizes = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
        self.firsts: list[int] = [0, *np.cumsum(self._sizes).tolist()][: len(self._sizes)]
        """The position of the first row of each row group."""

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

    def size(self, number: int) -> int:
        """Return the rows of a row group."""
        return self._sizes[number]

    def rows(self, number: int, columns: Sequence[str] | None, places: Any = None) -> pa.Table:
        """Return rows of a row group: those at `places`, or all.

        `columns` are names of columns without fields; None: all columns of the table, with its types. Then `places`
        must not be empty.
        """
        if columns is None:
            whole = self._file.read_row_group(number)
            return self._fitted(whole if places is None else whole.take(places))
        held = [name for name in columns if name in self._names]
        own = [self._names[name] for name in held]
        rows = self._file.read_row_group(number, columns=own).select(own).rename_columns(held)
        # A file that is older than a column has no value for it.
        for name in (name for name in columns if name not in held):
            type_ = self._table.schema().as_arrow().field(name).type
            rows = rows.append_column(name, pa.nulls(self._sizes[number], type_))
        return rows if places is None else rows.take(places)

    def _fitted(self, rows: pa.Table) -> pa.Table:
        # pyiceberg 0.12 has no public function that gives rows of a file the columns of a table by their ids.
        from pyiceberg.io.pyarrow import (
            _get_column_projection_values,
            _to_requested_schema,
            pyarrow_to_schema,
            schema_to_pyarrow,
        )

        metadata, schema = self._table.metadata, self._table.schema()
        shape = self._file.schema_arrow
        held = pyarrow_to_schema(shape, metadata.name_mapping(), downcast_ns_timestamp_to_us=True)
        spec = metadata.specs().get(self._entry.spec_id)
        options: dict[str, Any] = {
            "downcast_ns_timestamp_to_us": True,
            "projected_missing_fields": _get_column_projection_values(
                self._entry, schema, schema, spec, held.field_ids
            ),
            "allow_timestamp_tz_mismatch": True,
        }
        batches = [_to_requested_schema(schema, held, batch, **options) for batch in rows.to_batches()]
        # Files of several writers have several variants of one type, such as texts with long offsets.
        return pa.Table.from_batches(batches).cast(schema_to_pyarrow(schema))


def _own_names(shape: pa.Schema, schema: Any) -> dict[str, str]:
    """Return by the name of a column in the table its name in a file, whose schema is `shape`."""
    ids = {int(field.metadata[_ID]): field.name for field in shape if _ID in (field.metadata or {})}
    # Another program has added a file without ids, which is read by names.
    if not ids:
        return {name: name for name in shape.names}
    return {field.name: ids[field.field_id] for field in schema.fields if field.field_id in ids}
