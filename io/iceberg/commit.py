"""A commit of an Iceberg table through pyiceberg. Needs the extra `iceberg`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.errors import UsageError
from penstock.event.column_numbers import ColumnMoves, Numbers, source_text
from penstock.event.model import Source, TableSchema, Version
from penstock.event.schema_changes import SchemaChange, SchemaChangedError
from penstock.io.columnar.arrow_rows import (
    arrow_schema,
    columns_of_arrow,
)
from penstock.io.columnar.data_files import DataFile
from penstock.io.columnar.followed_columns import decode_numbers, encode_numbers
from penstock.io.columnar.log_shape import LogShape
from penstock.io.columnar.log_target import LogCommit
from penstock.io.columnar.partitions import (
    MANY_FILES,
    warn_of_many_files,
)
from penstock.io.columnar.positions import NO_POSITIONS, Positions
from penstock.io.columnar.replica import schema_change
from penstock.io.columnar.row_commit import RowCommit
from penstock.io.columnar.upkeep import GROUP_ROWS
from penstock.io.iceberg.field_ids import field_ids, with_field_ids
from penstock.io.iceberg.partitions import by_partition, record_of
from penstock.io.iceberg.rewind import (
    KNOWN,
    newest_mark,
)
from penstock.io.iceberg.snapshot_files import SnapshotFiles
from penstock.io.iceberg.statistics import entry_of, statistics_in
from penstock.io.iceberg.upkeep import entries_to_rewrite, new_file, rewritten
from penstock.io.staging.delivery import LedgerEntry

# Properties of a table that decide how it is written.
_FORMAT, _PARQUET, _MERGE = "write.format.default", "parquet", "commit.manifest-merge.enabled"
_GROUP = "write.parquet.row-group-limit"
DELETES_METADATA = "write.metadata.delete-after-commit.enabled"

_MAIN = "main"

_LAST_FORMAT = 2
"""The newest version of Iceberg's format that pyiceberg 0.12 writes."""


def as_written_here(table: Any) -> Any:
    """Prepare this handle of a table for a commit. Other handles and the catalogue keep the whole metadata."""
    metadata, current = table.metadata, table.current_snapshot()
    held = metadata.properties
    properties = {
        **held,
        "commit.retry.num-retries": "0",
        # A search for rows has a row group of each file in memory.
        _GROUP: str(min(GROUP_ROWS, int(held.get(_GROUP, GROUP_ROWS)))),
    }
    shorter = {
        # pyiceberg 0.12 copies the metadata some twenty times for a commit, with a snapshot for each earlier commit.
        "snapshots": [] if current is None else [current],
        "snapshot_log": [],
        # pyiceberg compares it with the new one to find the files of metadata that are to be deleted.
        "metadata_log": metadata.metadata_log if held.get(DELETES_METADATA) == "true" else [],
        "refs": {name: ref for name, ref in metadata.refs.items() if name == _MAIN},
    }
    table.metadata = metadata.model_copy(update={"properties": properties, **shorter})
    return table


@contextmanager
def _schema_errors(name: str, kind: str) -> Iterator[None]:
    """Turn what pyiceberg says of columns that it cannot rename or drop into an error that names the policy."""
    try:
        yield
    except ValueError as error:  # the base class of its validation errors too
        raise SchemaChangedError(
            f"{name}: Iceberg cannot {kind} a column ({error}): do it by hand, or set {kind}=lenient in schema_changes"
        ) from None


