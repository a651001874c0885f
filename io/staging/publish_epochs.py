"""`PublishEpochs`: change events to a target that takes one commit per epoch, exactly once."""

from __future__ import annotations

import copy
import functools
import os
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar, cast

import apache_beam as beam
from typing_extensions import Self

from penstock.datasets import Dataset, ReadTable, WritesDatasets
from penstock.errors import UsageError
from penstock.event.coder import encode_event
from penstock.event.model import ChangeEvent, Source
from penstock.io.staging import delivery_coders  # noqa: F401  registers the coders of the values between the steps
from penstock.io.staging.batch import StagedBatch
from penstock.io.staging.collect import CollectRecordsFn, in_global_window
from penstock.io.staging.complete_marks import Mark
from penstock.io.staging.epochs import (
    ChecksTables,
    EpochDelivery,
    EpochTarget,
    MarkingTarget,
    RewindingTarget,
    by_epoch,
)
from penstock.io.staging.format import FileFormat
from penstock.io.staging.names import sink_name
from penstock.io.staging.operations import clean_up
from penstock.io.staging.options import UNAVAILABLE_SECONDS
from penstock.io.staging.parked_files import ParkedFiles
from penstock.io.staging.preview import Preview
from penstock.io.staging.retry import repeat_while_unavailable
from penstock.io.staging.roll_batches import RollBatchesFn, bucket_of, staging_store
from penstock.io.staging.rolling import RollingPolicy
from penstock.io.staging.send_after_commit import BATCH_BYTES, ShardOf
from penstock.io.staging.store import FileStore, store_of
from penstock.io.staging.table_notes import TableNotes, WrittenTable
from penstock.io.staging.table_parking import ParkingTarget, TableParking
from penstock.parked import ParkedTable
from penstock.publish import (
    MARK_SECONDS,
    NO_REWIND,
    Attempt,
    ForgettingParDo,
    PublishOnDriver,
    current_attempt,
)
from penstock.rewind import RewindPlan
from penstock.tables import TableSelection

_Result = TypeVar("_Result")


