"""`SendAfterCommit`: change events to a target that gets rows, exactly once where the target has transactions."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import apache_beam as beam
from typing_extensions import Self

from penstock.datasets import Dataset, WritesDatasets
from penstock.errors import UsageError
from penstock.event.coder import encode_event
from penstock.event.model import ChangeEvent, Source
from penstock.event.sharding import shard_of
from penstock.io.staging import delivery_coders  # noqa: F401  registers the coders of the values between the steps
from penstock.io.staging.batch import EventBlocks
from penstock.io.staging.coders import RecordBlockCoder
from penstock.io.staging.collect import CollectRecordsFn, in_global_window
from penstock.io.staging.connector import Connector
from penstock.io.staging.dead_letter_limit import check_limit, stop_at_refused
from penstock.io.staging.format import Format
from penstock.io.staging.formatted_run import FormatBeforeCommit
from penstock.io.staging.names import sink_name
from penstock.io.staging.options import SendOptions
from penstock.io.staging.preview import Preview
from penstock.io.staging.refused import REFUSED, RefusedEvent
from penstock.io.staging.roll_batches import RollBatchesFn, bucket_of
from penstock.io.staging.rolling import RollingPolicy
from penstock.io.staging.send import SendBatchesFn
from penstock.io.staging.send_tables import SendTablesFn
from penstock.io.staging.store import store_of
from penstock.publish import ForgettingParDo, PublishAfterCommit
from penstock.tables import EVERY_TABLE, TableSelection

BATCH_BYTES = 64 * 1024 * 1024
"""A batch of this many bytes is sent with the next commit, whatever `roll_seconds` says."""
QUEUE_BATCH_BYTES = BATCH_BYTES // 4
"""The same for records of a queue, which are compressed."""


class Queue(NamedTuple):
    """A sink of formatted records. `name` is for messages."""

    name: str
    format: Format
    shards: int


class SendAfterCommit(beam.PTransform):
    """Send change events to a target after the commit of the epoch that brought them.

        events | SendAfterCommit(Connector(PostgresTarget(…), …), options=SendOptions(shards=4))

    The events of each epoch are staged by shard. Their commit makes the batches final. After it each batch is sent,
    again and again until the target has it. So a batch that is sent twice has equal content and an equal `Delivery`
    both times; a target with transactions stores the delivery in its ledger and skips the second one.

    Emits a `DeliveredBatch` for each batch. `with_exception_handling` adds an output of `RefusedEvent`s.

    Order: the events of a key are sent in the order in which they arrive, one batch of a shard after the other. There
    is no order between shards. If `shards` is changed while batches wait for `roll_seconds`, the order of their keys is
    not kept across the change.
    What repeats: see `Delivery`; on other runners than `PySparkRunner` everything that they repeat.
    Watermark: each event holds the output watermark until the target has it.
    State: for each shard the events since the last commit, or of the last `roll_seconds`.

    Args:
        connector: the target, and how it is opened.
        options: how batches are collected, staged and sent. A transform that inherits its options passes itself.
        max_parked_bytes: how large the changes of parked tables may be (`TableParking`); None: none is parked.
        format: makes the records of a queue. They are made before the commit, and the sender gets `FormattedEvent`s.
            None: the target gets the events.

    Raises:
        UsageError: an option is wrong (at construction).
    """

    def __init__(
        self,
        connector: Connector,
        *,
        options: SendOptions,
        max_parked_bytes: int | None = None,
        format: Format | None = None,
    ) -> None:
        super().__init__()
        shards, unavailable_seconds = options.shards, options.unavailable_seconds
        if not isinstance(shards, int) or shards < 1:
            raise UsageError(f"shards must be 1 or more, got {shards!r}.")
        # Not `< 0`, which NaN would pass.
        if not unavailable_seconds >= 0:
            raise UsageError(f"unavailable_seconds must be 0 or more, got {unavailable_seconds!r}.")
        self._connector = connector
        self._format = format
        self._max_parked_bytes = max_parked_bytes
        self._shards = shards
        batch_bytes = BATCH_BYTES if format is None else QUEUE_BATCH_BYTES
        self._policy = RollingPolicy(round(options.roll_seconds * 1e6), batch_bytes)
        self._staging = None if options.staging is None else store_of(options.staging)
        self._unavailable_seconds = unavailable_seconds
        self._selection = EVERY_TABLE
        self._skip_refused = False
        self._max_dead_letters: int | None = None

    def with_exception_handling(self, *, max_dead_letters: int | None = None) -> Self:
        """Return a copy with a second output: the events that the target refuses, as `RefusedEvent`s.

        The rest of their batch is delivered. `penstock.transforms.DeadLetters` makes records of them. With
        `max_dead_letters` the pipeline fails when the sink has had this many since the checkpoint was created.
        """
        check_limit(max_dead_letters)
        changed = copy.copy(self)
        changed._skip_refused, changed._max_dead_letters = True, max_dead_letters
        return changed

    def selecting(self, selection: TableSelection) -> Self:
        """Return a copy that does not send the events of other tables, also those that are staged already."""
        changed = copy.copy(self)
        changed._selection = selection
        return changed

    @property
    def preview(self) -> Preview:
        """The record or row that the sink writes for one event; see `penstock.io.staging.preview`."""
        return self._connector.preview

    @property
    def target(self) -> Any:
        """The configuration of the target."""
        return self._connector.target

    def datasets_written(self, sources: Sequence[Source]) -> Sequence[Dataset]:
        """Return the datasets for events of these tables; () if the target does not tell. See `penstock.datasets`."""
        target: Any = self._connector.target
        selected = [each for each in sources if self._selection.has(each.schema, each.table)]
        return target.datasets_written(selected) if isinstance(target, WritesDatasets) else ()

    def check(self) -> None:
        """Check the target, and the place for staged batches if one is given; see `penstock.preflight`."""
        if self._staging is not None:
            self._staging.check_writable()
        self._connector.check()

    def expand(self, events: beam.PCollection[ChangeEvent]) -> Any:
        # See `WriteStagedFiles.expand`.
        sink = sink_name(events.pipeline.transforms_stack[-1].full_label)
        roll = RollBatchesFn(self._staging, sink, self._policy, EventBlocks(RecordBlockCoder().encode))
        send = self._send(sink)
        staged = (
            in_global_window(events)
            | "Collect" >> beam.ParDo(CollectRecordsFn(self._encode(), ShardOf(self._shards)))
            | "Roll" >> ForgettingParDo(roll)
        )
        if not self._skip_refused:
            return staged | "Send" >> PublishAfterCommit(send)
        outputs = staged | "Send" >> PublishAfterCommit(send, tags=(REFUSED,))
        delivered = outputs[None]
        refused = outputs[REFUSED]
        # Beam knows the type of the main output only.
        refused.element_type = RefusedEvent
        if self._max_dead_letters is not None:
            refused |= "Limit" >> stop_at_refused(self._max_dead_letters, self._connector.name)
        return delivered, refused

    def _send(self, sink: str) -> SendBatchesFn:
        options: dict[str, Any] = {
            "selection": self._selection,
            "skip_refused": self._skip_refused,
            "unavailable_seconds": self._unavailable_seconds,
        }
        if self._max_parked_bytes is None:
            return SendBatchesFn(self._connector, sink, self._staging, **options)
        return SendTablesFn(
            self._connector, sink, self._staging, max_parked_bytes=self._max_parked_bytes, **options
        )

    @property
    def queue(self) -> Queue | None:
        """The queue whose records are made before the commit; None: the target gets the events."""
        if self._format is None:
            return None
        return Queue(self._connector.name, self._format, self._shards)

    def _encode(self) -> Callable[[ChangeEvent], bytes]:
        if self._format is None:
            return encode_event
        return FormatBeforeCommit(self._format, self._connector.name, refuses=self._skip_refused)

    def display_data(self) -> dict[str, Any]:
        return {
            "target": self._connector.name,
            "shards": self._shards,
            "roll_seconds": self._policy.after_us / 1e6,
            "unavailable_seconds": self._unavailable_seconds,
        }


@dataclass(frozen=True, slots=True)
class ShardOf:
    """The function from an event to its shard, as a value that can be pickled."""

    shards: int

    def __call__(self, event: ChangeEvent, event_us: int) -> str:
        return bucket_of(shard_of(event, self.shards), self.shards)
