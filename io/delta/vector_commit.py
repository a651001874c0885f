"""A commit of a Delta table that replaces rows by deletion vectors: its cost does not grow with the table.

Needs the extra `delta`. delta-rs 1.6 reads deletion vectors, and writes none. So the entry of the log is written here
(docs/decisions/0058-…); everything else is done by delta-rs: the snapshot, its protocol, checkpoints and the commits
that have no vectors.
"""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet

from penstock.event.model import Source, TableSchema, Version
from penstock.event.schema_changes import SchemaChange
from penstock.io.columnar.parquet import parquet_file
from penstock.io.columnar.partitions import MANY_FILES, warn_of_many_files
from penstock.io.columnar.positions import NO_ROWS, Positions, joined
from penstock.io.columnar.row_commit import RowCommit
from penstock.io.columnar.upkeep import GROUP_ROWS, FileSize, files_to_rewrite, rows_of_new_files
from penstock.io.delta.commit import (
    WRITER_WITH_FEATURES,
    CommitEntries,
    DeltaCommit,
    is_plain,
    table_schema_of,
)
from penstock.io.delta.deletion_vectors import Vector, new_id, vectors_of
from penstock.io.delta.partitions import Values, by_partition
from penstock.io.delta.snapshot_files import SnapshotFiles
from penstock.io.delta.statistics import statistics_of
from penstock.io.delta.table_log import Action, AddedFile, RemovedFile, put_commit, transactions_of
from penstock.io.delta.vector_cleanup import delete_dead_vectors
from penstock.io.staging.delivery import TargetUnavailableError

ENABLED = "delta.enableDeletionVectors"
_FEATURE = "deletionVectors"
_APPEND_ONLY, _CHECKPOINTS, _CLEANS = (
    "delta.appendOnly",
    "delta.checkpointInterval",
    "delta.enableExpiredLogCleanup",
)
_READER_WITH_FEATURES = 3
_IMPLIED = ("appendOnly", "invariants")
"""Features of the protocol for writers of version 2, which a list of features must name."""

# Checkpoints of this feature have files besides, and its delta-rs support is young.
_OTHER_CHECKPOINTS = "v2Checkpoint"


def has_vectors(table: Any, wanted: bool) -> bool:
    """Return whether rows of an open table are replaced by deletion vectors.

    Its own property decides. `wanted`: the sink sets the property of a table without it.
    """
    configuration = table.metadata().configuration
    enabled = configuration.get(ENABLED, str(wanted)).lower() == "true"
    if not enabled or configuration.get(_APPEND_ONLY, "false").lower() == "true":
        return False
    return is_plain(table) and _OTHER_CHECKPOINTS not in (table.protocol().writer_features or ())


