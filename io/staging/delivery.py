"""The interface of a sink that sends rows after the commit, and the rule that makes repeated sends harmless. Pure.

    class PostgresTarget(Target):   # values, pickled into the pipeline
        name = "PostgreSQL at db.example.com/shop"

    class PostgresSender(Sender):   # one connection, in one worker process
        def __init__(self, target, skip_refused): ...
        def send(self, delivery, events): ...

A `penstock.io.staging.connector.Connector` opens the sender of a target.

The runner repeats a post-commit step until the next epoch is committed. A driver that was paused may repeat it even
later. So a target keeps a *ledger*: for each writer (`Delivery.writer`) the last delivery that it has, stored in the
same transaction as the rows. `is_delivered` compares a delivery with that entry. A target without transactions makes
each row idempotent instead, for example by an event id.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from penstock.attempt import DriverToken
from penstock.errors import ServiceError


@dataclass(frozen=True, slots=True, order=True)
class Delivery:
    """Identity of one batch of one shard. Equal deliveries have equal content, in equal order.

    - `sink`: the name of the sink, equal after every restart (`penstock.io.staging.names.sink_name`).
    - `job`: drawn when the checkpoint was created. Names of jobs sort by creation time.
    - `shard`, `shards`: 0 <= `shard` < `shards`. All rows of one primary key are in one shard, in commit order.
    - `generation`: of the driver that committed the batch.
    - `epoch`: rises with each commit. There is at most one delivery for each (sink, job, shard, shards, epoch).
    - `drivers`: the last drivers of the checkpoint, the committing one at the end; () if the runner names none.
    """

    sink: str
    job: str
    shard: int
    shards: int
    generation: int
    epoch: int
    drivers: tuple[DriverToken, ...] = field(default=(), compare=False, repr=False)

    @property
    def writer(self) -> str:
        """The key of this delivery's entry in the ledger: everything except generation, epoch and drivers."""
        # The name contains the number of shards: if that changes, batches of the old and of the new number may share an
        # epoch.
        return f"{self.sink}/{self.job}/{self.shard}-of-{self.shards}"

    @property
    def position(self) -> LedgerEntry:
        """The ledger entry after this delivery."""
        return position_of(self.generation, self.epoch, self.drivers)


class LedgerEntry(NamedTuple):
    """The last delivery of one writer that a target has.

    `driver` is the token of the driver that committed it; "" if it is not known.
    """

    generation: int
    epoch: int
    driver: str = ""


def position_of(generation: int, epoch: int, drivers: Sequence[DriverToken]) -> LedgerEntry:
    """Return the ledger entry after a delivery."""
    return LedgerEntry(generation, epoch, dict(drivers).get(generation, ""))


@dataclass(frozen=True, slots=True)
class Refusal:
    """A row that the target refuses: its index in the batch, from 0, and the reason without values of the row."""

    index: int
    reason: str


@dataclass(frozen=True, slots=True)
class Sent:
    """Result of a delivery, equal for each repetition of the delivery.

    `refused` are the rows that the target does not have. A target with a ledger stores them in the entry of the ledger,
    unless the sender can find the same rows again without the target.
    """

    refused: tuple[Refusal, ...] = ()


class EventBatch(Protocol):
    """The events of a delivery, in commit order for each key. May be iterated several times.

    Of a sink with a format they are `FormattedEvent`s, or `ChangeEvent`s of an earlier version of Penstock.
    """

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Any]: ...


class Sender(Protocol):
    """An open connection to a target, in one worker process and for one sink."""

    def check(self) -> None:
        """Check before the start that the target answers and that rights suffice; create the ledger if it is missing.

        A program that does not call `penstock.preflight` sends without it, so `send` needs no earlier `check`.

        Raises:
            ServiceError: it does not, and how to correct it.
        """

    def send(self, delivery: Delivery, events: EventBatch) -> Sent:
        """Deliver a batch whole or not at all, together with its entry in the ledger.

        Nothing is written if the ledger already has the delivery (`is_delivered`). If it is the last one there, the
        result is the same as the first time. If the ledger has a later one, no process uses the result.

        Raises:
            TargetUnavailableError: the target did not answer. The caller closes this sender, and sends again with a new
                one. It is not known whether the batch was delivered.
            FencedError: another process writes as `delivery.writer`. Nothing of the batch was delivered by this call.
            RefusalError: the target refuses a row, and the sender was opened with `skip_refused=False`.
            ServiceError: the target refuses the batch, and repeating it at once would not help.
        """

    def close(self) -> None:
        """Close the connection, and raise nothing. Called once, also after an error."""


