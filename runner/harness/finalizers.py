"""Bundle finalization in streams: best effort, after the commit, in the process that ran the bundle.

A processor whose DoFns have registered callbacks is set aside until a later epoch's task comes to the same
process and brings the nonces of the tasks that the last record holds. If its own is among them the callbacks
run; a bundle of an epoch that was aborted is dropped, callbacks and all. A process that gets no task any more,
or dies, finalizes nothing: nothing that must happen may depend on it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from penstock.runner.harness.bundle import StageProcessor


@dataclass(frozen=True, slots=True)
class _Waiting:
    plan: str
    epoch: int
    nonce: str
    stage: int
    processor: StageProcessor


_waiting: list[_Waiting] = []


def hold(plan: str, epoch: int, nonce: str, stage: int, processor: StageProcessor) -> None:
    """Set a processor aside: its bundle ended in order, but is not committed yet."""
    _waiting.append(_Waiting(plan, epoch, nonce, stage, processor))


def run(plan: str, epoch: int, committed: Collection[str]) -> list[tuple[int, StageProcessor]]:
    """Run the callbacks of committed bundles of a plan; return (stage, processor) that can be used again.

    `epoch` is the one that now runs; bundles of earlier ones that are not committed never will be.
    """
    over = [w for w in _waiting if w.plan == plan and (w.nonce in committed or w.epoch < epoch)]
    _waiting[:] = [w for w in _waiting if w not in over]
    good = [w for w in over if w.nonce in committed]
    for waiting in good:
        waiting.processor.finalize()
    for waiting in over:
        if waiting not in good:
            waiting.processor.discard()
    return [(w.stage, w.processor) for w in good]
