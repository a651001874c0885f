"""The last step of a sink that sends rows, after the commit: staged batches to a target."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from typing import Any, cast

import apache_beam as beam
from apache_beam.metrics import Metrics

from penstock.errors import InvariantError
from penstock.io.staging.batch import DeliveredBatch, StagedBatch, StagedEvents
from penstock.io.staging.coders import RecordBlockCoder
from penstock.io.staging.connector import Connector
from penstock.io.staging.delivery import (
    MarkingSender,
    Refusal,
    RefusalError,
    RowRefusedError,
    Sender,
    Sent,
)
from penstock.io.staging.formatted_event import FormattedEvent
from penstock.io.staging.formatted_run import decode_staged
from penstock.io.staging.metrics import NAMESPACE
from penstock.io.staging.operations import clean_up
from penstock.io.staging.options import UNAVAILABLE_SECONDS
from penstock.io.staging.refused import REFUSED, RefusedEvent
from penstock.io.staging.retry import repeat_while_unavailable
from penstock.io.staging.roll_batches import staging_store
from penstock.io.staging.store import FileStore
from penstock.publish import MARK_SECONDS
from penstock.tables import EVERY_TABLE, TableSelection


@beam.typehints.with_output_types(DeliveredBatch)
class SendBatchesFn(beam.DoFn):
    """`StagedBatch` to `DeliveredBatch`: the post-commit step.

    Order: batches of one shard are sent in the order of their epochs, and no two of them at the same time, except by a
    driver that was paused; the ledger of the target skips those. What repeats: batches, with equal content and output;
    see `penstock.io.staging.delivery`. Watermark: held by the runner at each batch. State: none.

    Events of tables outside of `selection` are not sent. With `skip_refused` the rows that the target refuses go to the
    output `REFUSED`, as `RefusedEvent`s.
    """

    def __init__(
        self,
        connector: Connector,
        sink: str,
        staging: FileStore | None = None,
        *,
        selection: TableSelection = EVERY_TABLE,
        skip_refused: bool = False,
        unavailable_seconds: float = UNAVAILABLE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._connector = connector
        self._sink = sink
        self._staging = staging
        self._selection = selection
        self._skip_refused = skip_refused
        self._unavailable_seconds = unavailable_seconds
        self._clock = clock
        self._pause = pause
        self._sender: Sender | None = None
        self._batches = Metrics.counter(NAMESPACE, "delivered_batches")
        self._records = Metrics.counter(NAMESPACE, "delivered_records")
        self._refused = Metrics.counter(NAMESPACE, REFUSED)

    def process(self, batch: StagedBatch) -> Iterator[Any]:
        # The content is read when a sender asks for the first event: a batch that the ledger has costs no read.
        events = StagedEvents(batch, RecordBlockCoder().decode, decode_staged, self._selection)
        sent = self._send(batch, events)
        for refusal in sent.refused:
            event = _event_at(events, refusal)
            if isinstance(event, FormattedEvent):
                event = event.make_event()
            refused = RefusedEvent(event, self._connector.name, refusal.reason)
            yield beam.pvalue.TaggedOutput(REFUSED, refused)
        # Count the batch in each try: exactly one try of the step is part of a committed epoch.
        self._batches.inc()
        self._records.inc(batch.records - len(sent.refused))
        self._refused.inc(len(sent.refused))
        yield DeliveredBatch(batch.delivery, batch.records, len(sent.refused))

    def teardown(self) -> None:
        self._close()

    @property
    def mark_seconds(self) -> float:
        """The time between two marks; see `penstock.publish.PacesMarks`."""
        seconds = self._connector.mark_seconds
        return MARK_SECONDS if seconds is None else seconds

    def mark_complete(self, job: str, record: int, until_us: int) -> None:
        """Let the target say until when it is complete, if that is wanted; see `penstock.publish.MarksComplete`."""
        if not self._connector.marks_complete:
            return
        # A connection of its own: the driver asks every few seconds, and has no other use for one.
        sender = cast(MarkingSender, self._connector.open(skip_refused=False))
        try:
            sender.mark_complete(job, self._sink, record, until_us)
        finally:
            sender.close()

    def clean_up(self, job: str, generation: int, epoch: int, publications: Collection[StagedBatch]) -> None:
        """Delete batches that are delivered or belong to failed epochs; see `penstock.publish.CleansUp`."""
        # Also of batches that were sent: the record names them until the next commit.
        keep = {each.staged for each in publications}
        clean_up(staging_store(self._staging), job, self._sink, (generation, epoch), keep)

    def _send(self, batch: StagedBatch, events: StagedEvents) -> Sent:
        """Send a batch, and send it again while the target does not answer."""
        try:
            return repeat_while_unavailable(
                lambda: self._send_once(batch, events),
                self._connector.name,
                self._unavailable_seconds,
                self._clock,
                self._pause,
            )
        except RefusalError as error:
            raise self._explained(error, events) from error

    def _send_once(self, batch: StagedBatch, events: StagedEvents) -> Sent:
        if self._sender is None:
            self._sender = self._connector.open(skip_refused=self._skip_refused)
        try:
            return self._deliver(self._sender, batch, events)
        except BaseException:
            # The state of the connection is not known, so the next try begins with a new one.
            self._close()
            raise

    def _deliver(self, sender: Any, batch: StagedBatch, events: StagedEvents) -> Sent:
        sent: Sent = sender.send(batch.delivery, events)
        return sent

    def _close(self) -> None:
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.close()

    def _explained(self, error: RefusalError, events: StagedEvents) -> RowRefusedError:
        refusal = error.refusal
        event = _event_at(events, refusal)
        table = event.source.qualified_table
        return RowRefusedError(
            f"{refused_row(self._connector.name, event, refusal)}. {error.batch}. Correct the target, then "
            "start the pipeline again. Or give the sink an error output (with_exception_handling), and it continues "
            "without the row" + (f"; or leave the table out (without_tables={table})" if table else ""),
        )


def refused_row(target: str, event: Any, refusal: Refusal) -> str:
    """Return a clause that says which event a target refuses, and why."""
    table = event.source.qualified_table or event.source.system
    return f"{target} refuses the {event.op} of a row of {table} at position {event.id}: {refusal.reason}"


def _event_at(events: StagedEvents, refusal: Refusal) -> Any:
    for event in islice(events, refusal.index, None):
        return event
    raise InvariantError(f"a sender refuses row {refusal.index} of a batch of {len(events)} rows")
