"""The state that one task has open: one store per stateful transform, sealed together when the task ends.

In a batch the stores end with the task.
"""

from __future__ import annotations

from penstock.object_stores.store import in_parallel
from penstock.runner.protocol.names import RunName
from penstock.runner.protocol.record import StateRun
from penstock.runner.store.cells import Store
from penstock.runner.store.folders import open_folder
from penstock.runner.store.runs import shared_cache
from penstock.runner.store.state import StateStore
from penstock.runner.tasks.epoch import EpochInput, StepState


class TaskState:
    """Opens the stores of a task's key groups as the record left them; `seal` writes what has changed."""

    def __init__(self, epoch: EpochInput, nonce: str, first: int, last: int) -> None:
        self._epoch = epoch
        self._nonce = nonce
        self._first, self._last = first, last
        self._stores: dict[str, StateStore] = {}
        if epoch.state_folder:
            self._files, self._folder = open_folder(epoch.state_folder)
            alive = {run.name for state in epoch.state.values() for run in state.runs}
            before = (epoch.attempt.generation, epoch.attempt.epoch)
            shared_cache().forget_dead(self._folder, alive, before)
            self._files.forget_copies(self._folder, alive, before)

    def open(self, name: str) -> Store:
        """The store of a stateful transform."""
        if name not in self._stores:
            if self._epoch.state_folder:
                runs = self._epoch.state.get(name, StepState()).runs
                opened = StateStore.open(self._files, self._folder, runs, self._first, self._last)
            else:
                opened = StateStore.temporary(self._first, self._last)
            self._stores[name] = opened
        return self._stores[name]

    def open_read_only(self, name: str) -> Store:
        """Open the last record's state of key group 0, also in a task that does not own that group. Do not write to it.

        Panes of side inputs are stored there once for all tasks; see `side_inputs.py`.
        """
        runs = self._epoch.state.get(name, StepState()).runs
        return StateStore.open(self._files, self._folder, runs, 0, 0)

    def seal(self) -> dict[str, tuple[StateRun, ...]]:
        """Write the changes; return, for each store that was opened, all runs of the task's key groups."""
        if not self._epoch.state_folder:
            return {}  # batch keeps no state between tasks
        attempt = self._epoch.attempt

        def seal(name: str) -> tuple[StateRun, ...]:
            run = RunName(attempt.generation, attempt.epoch, self._nonce, name)
            return tuple(self._stores[name].seal(run))

        names = list(self._stores)
        # A put to an object store takes tens of ms, so the puts run at the same time. On a local disk one after the
        # other is faster.
        parallel = bool(names) and not self._files.lists_cheaply
        return dict(zip(names, in_parallel(seal, names) if parallel else map(seal, names), strict=True))