@dataclass(frozen=True, slots=True)
class VectorCommit(RowCommit, DeltaCommit):
    """`files` are the files of the snapshot that the commit begins at. They are read when a row is looked for.

    `own`: the versions of the table that this commit has made.
    """

    files: SnapshotFiles = field(kw_only=True, compare=False)
    own: list[int] = field(default_factory=list, init=False, compare=False)

    @property
    def searched(self) -> SnapshotFiles:
        return self.files

    def entries(self, truncated: Version | None = None, forgotten: int | None = None) -> CommitEntries:
        return DeltaCommit.entries(self, truncated, forgotten)

    def committed(self, before: int | None) -> int:
        # The keys are known up to the first version that another writer may have made.
        found = before or 0
        while found + 1 in self.own:
            found += 1
        return found

    def fit(self, wanted: TableSchema, source: Source) -> tuple[TableSchema, SchemaChange]:
        after, change = DeltaCommit.fit(self, wanted, source)
        if change.widened:
            self.files.forget()
        return after, change

    def append(self, rows: pa.Table) -> None:
        from deltalake import WriterProperties, write_deltalake

        write_deltalake(
            self.table,
            self.divisible(rows),
            mode="append",
            schema_mode="merge",
            # A search for rows has a row group of each file in memory.
            writer_properties=WriterProperties(max_row_group_size=GROUP_ROWS),
            commit_properties=self.properties(),
        )
        self.own.append(int(self.table.version()))

    def write(
        self, rows: pa.Table, *, alters: bool, removed: Mapping[str, Positions], entries: CommitEntries
    ) -> None:
        if self.are_new:
            self.append(rows)
            return
        if alters:
            # A commit before the one of the rows. After a crash between the two the table has the columns already.
            self.add_columns(rows.schema)
        actions = transactions_of(entries.transactions)
        parts = by_partition(self.divisible(rows), self.table.metadata().partition_columns)
        if len(parts) > MANY_FILES:
            warn_of_many_files(self.name)
        actions += [
            Action(add=self._new_file(values, [part], part.schema, data_change=True))
            for values, part in parts
        ]
        actions += self._removals(removed)
        if removed:
            actions += self._protocol()
        self._commit("MERGE", actions, entries.metadata)

    def _removals(self, removed: Mapping[str, Positions]) -> Iterator[Action]:
        """Write the vectors of files that lose rows, and yield their entries. A file without rows is removed."""
        stored = {each.path: each for each in self.files.stored}
        # A data file has one vector, so the new one also has the rows that were deleted before.
        rows = joined([removed, {path: self.files.gone.get(path, NO_ROWS) for path in removed}])
        kept = [path for path, positions in rows.items() if len(positions) < self.files.rows(stored[path])]
        now_ms = _now_ms()
        for path in rows:
            yield Action(remove=RemovedFile.of(stored[path], now_ms, data_change=True))
        if not kept:
            return
        name, content, vectors = vectors_of([rows[path] for path in kept], new_id(now_ms))
        self.files.folder.create(name, [content])
        # Durable before the entry of the log names it, as is each new data file.
        self.files.folder.sync([name])
        for path, vector in zip(kept, vectors, strict=True):
            yield Action(add=_with_vector(stored[path], vector, self.files.rows(stored[path])))

    def _new_file(
        self, values: Values, groups: Iterable[pa.Table], shape: pa.Schema, *, data_change: bool
    ) -> AddedFile:
        content = parquet_file(groups, shape, row_group_size=GROUP_ROWS)
        name = f"part-{uuid.uuid4()}.zstd.parquet"
        self.files.folder.create(name, [content])
        self.files.folder.sync([name])
        stats = statistics_of(pyarrow.parquet.read_metadata(pa.BufferReader(content)), shape)
        return AddedFile(name, values, len(content), _now_ms(), data_change, stats)

    def _protocol(self) -> Iterator[Action]:
        """Yield what a table without the property or the feature needs before its first vector."""
        protocol, metadata = self.table.protocol(), self.table.metadata()
        readers = set(protocol.reader_features or ())
        if _FEATURE not in readers:
            # Up to version 6 a writer version stands for a set of features. A table must not lose them by a list
            # without them.
            named = protocol.min_writer_version == WRITER_WITH_FEATURES
            writers = {*(protocol.writer_features or ())} if named else {*_IMPLIED}
            found = {
                "minReaderVersion": _READER_WITH_FEATURES,
                "minWriterVersion": WRITER_WITH_FEATURES,
                "readerFeatures": sorted({*readers, _FEATURE}),
                "writerFeatures": sorted({*writers, _FEATURE}),
            }
            yield Action(protocol=found)
        if metadata.configuration.get(ENABLED) != "true":
            yield Action(meta_data=_metadata_with(self.table, {ENABLED: "true"}))

    def _commit(self, operation: str, actions: Sequence[Action], metadata: Mapping[str, str] | None) -> None:
        """Write the entry of the version after the one of the open table.

        Raises:
            TargetUnavailableError: another writer has made this version.
        """
        version = int(self.table.version()) + 1
        if not put_commit(self.files.folder, version, operation, actions, metadata or {}):
            raise TargetUnavailableError(f"another writer has committed to {self.name}")
        self.own.append(version)
        self._after(version)

    def _after(self, version: int) -> None:
        """Do what delta-rs does after its own commits: a checkpoint in intervals, and the clean-up of the log."""
        configuration = self.table.metadata().configuration
        # A process that ends before this leaves one checkpoint out, and the next interval makes one.
        if (version + 1) % int(configuration.get(_CHECKPOINTS, "100")):
            return
        self.table.update_incremental()
        self.files.forget()
        self.table.create_checkpoint()
        if configuration.get(_CLEANS, "true").lower() == "true":
            self.table.cleanup_metadata()
        vectors = [vector for each in self.files.stored if (vector := each.deletion_vector) is not None]
        delete_dead_vectors(self.files.folder, vectors, configuration, _now_ms())

    def maintain(self) -> None:
        # The files before the commit decide whether there is something to do, because they are read already.
        if not self._to_rewrite():
            return
        self.table.update_incremental()
        self.files.forget()
        chosen = self._to_rewrite()
        if not chosen:
            return
        now_ms, values = _now_ms(), chosen[0].partition_values
        shape = pa.schema(each for each in table_schema_of(self.table) if each.name not in values)
        sizes = [self.files.size(each) for each in chosen]
        added = [
            Action(
                add=self._new_file(
                    values, (each.select(shape.names) for each in groups), shape, data_change=False
                )
            )
            for groups in rows_of_new_files(self.files, chosen, sizes)
        ]
        removed = [Action(remove=RemovedFile.of(each, now_ms, data_change=False)) for each in chosen]
        self._commit("OPTIMIZE", [*added, *removed], None)

    def _to_rewrite(self) -> list[AddedFile]:
        """Return the files to write again, which have one partition; none if there is nothing to do."""
        files = {each.path: each for each in self.files.stored}
        partitions: dict[tuple[Any, ...], list[FileSize]] = defaultdict(list)
        for file in files.values():
            partitions[tuple(sorted(file.partition_values.items()))].append(self.files.size(file))
        chosen = next(filter(None, map(files_to_rewrite, partitions.values())), [])
        return [files[each.path] for each in chosen]


def _with_vector(file: AddedFile, vector: Vector, rows: int) -> AddedFile:
    return msgspec.structs.replace(
        file, deletion_vector=vector, data_change=True, stats=_loose(file.stats, rows)
    )


def _loose(stats: str | None, rows: int) -> str:
    """Return statistics of a file of which rows are deleted: bounds may be wider than the values."""
    found = msgspec.json.decode(stats, type=dict[str, msgspec.Raw]) if stats else {}
    known = {"numRecords": msgspec.Raw(str(rows).encode()), "tightBounds": msgspec.Raw(b"false")}
    return msgspec.json.encode({**found, **known}).decode()


def _metadata_with(table: Any, configuration: Mapping[str, str]) -> dict[str, Any]:
    metadata = table.metadata()
    return {
        "id": str(metadata.id),
        "name": metadata.name,
        "description": metadata.description,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": table.schema().to_json(),
        "partitionColumns": metadata.partition_columns,
        "createdTime": metadata.created_time,
        "configuration": {**metadata.configuration, **configuration},
    }


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
