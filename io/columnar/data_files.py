"""Data files of change logs: tasks write them into the folder of the table, the driver commits their names.

    intent    <staging>/…/<staged name>-files     the names of the files that a task is about to write
    file      <table>/penstock-….parquet          no reader sees it before a commit of the table names it
    batch     a `StagedBatch` whose content is a manifest: the files, with what a commit needs to know of them

The intent is durable before the first file exists, and is deleted after the commit of the table. So a file without a
commit always has an intent, and the clean-up finds it without a list of the table's folder.

If a table is parked, the file of its parked changes names its data files, and is their intent from then on. The
clean-up of one kind deletes no data file that the other kind names.
"""

from __future__ import annotations

import functools
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import msgspec

from penstock.errors import PenstockError
from penstock.event.model import ChangeEvent, Column, Source, TableSchema
from penstock.io.columnar.partitions import Partition
from penstock.io.staging.batch import EventBlocks, StagedBatch
from penstock.io.staging.blocks import RecordBlock
from penstock.io.staging.coders import RecordBlockCoder
from penstock.io.staging.epochs import EpochDelivery, EpochTarget
from penstock.io.staging.format import FileFormat
from penstock.io.staging.names import staged_in, staging_folder
from penstock.io.staging.operations import clean_up
from penstock.io.staging.options import StagingOptions
from penstock.io.staging.parked_files import ChangeCodec, ParkedFiles, TableEpochs
from penstock.io.staging.publish_epochs import PublishBatches, PublishEpochs
from penstock.io.staging.retry import repeat_while_unavailable
from penstock.io.staging.roll_batches import RollBatchesFn, bucket_of, staging_store
from penstock.io.staging.rolling import RollingPolicy
from penstock.io.staging.store import FileStore
from penstock.io.staging.table_parking import ParkingTarget
from penstock.object_stores.store import in_parallel
from penstock.parked import ParkedTable

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.io.columnar.row_runs import TableRows

_Result = TypeVar("_Result")

SHARDS = 16
"""How many tasks write files at the same time. All events of a table are in one shard, so that its batch is one part of
the table's order."""

_INTENT = "-files"
# The length of the first block of a batch of events cannot be this.
_MANIFEST = b"\xff\xff\xff\xff\x01"


class DataFile(msgspec.Struct, frozen=True, array_like=True):
    """A Parquet file of change rows of one table of the source, which a commit may add to a table.

    `table` is the table, `path` the path of the file: below the folder of the table, or whole. `columns` are the plain
    columns of the file. `stats` are the statistics of its columns, in the words of the table's format. `partition` is
    the partition of all its rows; None: they were not divided.
    """

    table: str
    source: Source
    path: str
    length: int
    records: int
    columns: tuple[Column, ...]
    stats: str
    partition: Partition | None = None

    @property
    def schema(self) -> TableSchema:
        """The columns of the file."""
        return TableSchema(self.columns)


class PlannedFile(msgspec.Struct, frozen=True):
    """A data file that is about to be written. `rows` return its parts, with the columns `columns`, in any order.

    `together` are the columns of all files of the table that are planned together. `partition`: see `DataFile`.
    """

    table: str
    name: str
    source: Source
    columns: TableSchema
    rows: tuple[Callable[[], pa.Table], ...]
    together: tuple[TableSchema, ...] = ()
    partition: Partition | None = None


class DataFileTarget(EpochTarget, Protocol):
    """A target whose tables are lists of data files. `publish` takes batches with manifests."""

    def plan_files(
        self, events: Iterable[ChangeEvent], stem: str, rows: Iterable[TableRows] = ()
    ) -> list[PlannedFile]:
        """Return the files for events and rows of events; their names contain `stem`, which no other batch has.

        Asks no service.
        """

    def divided(self, planned: PlannedFile) -> list[PlannedFile]:
        """Return a file for each partition of the table in place of a planned one; itself without partitions.

        Raises:
            TargetUnavailableError: the storage did not answer.
        """

    def write_file(self, planned: PlannedFile) -> DataFile:
        """Write a file, in place of one that an earlier try has left.

        When this returns, it is as durable as the other files of a table in its format.

        Raises:
            TargetUnavailableError: the storage did not answer.
        """

    def publish_files(self, delivery: EpochDelivery, batches: Sequence[StagedBatch]) -> Collection[str]:
        """Do what `publish` does, and return the paths of the files that this call has committed.

        Others are committed by an earlier call, or their rows are in other files, or their table is left out.
        """

    @property
    def parked_changes(self) -> ChangeCodec:
        """How the changes of a parked table are encoded: the names of its data files."""

    def logs_of(self, delivery: EpochDelivery, batches: Sequence[StagedBatch]) -> list[TableEpochs]:
        """Return what an epoch gives to each table; `parked_changes` encodes its changes."""

    def publish_logs(self, tables: Sequence[TableEpochs], committed: list[str]) -> list[PenstockError | None]:
        """Do what `ParkingTarget.publish_tables` does, and add to `committed` what `publish_files` returns."""

    def raise_refused(self, tables: Sequence[TableEpochs], errors: Sequence[PenstockError | None]) -> None:
        """See `penstock.io.staging.table_parking.ParkingTarget`."""

    def delete_unnamed(self, files: Collection[tuple[str, str]]) -> None:
        """Delete the files, each a table and a name, that their table does not have. They may be missing."""