class MarkingSender(Sender, Protocol):
    """A sender whose target can say until when it is complete."""

    def mark_complete(self, job: str, sink: str, record: int, until_us: int) -> None:
        """Write that the target has everything of a sink below `until_us`; see `penstock.publish.MarksComplete`.

        A call with a lower number than the target knows changes nothing.

        Raises:
            ServiceError: the target refuses, or does not answer.
        """


class Target(Protocol):
    """The configuration of a target, as values that can be pickled. Its repr shows no secrets."""

    @property
    def name(self) -> str:
        """The target in messages, without secrets: ``PostgreSQL at db.example.com/shop``."""


class TargetUnavailableError(ServiceError):
    """The target did not answer, or asked to try again later."""


class FencedError(ServiceError):
    """Another process has opened the target as the same writer, and the target takes nothing more from this one.

    The epoch fails at once, and its driver looks whether it was superseded. If this process opened the target again, it
    would fence the other one, which may belong to a newer driver.
    """


NOTHING_WRITTEN = "Nothing of its batch was written"
PARTLY_WRITTEN = (
    "Other rows of its batch may be written already, and the next try does not write them a second time"
)


class RefusalError(Exception):
    """Raised by a sender: the target refuses a row, and the sender must not skip refused rows.

    `batch` is a sentence for the user that says what of the other rows of the batch was written.
    """

    def __init__(self, refusal: Refusal, batch: str = NOTHING_WRITTEN) -> None:
        super().__init__(f"row {refusal.index} of the batch: {refusal.reason}")
        self.refusal, self.batch = refusal, batch


class RowRefusedError(ServiceError):
    """The target refuses a row, and the sink has no error output."""

    retryable = False


class LedgerConflictError(ServiceError):
    """The ledger of the target contradicts the checkpoint: another copy of the checkpoint wrote to the target."""

    retryable = False


def is_delivered(ledger: LedgerEntry | None, delivery: Delivery) -> bool:
    """Return whether a target already has a delivery, from the entry of `delivery.writer` in its ledger.

    The generation of a driver is the number of its first record. In one history it is above all epochs of earlier
    drivers, and no two drivers share it. A copy of a checkpoint has the same job, and it may even reach the same
    generation and the same epoch with other events. So an entry counts only if its driver is one of `delivery.drivers`.

    An entry of a later generation is by a newer driver, and says nothing about the deliveries of this one. It is an
    error: if the asking driver was superseded, it notices that after the error; if not, the entry is of another copy.

    Raises:
        LedgerConflictError: the entry does not belong to the history of this delivery. To send the delivery would be
            wrong, and so would it be to skip it.
    """
    return is_delivered_entry(ledger, delivery.position, delivery.job, delivery.drivers)


def is_delivered_entry(
    ledger: LedgerEntry | None, position: LedgerEntry, job: str, drivers: Sequence[DriverToken] = ()
) -> bool:
    """Return whether a target already has the delivery of `job` with this position; see `is_delivered`."""
    if ledger is None:
        return False
    if not _is_of_history(ledger, position, drivers):
        raise LedgerConflictError(
            f"the target has epoch {ledger.epoch} of generation {ledger.generation} of job {job}, and is now to "
            f"get epoch {position.epoch} of generation {position.generation}. One checkpoint cannot produce both: the "
            "checkpoint was copied or restored from an older copy. Resume from the checkpoint that wrote last; or "
            "start with a new checkpoint folder, which is a new job, and a time before the changes that are missing"
        )
    # Numbers of epochs rise through all generations of one history, so the epoch alone decides.
    return ledger.epoch >= position.epoch


def _is_of_history(ledger: LedgerEntry, position: LedgerEntry, drivers: Sequence[DriverToken]) -> bool:
    """Whether an entry was written before `position`, or by the same driver, in the history that has `drivers`."""
    # A newer driver has written. What an older one wants to write is out of date or of a copy.
    if ledger.generation > position.generation:
        return False
    known = dict(drivers)
    # A driver's epochs end where the next driver begins. If the ledger has a later epoch of it, this is an entry of
    # another copy of the checkpoint, in which that driver ran longer.
    later = [each for each in (*known, position.generation) if each > ledger.generation]
    if later and ledger.epoch >= min(later):
        return False
    # A driver that is older than all named drivers cannot be compared. An entry has no token if the runner has none.
    if not ledger.driver or not known or ledger.generation < min(known):
        return True
    # The same generation with another token is a driver of a copied checkpoint.
    return known.get(ledger.generation) == ledger.driver
