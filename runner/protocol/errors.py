"""What can go wrong with an epoch, each with its own answer.

| error | what it means | what the driver does |
|---|---|---|
| `EpochAborted` | this try of the epoch is void (a task ran twice with other data, ...) | repeats the epoch |
| `EpochFailed` | the epoch failed more often than `--epoch_retries` allows | the pipeline is FAILED |
| `Superseded` | a newer driver has taken the checkpoint over | stops at once, touches nothing more |
| `CheckpointError` | the checkpoint folder cannot be used as asked | tells the user what to do |
| `NotWritten` | storage did not take a file (a full disk) | repeats the epoch |
| `OutcomeUnknown` | storage did not say whether a create took place | puts the same bytes again |
| `CommitUnknown` | storage never said so, or which records there are | stops; the next take-over finds out |
"""

# ruff: noqa: N818  (these are the words of the design; "SupersededError" would say no more)

from __future__ import annotations

from penstock.errors import PenstockError, ServiceError


class CheckpointError(ServiceError):
    """The checkpoint folder is missing something, damaged, or not what the caller takes it for."""


class RunMissing(CheckpointError):
    """A state run that a record names is not there.

    Either the record is old and a newer driver has cleaned up (then the driver is `Superseded`; it finds out
    by looking), or somebody has removed the file.
    """


class Superseded(PenstockError):
    """Another driver has taken over this checkpoint; this one must stop and must not delete or publish."""


class EpochAborted(PenstockError):
    """What this try of the epoch made does not fit together; nothing of it was committed, so repeat it."""


class EpochFailed(PenstockError):
    """An epoch failed on every try; the last failure is the cause (`__cause__`)."""


class NotWritten(OSError, ServiceError):
    """The storage did not take a file, and nothing of it is there; later it may."""


class OutcomeUnknown(OSError, ServiceError):
    """The storage may or may not have done what it was asked; asking again with the same bytes tells."""


class CommitUnknown(PenstockError):
    """Nobody knows whether the last record was committed, so this driver must stop; a new start finds out."""