class _Manifest(msgspec.Struct, frozen=True, array_like=True):
    intent: str
    files: tuple[DataFile, ...]


def manifest(intent: str, files: Iterable[DataFile]) -> bytes:
    """Return the content of a batch that names files; `intent` is the name of their intent."""
    return _MANIFEST + msgspec.msgpack.encode(_Manifest(intent, tuple(files)))


def files_of(batch: StagedBatch) -> tuple[DataFile, ...] | None:
    """Return the data files that a batch names; None if it has events, which an earlier version has staged."""
    found = _manifest_of(batch)
    return None if found is None else found.files


def _manifest_of(batch: StagedBatch) -> _Manifest | None:
    content = batch.read()
    if not content.startswith(_MANIFEST):
        return None
    return _decode_manifest(memoryview(content)[len(_MANIFEST) :])


class PublishDataFiles(PublishEpochs):
    """Write change events as data files in the tasks, and commit their names in the driver.

    Order: a table gets its batches in the order of their epochs; rows of a file are in the order of their versions.
    What repeats, watermark and state: see `PublishEpochs`.
    """

    def __init__(
        self, target: DataFileTarget, *, options: StagingOptions, max_parked_bytes: int | None = None
    ) -> None:
        super().__init__(
            target,
            EventBlocks(RecordBlockCoder().encode),
            shards=SHARDS,
            roll_seconds=options.roll_seconds,
            staging=options.staging,
            max_parked_bytes=max_parked_bytes,
        )

    def _bucket(self) -> Callable[[ChangeEvent, int], str]:
        return bucket_of_table

    def _roll(self, sink: str) -> RollBatchesFn:
        files = cast("DataFileTarget", self._target)
        return _WriteFilesFn(
            files, sink, self._staging, self._policy, self._format, self._unavailable_seconds
        )

    def _publish(self, sink: str) -> PublishBatches:
        files = cast("DataFileTarget", self._target)
        return _CommitFiles(files, sink, self._staging, self._unavailable_seconds, self._max_parked_bytes)


def bucket_of_table(event: ChangeEvent, event_us: int) -> str:
    """Return the shard of the table of an event."""
    return _bucket(event.source)


def bucket_of_source(source: Source, schema: TableSchema, event_us: int) -> str:
    """Return the shard of a table."""
    return _bucket(source)


def _bucket(source: Source) -> str:
    # Without the database: one table of the target may get the changes of several.
    return bucket_of(zlib.crc32(source.qualified_table.encode()) % SHARDS, SHARDS)


class _WriteFilesFn(RollBatchesFn):
    """Writes the events of a batch as data files; the batch has their names.

    A checkpoint of an earlier version holds shards with events of all tables. They are written in the same way.
    """

    def __init__(
        self,
        target: DataFileTarget,
        sink: str,
        staging: FileStore | None,
        policy: RollingPolicy,
        format: FileFormat,
        unavailable_seconds: float,
    ) -> None:
        super().__init__(staging, sink, policy, format)
        self._target, self._unavailable_seconds = target, unavailable_seconds

    def _content(self, name: str, blocks: Iterable[RecordBlock]) -> Iterable[bytes]:
        # Imported here, so that the module can be loaded without the extra.
        from penstock.io.columnar.row_runs import divided

        events, rows = divided(blocks)
        whole = self._target.plan_files(events, name.rpartition("/")[2], rows)
        # Before the intent, which has the names of all files.
        planned = [file for some in in_parallel(self._divided, whole) for file in some]
        intent = f"{name}{_INTENT}"
        store = self._stager.store
        store.create(intent, [msgspec.msgpack.encode([(each.table, each.name) for each in planned])])
        # Durable before there is a file: after a loss of power the clean-up must find the file.
        store.sync([intent])
        # Side by side, because a store answers a request in tens of ms, and an epoch may have hundreds of tables.
        files = in_parallel(self._write, planned)
        yield manifest(intent, files)

    def _divided(self, planned: PlannedFile) -> list[PlannedFile]:
        return self._repeated(functools.partial(self._target.divided, planned))

    def _write(self, planned: PlannedFile) -> DataFile:
        return self._repeated(functools.partial(self._target.write_file, planned))

    def _repeated(self, call: Callable[[], _Result]) -> _Result:
        # As in the driver: a storage that does not answer for a moment does not cost an epoch.
        return repeat_while_unavailable(
            call,
            self._target.name,
            self._unavailable_seconds,
            time.monotonic,
            time.sleep,
        )


