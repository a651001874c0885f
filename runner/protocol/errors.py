"""The errors of the epoch protocol, and what the driver does about each.

| error | meaning | what the driver does |
|---|---|---|
| `EpochAbortedError` | this try is void, for example because a task ran twice with other data | repeats the epoch |
| `EpochFailedError` | the epoch failed, and no try is left (`--epoch_retries`) or can help | the pipeline is FAILED |
| `DriverRunsError` | another driver runs, and `--take_over` was not given | the pipeline does not start |
| `SupersededError` | a newer driver has taken over the checkpoint | stops at once, publishes and deletes nothing more |
| `CheckpointError` | the checkpoint folder cannot be used as asked | tells the user what to do |
| `NotWrittenError` | the storage refused a file (for example: the disk is full) | repeats the epoch |
| `OutcomeUnknownError` | the storage did not say whether it created a file | creates it again with the same bytes |
| `ParkedAtEndError` | the input has ended, and tables are parked | the pipeline is FAILED |
| `CommitUnknownError` | the storage repeatedly gave no answer | stops; the next take-over reads the outcome |
"""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import Self

from penstock.errors import AnotherDriverError, PenstockError, ServiceError
from penstock.parked import ParkedTable


class CheckpointError(ServiceError):
    """The checkpoint folder is incomplete, damaged, or does not fit the pipeline or the options."""

    retryable = False


class RunMissingError(CheckpointError):
    """A state run that a record names does not exist.

    Either a newer driver has deleted it, and this driver is superseded (it checks that next). Or someone deleted
    the file by hand.
    """


class DriverRunsError(AnotherDriverError):
    """The driver that took over this checkpoint last still runs. Nothing was started or changed."""


class SupersededError(AnotherDriverError):
    """Another driver has taken over this checkpoint. This one must stop, and must not delete or publish."""


class EpochAbortedError(PenstockError):
    """The results of this try of the epoch do not belong together. Nothing was committed; repeat the epoch."""


class EpochFailedError(PenstockError):
    """An epoch failed on its last try. `__cause__` is the error of that try.

    The message ends with the text of the cause. `redacted` leaves that text out if it is not from Penstock.
    """

    def __init__(self, message: str, redacted: str | None = None) -> None:
        super().__init__(message)
        self._redacted = message if redacted is None else redacted

    @property
    def redacted(self) -> str:
        return self._redacted


class NotWrittenError(OSError, ServiceError):
    """The storage refused a file, and no part of it exists. A later try may succeed."""


class OutcomeUnknownError(OSError, ServiceError):
    """The storage did not say whether it carried out a request. Repeat it with the same bytes to find out."""


class ParkedAtEndError(ServiceError):
    """The pipeline has published everything except the changes of parked tables, and does not end with them."""

    retryable = False

    @classmethod
    def of(cls, tables: Sequence[ParkedTable]) -> Self:
        """Return the error for these tables."""
        reasons = "; ".join(f"{each.name}: {each.reason}" for each in tables)
        return cls(
            f"the input has ended, and {len(tables)} tables are parked, which have not got all changes. {reasons}. "
            "Correct the cause, ask for each with `penstock tables JOB resume NAME` or `penstock tables JOB skip "
            "NAME`, and start the pipeline again"
        )


class CommitUnknownError(PenstockError):
    """It is unknown whether the last record was committed, so this driver must stop. The next start finds out."""