class PublishEpochs(beam.PTransform):
    """Write change events to a target in the driver, after the commit of the epoch that brought them.

        events | PublishEpochs(DeltaTarget(…), format=EventBlocks(…))

    The tasks stage the events of each epoch by shard, in `format`. After the commit the driver calls
    `EpochTarget.publish` with all batches of the epoch, until it succeeds. Emits the `StagedBatch`es that were
    published.

    Order: epochs are published in their order. With one shard a batch has all events since the last batch, in the order
    in which they arrived. With more shards this holds for the events of one key, and each shard rolls alone.
    What repeats: calls with an equal `EpochDelivery` and equal content; the target changes nothing then.
    Watermark: each event holds the output watermark until it is published.
    State: for each shard the events since the last commit, or of the last `roll_seconds`.

    Args:
        target: the configuration of the target.
        format: the content of a staged batch.
        shards: how many batches of an epoch are staged at the same time.
        earlier_shards: another number of shards that earlier versions of the sink had. Batches that a checkpoint holds
            are published with the first events that come, or before.
        roll_seconds: how long events are collected before they are published (processing time).
        staging: a folder or URL for staged batches; None: in the checkpoint.
        inline: whether small batches are part of the commit record; False: all of them are files.
        unavailable_seconds: how long a target that does not answer is asked again before the epoch fails.
        max_parked_bytes: how large the changes of parked tables may be (`TableParking`); None: none is parked.
    """

    def __init__(
        self,
        target: EpochTarget,
        format: FileFormat,
        *,
        shards: int,
        earlier_shards: int = 0,
        roll_seconds: float,
        staging: str | os.PathLike[str] | None = None,
        inline: bool = True,
        unavailable_seconds: float = UNAVAILABLE_SECONDS,
        max_parked_bytes: int | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(shards, int) or shards < 1:
            raise UsageError(f"shards must be 1 or more, got {shards!r}.")
        self._target = target
        self._format = format
        self._shards = shards
        # Events of a key may wait in the old shard; closing it first keeps their order.
        self._closes = [bucket_of(shard, earlier_shards) for shard in range(earlier_shards)]
        self._policy = RollingPolicy(round(roll_seconds * 1e6), BATCH_BYTES)
        self._staging = None if staging is None else store_of(staging)
        # 0 makes every batch a file, which Spark's executors can read.
        self._inline_bytes = None if inline else 0
        self._unavailable_seconds = unavailable_seconds
        self._max_parked_bytes = max_parked_bytes
        self._reads: Callable[[], Sequence[ReadTable]] | None = None

    def reading(self, tables: Callable[[], Sequence[ReadTable]]) -> Self:
        """Return a copy that checks its target before the start for the tables that `tables` returns."""
        changed = copy.copy(self)
        changed._reads = tables
        return changed

    def selecting(self, selection: TableSelection) -> Self:
        """Return a copy whose target leaves out the events of other tables, also those that are staged already."""
        changed = copy.copy(self)
        changed._target = self._target.selecting(selection)
        return changed

    @property
    def preview(self) -> Preview:
        """The record or row that the sink writes for one event; see `penstock.io.staging.preview`."""
        return self._target.preview

    @property
    def target(self) -> EpochTarget:
        """The configuration of the target."""
        return self._target

    def datasets_written(self, sources: Sequence[Source]) -> Sequence[Dataset]:
        """Return the datasets for events of these tables; () if the target does not tell. See `penstock.datasets`."""
        target: Any = self._target
        return target.datasets_written(sources) if isinstance(target, WritesDatasets) else ()

    def check(self) -> None:
        """Check the target, and the place for staged batches if one is given; see `penstock.preflight`."""
        if self._staging is not None:
            self._staging.check_writable()
        self._target.check()
        if self._reads is not None and isinstance(self._target, ChecksTables):
            self._target.check_tables(self._reads)

    def expand(self, events: beam.PCollection[ChangeEvent]) -> Any:
        # See `WriteStagedFiles.expand`.
        sink = sink_name(events.pipeline.transforms_stack[-1].full_label)
        collect = CollectRecordsFn(encode_event, self._bucket(), closes=self._closes)
        return (
            in_global_window(events)
            | "Collect" >> beam.ParDo(collect)
            | "Roll" >> ForgettingParDo(self._roll(sink))
            | "Publish" >> PublishOnDriver(self._publish(sink))
        )

    def _bucket(self) -> Callable[[ChangeEvent, int], str]:
        """Return the function from an event to its shard."""
        return ShardOf(self._shards)

    def _roll(self, sink: str) -> RollBatchesFn:
        """Return the step that stages batches."""
        return RollBatchesFn(self._staging, sink, self._policy, self._format, inline_bytes=self._inline_bytes)

    def _publish(self, sink: str) -> PublishBatches:
        """Return the function of `PublishOnDriver`."""
        return PublishBatches(
            self._target, sink, self._staging, self._unavailable_seconds, self._max_parked_bytes
        )

    def display_data(self) -> dict[str, Any]:
        return {
            "target": self._target.name,
            "shards": self._shards,
            "roll_seconds": self._policy.after_us / 1e6,
        }


class PublishBatches:
    """The function of `PublishOnDriver`, with a clean-up, marks and parked tables."""

    def __init__(
        self,
        target: EpochTarget,
        sink: str,
        staging: FileStore | None,
        unavailable_seconds: float,
        max_parked_bytes: int | None = None,
    ) -> None:
        self._target = target
        self._sink = sink
        self._staging = staging
        self._unavailable_seconds = unavailable_seconds
        self._max_parked_bytes = max_parked_bytes
        self._noted: frozenset[WrittenTable] = frozenset()

    def __call__(self, batches: Sequence[StagedBatch]) -> None:
        # One call for each epoch, because the ledger of the target has one entry for each.
        for delivery, each in by_epoch(batches):
            self._repeat(functools.partial(self._publish, delivery, each))
            self._note_tables(delivery.job)

    def publish_or_park(
        self, batches: Sequence[StagedBatch], parked: Sequence[ParkedTable]
    ) -> Sequence[ParkedTable]:
        """Publish batches, and park tables if that is wanted; see `penstock.publish.ParksTables`."""
        # Nothing is parked and nothing may be: the target need not be able to park.
        if not parked and self._max_parked_bytes is None:
            self(batches)
            return ()
        target = self._parking
        if target is None:
            raise UsageError(
                f"{self._target.name} has {len(parked)} parked tables, whose changes it cannot write with these "
                "arguments: give the sink the mode that it had, and resume or skip the tables first (penstock tables)"
            )
        files = self._parked_files()
        after = TableParking(target, files, self._max_parked_bytes, self._repeat).publish(batches, parked)
        self._note_tables(current_attempt().job)
        return after

    def clean_up_parked(self, job: str, generation: int, epoch: int, parked: Sequence[ParkedTable]) -> None:
        """Delete files of parked changes that are not needed; see `penstock.publish.ParksTables`."""
        # Without the option there are none, except of an earlier run: a listing of an object store costs money.
        if parked or self._max_parked_bytes is not None:
            self._parked_files().clean_up(job, (generation, epoch), parked)

    @property
    def _parking(self) -> ParkingTarget | None:
        return self._target if isinstance(self._target, ParkingTarget) else None

    def _parked_files(self) -> ParkedFiles:
        return ParkedFiles(staging_store(self._staging), self._sink)

    def _repeat(self, work: Callable[[], _Result]) -> _Result:
        return repeat_while_unavailable(
            work, self._target.name, self._unavailable_seconds, time.monotonic, time.sleep
        )

    def _note_tables(self, job: str) -> None:
        if (target := self._marking) is not None:
            # Only tables that this process has not noted yet: a note costs requests to the store.
            new = frozenset(target.written) - self._noted
            self._notes(job).add(new)
            self._noted |= new

    @property
    def mark_seconds(self) -> float:
        """The time between two marks; see `penstock.publish.PacesMarks`."""
        target = self._marking
        return MARK_SECONDS if target is None else cast("float", target.mark_seconds)

    def mark_complete(self, job: str, record: int, until_us: int) -> None:
        """Say in the tables until when they are complete, if that is wanted; see `penstock.publish.MarksComplete`."""
        if (target := self._marking) is not None:
            mark = Mark.of(job, self._sink, record, until_us)
            target.mark_complete(mark, self._notes(job).read())

    def mark_tables_complete(self, job: str, record: int, until_us: int, parked: Collection[str]) -> None:
        """Mark the tables that are not parked; see `penstock.publish.MarksTablesComplete`."""
        if (target := self._marking) is not None:
            others = [each for each in self._notes(job).read() if each.name not in parked]
            target.mark_complete(Mark.of(job, self._sink, record, until_us), others)

    def plan_rewind(self, job: str, to_us: int) -> RewindPlan:
        """Return how the tables go back; see `penstock.publish.Rewinds`."""
        target = self._rewinding
        # Without marks neither the tables nor their times are known.
        if self._marking is None:
            raise UsageError(
                f"{self._target.name} cannot go back, because its tables do not say until when they are complete. Set "
                "mark_complete and start the job: it can go back to times after that start"
            )
        tables = self._notes(job).read()
        return self._repeat(lambda: target.plan_rewind(self._sink, job, to_us, tables))

    def rewind(self, attempt: Attempt, plan: RewindPlan) -> None:
        """Put the tables back; see `penstock.publish.Rewinds`."""
        # The last record is the position of the driver that has taken over: no delivery of an earlier one is above it.
        delivery = EpochDelivery(
            self._sink, attempt.job, attempt.generation, attempt.epoch - 1, attempt.drivers
        )
        self._repeat(lambda: self._rewinding.rewind(delivery, plan))

    @property
    def _rewinding(self) -> RewindingTarget:
        if not isinstance(self._target, RewindingTarget):
            raise UsageError(NO_REWIND)
        return self._target

    @property
    def _marking(self) -> MarkingTarget | None:
        target = self._target
        return target if isinstance(target, MarkingTarget) and target.mark_seconds is not None else None

    def _notes(self, job: str) -> TableNotes:
        return TableNotes(staging_store(self._staging), job, self._sink)

    def _publish(self, delivery: EpochDelivery, batches: Sequence[StagedBatch]) -> None:
        self._target.publish(delivery, batches)

    def clean_up(self, job: str, generation: int, epoch: int, publications: Collection[StagedBatch]) -> None:
        """Delete batches that are published or belong to failed epochs; see `penstock.publish.CleansUp`."""
        # What the record names is still to be published.
        keep = {each.staged for each in publications}
        clean_up(staging_store(self._staging), job, self._sink, (generation, epoch), keep)