class _CommitFiles(PublishBatches):
    """Commits the files of an epoch, deletes their intents, and cleans up the files of failed epochs."""

    _target: DataFileTarget

    def publish_or_park(
        self, batches: Sequence[StagedBatch], parked: Sequence[ParkedTable]
    ) -> Sequence[ParkedTable]:
        """Publish batches, and park tables if that is wanted; see `penstock.publish.ParksTables`."""
        self._committed: list[str] = []
        after = super().publish_or_park(batches, parked)
        self._delete_intents(batches, self._committed)
        return after

    @property
    def _parking(self) -> ParkingTarget:
        return _LogParking(self._target, self._committed)

    def _parked_files(self) -> ParkedFiles:
        return ParkedFiles(staging_store(self._staging), self._sink, self._target.parked_changes)

    def clean_up_parked(self, job: str, generation: int, epoch: int, parked: Sequence[ParkedTable]) -> None:
        """Delete files of parked changes, and data files that only they name; see `penstock.publish.ParksTables`."""
        if not parked and self._max_parked_bytes is None:
            return
        files = self._parked_files()
        unnamed = files.unnamed(job, (generation, epoch), parked)
        if not unnamed:
            return
        kept = _data_files(files.changes_in(set(files.names(job)) - set(unnamed)))
        # What waits for its first commit is in none of them: a file of an earlier epoch is published or kept by now.
        self._target.delete_unnamed(_data_files(files.changes_in(unnamed)) - kept)
        staging_store(self._staging).delete(unnamed)

    def _publish(self, delivery: EpochDelivery, batches: Sequence[StagedBatch]) -> None:
        self._delete_intents(batches, self._target.publish_files(delivery, batches))

    def _delete_intents(self, batches: Sequence[StagedBatch], files: Iterable[str]) -> None:
        """Delete the intents of batches all of whose files are among `files`, which were just committed."""
        committed = frozenset(files)
        # An intent with other files stays: the clean-up asks the tables about them.
        manifests = filter(None, map(_manifest_of, batches))
        done = [each.intent for each in manifests if committed.issuperset(file.path for file in each.files)]
        staging_store(self._staging).delete(done)

    def clean_up(self, job: str, generation: int, epoch: int, publications: Collection[StagedBatch]) -> None:
        """Delete what failed epochs have staged and written; see `penstock.publish.CleansUp`."""
        store, upto = staging_store(self._staging), (generation, epoch)
        # Files of these epochs are still to be committed, and their tries are told apart at the next clean-up.
        waiting = {(each.delivery.generation, each.delivery.epoch) for each in publications}
        intents = [name for name in store.names_in(staging_folder(job, self._sink)) if name.endswith(_INTENT)]
        past = [
            name
            for name in intents
            if (origin := staged_in(name)) is not None and origin <= upto and origin not in waiting
        ]
        # The tables are asked too: a file that a commit names is never deleted.
        files = {file for name in past for file in _files_of_intent(store.read(name))}
        parked = self._parked_files()
        self._target.delete_unnamed(files - _data_files(parked.changes_in(parked.names(job))))
        keep = {each.staged for each in publications} | (set(intents) - set(past))
        clean_up(store, job, self._sink, upto, keep)


class _LogParking:
    """The tables of a log as a `ParkingTarget`; the paths of the files that are committed come into `committed`."""

    def __init__(self, target: DataFileTarget, committed: list[str]) -> None:
        self._target, self._committed = target, committed

    def tables_of(self, delivery: EpochDelivery, batches: Sequence[StagedBatch]) -> list[TableEpochs]:
        return self._target.logs_of(delivery, batches)

    def publish_tables(self, tables: Sequence[TableEpochs]) -> list[PenstockError | None]:
        return self._target.publish_logs(tables, self._committed)

    def raise_refused(self, tables: Sequence[TableEpochs], errors: Sequence[PenstockError | None]) -> None:
        self._target.raise_refused(tables, errors)


def _data_files(parts: Iterable[Any]) -> set[tuple[str, str]]:
    """Return the table and the name of each data file among parked changes."""
    return {(each.file.table, each.file.path.rpartition("/")[2]) for each in parts}


def _files_of_intent(content: bytes) -> list[tuple[str, str]]:
    try:
        return _decode_intent(content)
    # The process died while it wrote the intent, and no file comes before an intent is whole.
    except msgspec.DecodeError:
        return []


_decode_manifest = msgspec.msgpack.Decoder(_Manifest).decode
_decode_intent = msgspec.msgpack.Decoder(list[tuple[str, str]]).decode