@dataclass(frozen=True, slots=True)
class IcebergCommit(RowCommit, LogCommit):
    """`files` are the files of the snapshot that the commit begins at. They are read when a row is looked for."""

    files: SnapshotFiles = field(kw_only=True, compare=False)

    @property
    def searched(self) -> SnapshotFiles:
        return self.files

    @property
    def compares_versions(self) -> bool:
        return True

    @property
    def snapshot(self) -> int | None:
        # After a commit the catalogue answers with the metadata of this commit.
        found: int | None = self.table.metadata.current_snapshot_id
        return found

    def _entry(self, what: str) -> str:
        return f"penstock.{what}.{self.delivery.writer}"

    def stored(self, what: str) -> int | None:
        found = self.table.metadata.properties.get(self._entry(what))
        return None if found is None else int(found)

    def ledger(self) -> LedgerEntry | None:
        # Absent: the sink has not written to this table.
        found = self.table.metadata.properties.get(self._entry("sink"))
        if found is None:
            return None
        generation, epoch, driver = found.split(":")
        return LedgerEntry(int(generation), int(epoch), driver)

    def entries(self, truncated: Version | None = None, forgotten: int | None = None) -> dict[str, str]:
        entries = {self._entry("sink"): ":".join(map(str, self.delivery.position))}
        if truncated is not None:
            entries[self._entry("truncated")] = str(truncated.order)
        if forgotten is not None:
            entries[self._entry("forgotten")] = str(forgotten)
        return entries

    @property
    def summary(self) -> dict[str, str]:
        """The entries of the sink in the summary of a snapshot."""
        known = newest_mark(self.table.metadata.properties, self.delivery.writer)
        marks = {} if known is None else {KNOWN: known}
        return {"penstock.epoch": str(self.delivery.epoch), **marks}

    def columns(self) -> TableSchema:
        return columns_of_arrow(self.table.schema().as_arrow())

    def fit(self, wanted: TableSchema, source: Source) -> tuple[TableSchema, SchemaChange]:
        return schema_change(self.name, self.columns(), wanted, self.policies(source))

    def read_columns(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for part in self.table.scan(selected_fields=tuple(names)).to_arrow_batch_reader():
            yield part.select(list(names))  # it has the order of the table

    def _columns_entry(self, source: Source) -> str:
        return f"penstock.columns.{source_text(source)}"

    def numbers(self, source: Source) -> Numbers:
        return decode_numbers(self.table.metadata.properties.get(self._columns_entry(source)))

    def move_columns(self, moves: ColumnMoves, source: Source) -> None:
        from pyiceberg.table.update import AssertCurrentSchemaId, AssertRefSnapshotId

        table = self.table
        with table.transaction() as transaction:
            # Catalogues do not compare properties. A driver that was paused must not bring older numbers back.
            transaction._stage(
                (),
                (
                    AssertCurrentSchemaId(current_schema_id=table.schema().schema_id),
                    AssertRefSnapshotId(ref=_MAIN, snapshot_id=self.snapshot),
                ),
            )
            # Two changes of the columns, because one cannot rename a column and drop it.
            with _schema_errors(self.name, "rename"), transaction.update_schema() as update:
                for old, new in moves.renamed.items():
                    update.rename_column(old, new)
            with _schema_errors(self.name, "drop"), transaction.update_schema() as update:
                for column in moves.dropped:
                    update.delete_column(column)
            transaction.set_properties({self._columns_entry(source): encode_numbers(moves.known)})

    def alter(self, shape: LogShape, source: Source) -> None:
        from pyiceberg.exceptions import ValidationError

        try:
            with self.table.update_schema() as update:
                update.union_by_name(self._requiring(arrow_schema(shape.columns)))
        except ValidationError as error:
            raise SchemaChangedError(
                f"{self.name}: Iceberg cannot make a column wider in this way ({error}). Write to another table, "
                "or set schema_changes='ignore', which leaves the column as it is"
            ) from None

    def takes(self, file: DataFile) -> bool:
        metadata, schema, found = self.table.metadata, self.table.schema(), statistics_in(file)
        shape = with_field_ids(arrow_schema(file.schema), schema)
        return (
            _has_partition(metadata.spec(), file)
            and not any(field.required for field in schema.fields)
            and metadata.properties.get(_FORMAT, _PARQUET) == _PARQUET
            # A person may have made the table again, or another column has got the id since the file was written.
            and found.table == str(metadata.table_uuid)
            and shape is not None
            and found.ids == field_ids(shape)
        )

    def add_files(self, files: Sequence[DataFile]) -> None:
        metadata = self.table.metadata
        with self.table.transaction() as transaction:
            update = transaction.update_snapshot(snapshot_properties=self.summary)
            # As pyiceberg's own append.
            merges = metadata.properties.get(_MERGE, "false").lower() == "true"
            with update.merge_append() if merges else update.fast_append() as append:
                for file in files:
                    append.append_data_file(entry_of(file, metadata.default_spec_id))
            transaction.set_properties(self.entries())

    def append(self, rows: pa.Table) -> None:
        with self.table.transaction() as transaction:
            if self.table.spec().is_unpartitioned():
                transaction.append(rows.cast(self._requiring(rows.schema)), snapshot_properties=self.summary)
            else:
                update = transaction.update_snapshot(snapshot_properties=self.summary)
                with update.fast_append() as append:
                    for file in _data_files(transaction, rows.cast(self._requiring(rows.schema)), self.name):
                        append.append_data_file(file)
            transaction.set_properties(self.entries())

    def _requiring(self, shape: pa.Schema) -> pa.Schema:
        """Return a schema with the columns required that the table of another program requires: so they stay."""
        required = {field.name for field in self.table.schema().fields if field.required}
        return pa.schema([field.with_nullable(field.name not in required) for field in shape])

    def write(
        self, rows: pa.Table, *, alters: bool, removed: Mapping[str, Positions], entries: Mapping[str, str]
    ) -> None:
        """Commit rows in place of those at `removed`, which has positions by file, with `entries`.

        If `alters`, the table gets the columns of `rows`.
        """
        from penstock.io.iceberg.row_delta import FORMAT_WITH_DELETES, RowDelta, remove_rows

        version = self.table.metadata.format_version
        if version > _LAST_FORMAT:
            raise UsageError(
                f"the Iceberg table {self.name} has version {version} of Iceberg's format, and pyiceberg writes up to "
                f"{_LAST_FORMAT}. Give the sink another table, or make it again with the property format-version=2"
            )
        with self.table.transaction() as transaction:
            if alters:
                with transaction.update_schema() as update:
                    # Columns are matched by name: Iceberg gives them ids, which a file does not know.
                    update.union_by_name(rows.schema)
            if removed:
                transaction.upgrade_table_version(FORMAT_WITH_DELETES)
            # An epoch that changes nothing has no snapshot, only the ledger.
            if rows.num_rows or removed:
                with RowDelta(transaction, self.files, self.summary) as delta:
                    for file in _data_files(transaction, rows, self.name):
                        delta.append_data_file(file)
                    remove_rows(delta, self.files, removed)
            transaction.set_properties(dict(entries))

    def maintain(self) -> None:
        # The files before the commit decide whether there is something to do, because they are read already.
        if not entries_to_rewrite(self.files):
            return
        from pyiceberg.table.snapshots import Operation

        from penstock.io.iceberg.row_delta import RowDelta, remove_rows

        # The commit has replaced the metadata of the handle, and with it what the handle had been prepared with.
        files = SnapshotFiles(as_written_here(self.table))
        chosen = entries_to_rewrite(files)
        if not chosen:
            return
        with (
            self.table.transaction() as transaction,
            RowDelta(transaction, files, {}, Operation.REPLACE) as delta,
        ):
            for file in rewritten(files, chosen):
                delta.append_data_file(file)
            for file in chosen:
                delta.delete_data_file(file)
            remove_rows(delta, files, NO_POSITIONS)


def _has_partition(spec: Any, file: DataFile) -> bool:
    """Return whether the rows of a file are of one partition of a spec."""
    if file.partition is None:
        return bool(spec.is_unpartitioned())
    names = [field.name for field in spec.fields]
    return file.partition.spec == spec.spec_id and list(file.partition.values) == names


def _data_files(transaction: Any, rows: pa.Table, name: str) -> Iterator[Any]:
    """Write rows to data files, as pyiceberg's own append does, and yield their entries."""
    from pyiceberg.io.pyarrow import _check_pyarrow_schema_compatible, _dataframe_to_data_files

    if not rows.num_rows:
        return
    metadata = transaction.table_metadata
    _check_pyarrow_schema_compatible(metadata.schema(), rows.schema, format_version=metadata.format_version)
    if not metadata.spec().is_unpartitioned():
        parts = by_partition(rows, metadata.schema(), metadata.spec())
        if len(parts) > MANY_FILES:
            warn_of_many_files(name)
        for partition, part in parts:
            yield new_file(
                transaction._table, metadata.schema(), [part], partition.spec, record_of(partition)
            )
        return
    # Private in pyiceberg 0.12: its public append makes a snapshot by itself.
    for file in _dataframe_to_data_files(metadata, rows, transaction._table.io):
        file.spec_id = metadata.default_spec_id
        yield file
