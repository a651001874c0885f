"""Bundle finalization in streams: best effort, after the commit, in the process that ran the bundle.

A processor whose DoFns have registered finalizers is set aside until a task of a later epoch runs in the same process.
That task has the nonces of the tasks whose work the last record holds. If the processor's nonce is among them, its
finalizers run; otherwise its epoch was aborted, and they are dropped. A process that dies or gets no more tasks runs no
finalizers, so no necessary work may depend on them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from penstock.runner.harness.bundle import StageProcessor


@dataclass(frozen=True, slots=True)
class _Waiting:
    epoch: int
    nonce: str
    processor: StageProcessor


class Finalizers:
    """The processors of one plan that this process has set aside."""

    def __init__(self) -> None:
        self._waiting: list[_Waiting] = []

    def hold(self, epoch: int, nonce: str, processor: StageProcessor) -> None:
        """Set a processor aside: its bundle ended without an error, but is not committed yet."""
        self._waiting.append(_Waiting(epoch, nonce, processor))

    def nonces(self) -> frozenset[str]:
        """Return the task attempts whose processors are set aside."""
        return frozenset(each.nonce for each in self._waiting)

    def run(self, epoch: int, committed: Collection[str]) -> list[StageProcessor]:
        """Run the callbacks of committed bundles; return their processors, which can be used again.

        `epoch` is the epoch that runs now. Bundles of earlier epochs that are not among `committed` were aborted, and
        are discarded.
        """
        waiting, self._waiting, good = self._waiting, [], []
        for each in waiting:
            if each.nonce in committed:
                each.processor.finalize()
                good.append(each.processor)
            elif each.epoch < epoch:
                each.processor.discard()
            else:
                self._waiting.append(each)
        return good
