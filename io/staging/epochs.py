"""Targets that take one commit per epoch, on the driver: tables of Delta and Iceberg, and a user's Spark function.
Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Protocol, runtime_checkable

from typing_extensions import Self

from penstock.attempt import DriverToken
from penstock.datasets import ReadTable
from penstock.event.model import ChangeEvent
from penstock.io.staging.batch import StagedBatch
from penstock.io.staging.complete_marks import Mark
from penstock.io.staging.delivery import LedgerEntry, is_delivered_entry, position_of
from penstock.io.staging.preview import Written
from penstock.io.staging.table_notes import WrittenTable
from penstock.rewind import RewindPlan
from penstock.tables import TableSelection


@dataclass(frozen=True, slots=True, order=True)
class EpochDelivery:
    """Identity of everything that a sink has staged in one epoch. Equal deliveries have equal content.

    Fields: see `penstock.io.staging.delivery.Delivery`.
    """

    sink: str
    job: str
    generation: int
    epoch: int
    drivers: tuple[DriverToken, ...] = field(default=(), compare=False, repr=False)

    @property
    def writer(self) -> str:
        """The key of this delivery's entry in a ledger: everything except generation, epoch and drivers."""
        return f"{self.sink}/{self.job}"

    @property
    def position(self) -> LedgerEntry:
        """The ledger entry after this delivery."""
        return position_of(self.generation, self.epoch, self.drivers)

    def is_delivered(self, ledger: LedgerEntry | None) -> bool:
        """Return whether a target has this delivery; see `penstock.io.staging.delivery.is_delivered`."""
        return is_delivered_entry(ledger, self.position, self.job, self.drivers)


class EpochTarget(Protocol):
    """The configuration of a target, as a value that can be pickled. Its repr shows no secrets."""

    @property
    def name(self) -> str:
        """The target in messages, without secrets."""

    def check(self) -> None:
        """Check before the start that the target can be written.

        Raises:
            PenstockError: it cannot, and how to correct it.
        """

    def selecting(self, selection: TableSelection) -> Self:
        """Return a target that leaves out the events of other tables, also of batches that are staged already."""

    def preview(self, event: ChangeEvent) -> list[Written]:
        """Return what the target would get for one event; see `penstock.io.staging.preview`.

        Raises:
            ValueError: the target cannot hold a value, or cannot express the event.
        """

    def publish(self, delivery: EpochDelivery, batches: Sequence[StagedBatch]) -> None:
        """Write an epoch whole or not at all, with its entry in the ledger; in the driver.

        `batches` are in the order of their shards. Called again with an equal delivery, however late and by whichever
        driver, it changes nothing.

        Raises:
            TargetUnavailableError: the target did not answer. The caller tries again.
        """


@runtime_checkable
class ChecksTables(Protocol):
    """A target that can check, before the start, whether it fits the tables that a source reads."""

    def check_tables(self, tables: Callable[[], Sequence[ReadTable]]) -> None:
        """Check the targets of the tables; `tables` asks the source, and is called only if that is needed.

        Raises:
            UsageError, SeveralProblemsError: they do not fit.
        """


@runtime_checkable
class MarkingTarget(Protocol):
    """An `EpochTarget` whose tables can say until when they are complete."""

    @property
    def mark_seconds(self) -> float | None:
        """Time, in seconds, between two marks, at least; None if none are wanted."""

    @property
    def written(self) -> Collection[WrittenTable]:
        """The tables that this process has published epochs to."""

    def mark_complete(self, mark: Mark, tables: Iterable[WrittenTable]) -> None:
        """Write a mark into tables, unless they have a newer one of its sink. Tables that are missing are left out.

        Raises:
            PenstockError: a table refuses, or the service does not answer. The other tables have the mark.
        """


@runtime_checkable
class RewindingTarget(Protocol):
    """An `EpochTarget` whose tables can go back; see `penstock.publish.Rewinds`."""

    def plan_rewind(self, sink: str, job: str, to_us: int, tables: Iterable[WrittenTable]) -> RewindPlan:
        """Return how these tables of a sink and job go back. Tables that are missing are left out.

        Raises:
            PenstockError: they cannot, why, and what to do instead.
        """

    def rewind(self, delivery: EpochDelivery, plan: RewindPlan) -> None:
        """Put the tables back, each with the ledger entry of `delivery` and a mark of the time of the plan."""


def by_epoch(batches: Sequence[StagedBatch]) -> list[tuple[EpochDelivery, list[StagedBatch]]]:
    """Return batches by the epoch that staged them, oldest first. A record names batches of one epoch only."""
    # A record may name batches of several shard counts, after a change of `shards`.
    ordered = sorted(
        batches, key=lambda batch: (_epoch_of(batch), batch.delivery.shards, batch.delivery.shard)
    )
    return [(delivery, list(each)) for delivery, each in groupby(ordered, key=_epoch_of)]


def _epoch_of(batch: StagedBatch) -> EpochDelivery:
    delivery = batch.delivery
    return EpochDelivery(delivery.sink, delivery.job, delivery.generation, delivery.epoch, delivery.drivers)
