"""The epoch protocol: pure rules, no Spark, no Beam (`docs/protocol.md`).

coordinator = Coordinator(Checkpoint.open(folder))
coordinator.take_over()
run_epochs(coordinator, epoch, retries=3)       # epoch(record, attempt) -> EpochState | None
"""

from penstock.attempt import Attempt
from penstock.runner.protocol.coordinator import Coordinator, Swept
from penstock.runner.protocol.errors import (
    CheckpointError,
    CommitUnknown,
    EpochAborted,
    EpochFailed,
    NotWritten,
    OutcomeUnknown,
    RunMissing,
    Superseded,
)
from penstock.runner.protocol.loop import Epoch, run_epochs
from penstock.runner.protocol.names import RunName
from penstock.runner.protocol.pins import BlockReceipt, TaskResult, pinned
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
    "CommitUnknown",
    "Coordinator",
    "EarliestTimers",
    "Epoch",
    "EpochAborted",
    "EpochFailed",
    "EpochState",
    "NotWritten",
    "OutcomeUnknown",
    "Publication",
    "Residual",
    "RunMissing",
    "RunName",
    "StateRun",
    "Superseded",
    "Swept",
    "TaskResult",
    "WatermarkKey",
    "pinned",
    "run_epochs",
]
