"""The post-commit step of a sink whose batches have several tables, and which parks tables that the target refuses.

The driver sends each table in a transaction of its own, with an entry in the ledger for each table; see
`penstock.io.staging.table_parking`. The tasks send nothing. They emit the result of each batch, with the rows that the
target has refused alone, which the ledger names.

    driver: publish_or_park ──► tables, each with its entry in the ledger (or the checkpoint: parked changes)
    tasks:  process         ──► DeliveredBatch, refused rows
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast

from penstock.io.staging.batch import StagedBatch, StagedEvents
from penstock.io.staging.coders import RecordBlockCoder
from penstock.io.staging.connector import Connector
from penstock.io.staging.delivery import Delivery, Refusal, Sender, Sent
from penstock.io.staging.formatted_run import decode_staged
from penstock.io.staging.parked_files import ParkedFiles
from penstock.io.staging.retry import repeat_while_unavailable
from penstock.io.staging.roll_batches import staging_store
from penstock.io.staging.send import SendBatchesFn
from penstock.io.staging.table_parking import ParkingTarget, TableParking
from penstock.parked import ParkedTable
from penstock.publish import current_attempt
from penstock.tables import TableSelection

_Result = TypeVar("_Result")


class TableSender(Sender, Protocol):
    """A sender whose target knows the rows that were refused in deliveries of tables."""

    def refused_in(self, delivery: Delivery) -> Mapping[str, str]:
        """Return the reasons why rows of an epoch were refused, by the ids of their events.

        The driver has sent all tables of the epoch of `delivery` before, or parked them.
        """


class SendTablesFn(SendBatchesFn):
    """`StagedBatch` to `DeliveredBatch`; the driver has sent the tables of the batch.

    Order: a table gets its events in the order of their epochs, and in an epoch in the order of their versions. What
    repeats: transactions, with equal content; the ledger skips them. Watermark and state: see `SendBatchesFn`.

    On other runners than `PySparkRunner` the batches are sent by `SendBatchesFn`, and no table is parked.
    """

    def __init__(self, connector: Connector, *arguments: Any, max_parked_bytes: int, **options: Any) -> None:
        super().__init__(connector, *arguments, **options)
        self._max_parked_bytes = max_parked_bytes
        self._tables: ParkingTarget | None = None

    def publish_on_driver(self, publications: Sequence[StagedBatch]) -> None:
        """See `penstock.publish.PublishesOnDriver`."""
        self.publish_or_park(publications, ())

    def publish_or_park(
        self, publications: Sequence[StagedBatch], parked: Sequence[ParkedTable]
    ) -> Sequence[ParkedTable]:
        """Send the tables of batches, or park them; see `penstock.publish.ParksTables`."""
        if self._tables is None:
            self._tables = cast(
                ParkingTarget,
                self._connector.tables(self._selection, skip_refused=self._skip_refused, repeat=self._repeat),
            )
        parking = TableParking(self._tables, self._files(), self._max_parked_bytes, self._repeat)
        return parking.publish(publications, parked)

    def clean_up_parked(self, job: str, generation: int, epoch: int, parked: Sequence[ParkedTable]) -> None:
        """Delete files of parked changes that are not needed; see `penstock.publish.ParksTables`."""
        self._files().clean_up(job, (generation, epoch), parked)

    def _files(self) -> ParkedFiles:
        return ParkedFiles(staging_store(self._staging), self._sink)

    def _repeat(self, work: Callable[[], _Result]) -> _Result:
        return repeat_while_unavailable(
            work, self._connector.name, self._unavailable_seconds, time.monotonic, time.sleep
        )

    def _send(self, batch: StagedBatch, events: StagedEvents) -> Sent:
        # No driver of PySparkRunner has generation 0; it is the attempt of a process of another runner.
        if current_attempt().generation and not self._skip_refused:
            return Sent()
        return super()._send(batch, events)

    def _deliver(self, sender: Any, batch: StagedBatch, events: StagedEvents) -> Sent:
        if not current_attempt().generation:
            return super()._deliver(sender, batch, events)
        refused = sender.refused_in(batch.delivery)
        if not refused:
            return Sent()
        return Sent(
            tuple(
                Refusal(index, refused[event.id]) for index, event in enumerate(events) if event.id in refused
            )
        )


def staged_events(batches: Collection[StagedBatch], selection: TableSelection) -> list[Any]:
    """Return the events of batches, for the tables that are selected now."""
    decode = RecordBlockCoder().decode
    return [event for batch in batches for event in StagedEvents(batch, decode, decode_staged, selection)]
