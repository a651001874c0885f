"""An open Parquet file of an Iceberg table, whose columns have ids.

Needs the extra `iceberg`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from penstock.errors import UsageError
from penstock.io.columnar.open_file import OpenFile

_ID = b"PARQUET:field_id"


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
        yield _IcebergFile(table, file, stream)


class _IcebergFile(OpenFile):
    def __init__(self, table: Any, file: Any, stream: Any) -> None:
        self._table, self._entry = table, file
        super().__init__(file.file_path, stream)

    def _own_names(self, shape: pa.Schema) -> dict[str, str]:
        schema = self._table.schema()
        ids = {int(field.metadata[_ID]): field.name for field in shape if _ID in (field.metadata or {})}
        # Another program has added a file without ids, which is read by names.
        if not ids:
            return {name: name for name in shape.names}
        return {field.name: ids[field.field_id] for field in schema.fields if field.field_id in ids}

    def _table_schema(self) -> pa.Schema:
        found: pa.Schema = self._table.schema().as_arrow()
        return found

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
