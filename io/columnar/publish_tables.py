"""`publish_tables`: the steps of the table sinks between their arguments and their target."""

from __future__ import annotations

from penstock.event.model import ChangeEvent, Source, TableSchema
from penstock.io.columnar.data_files import PublishDataFiles, bucket_of_source, bucket_of_table
from penstock.io.columnar.log_target import LogFilesTarget
from penstock.io.columnar.row_runs import EventRows
from penstock.io.staging.batch import EventBlocks
from penstock.io.staging.coders import RecordBlockCoder
from penstock.io.staging.epochs import EpochTarget
from penstock.io.staging.options import StagingOptions
from penstock.io.staging.publish_epochs import PublishEpochs
from penstock.io.staging.roll_batches import bucket_of

_SHARD = bucket_of(0, 1)


def publish_tables(
    target: EpochTarget, *, options: StagingOptions, max_parked_bytes: int | None = None
) -> PublishEpochs:
    """Return the transform that publishes events to tables; see `PublishEpochs`.

    All events are in one shard, so each epoch publishes the next part of the order of every table. A change of a key
    needs that, because it takes values from the row of the old key. More shards would not be faster: the driver writes
    the commits. Earlier versions had four shards by key.

    The change log of a target of data files is written by the tasks; see `PublishDataFiles`.
    """
    if isinstance(target, LogFilesTarget) and target.mode == "log":
        return PublishDataFiles(target, options=options, max_parked_bytes=max_parked_bytes)
    return PublishEpochs(
        target,
        EventBlocks(RecordBlockCoder().encode),
        shards=1,
        earlier_shards=4,
        roll_seconds=options.roll_seconds,
        staging=options.staging,
        max_parked_bytes=max_parked_bytes,
    )


def rows_of(publish: PublishEpochs) -> EventRows | None:
    """Return what makes the rows of a batch of events, if the tasks stage rows."""
    target = publish.target
    if not isinstance(target, LogFilesTarget):
        return None
    if target.takes_rows:
        return EventRows(_shard_of_event, _shard_of_source, whole=True)
    # A change feed has another number of rows than the batch has events, so its rows are made when a file is written.
    if target.mode != "log" or target.layout == "table":
        return None
    return EventRows(bucket_of_table, bucket_of_source)


def _shard_of_event(event: ChangeEvent, event_us: int) -> str:
    return _SHARD


def _shard_of_source(source: Source, schema: TableSchema, event_us: int) -> str:
    return _SHARD
