"""Claims the outputs of a pipeline for its checkpoint, so that two checkpoints cannot write to one output.

A sink that can be claimed implements `penstock.publish.ClaimsOutput`.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.publish import CheckpointPosition, ClaimsOutput
from penstock.runner.protocol.coordinator import Coordinator
from penstock.runner.protocol.loop import SWEEP_EVERY
from penstock.runner.protocol.record import CommitRecord


class OutputClaims:
    """Claims every output at the take-over, and again before each clean-up of sinks.

    The loop sweeps after every `every` commits and at the end. It calls `committed` first, so no sink deletes files
    without a new claim.
    """

    def __init__(
        self, sinks: Sequence[ClaimsOutput], coordinator: Coordinator, job: str, every: int = SWEEP_EVERY
    ) -> None:
        self._sinks = sinks
        self._coordinator = coordinator
        self._job = job
        self._every = every
        self._claimed: tuple[int, str] | None = None

    def claim(self) -> None:
        """Claim all outputs for the last record.

        Raises:
            SupersededError: a newer driver of the same checkpoint has claimed them.
            ServiceError: another checkpoint has claimed the output of a sink.
        """
        own = self._coordinator.own_record
        position = CheckpointPosition(
            own.record.number, own.digest, self._coordinator.digest_of, claimed=self._claimed
        )
        try:
            for sink in self._sinks:
                sink.claim_output(self._job, position)
        except Exception:
            # If this driver was superseded, its successor's claim is the cause, and that is the error to report.
            self._coordinator.check_superseded()
            raise
        self._claimed = (own.record.number, own.digest)

    def committed(self, record: CommitRecord) -> None:
        """After a commit: claim again if a clean-up of sinks may follow."""
        since = None if self._claimed is None else record.number - self._claimed[0]
        if since is None or since >= self._every or record.state.done:
            self.claim()
