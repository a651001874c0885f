"""The epoch protocol: pure rules, no Spark, no Beam (`docs/protocol.md`).

coordinator = Coordinator(Checkpoint.open(folder))
coordinator.take_over()
run_epochs(coordinator, epoch, retries=3)       # epoch(record, attempt) -> EpochState | None
"""

from penstock.attempt import Attempt
from penstock.runner.protocol.coordinator import Coordinator, SweepResult
from penstock.runner.protocol.errors import (
    CheckpointError,
    CommitUnknownError,
    EpochAbortedError,
    EpochFailedError,
    NotWrittenError,
    OutcomeUnknownError,
    RunMissingError,
    SupersededError,
)
from penstock.runner.protocol.loop import Epoch, run_epochs
from penstock.runner.protocol.names import RunName
from penstock.runner.protocol.pins import BlockReceipt, TaskResult, pin_attempts
from penstock.runner.protocol.record import (
    CommitRecord,
    EarliestTimers,
    EpochState,
    Publication,
    Residual,
    StateRun,
    WatermarkKey,
)

__all__ = [
    "Attempt",
    "BlockReceipt",
    "CheckpointError",
    "CommitRecord",
    "CommitUnknownError",
    "Coordinator",
    "EarliestTimers",
    "Epoch",
    "EpochAbortedError",
    "EpochFailedError",
    "EpochState",
    "NotWrittenError",
    "OutcomeUnknownError",
    "Publication",
    "Residual",
    "RunMissingError",
    "RunName",
    "StateRun",
    "SupersededError",
    "SweepResult",
    "TaskResult",
    "WatermarkKey",
    "pin_attempts",
    "run_epochs",
]
