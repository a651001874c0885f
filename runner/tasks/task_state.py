"""The state that one task has open: one store per stateful transform, sealed together when the task ends."""

from __future__ import annotations

from collections.abc import Iterator

from sortedcontainers import SortedDict

from penstock.object_stores.store import in_parallel
from penstock.runner.protocol.names import RunName
from penstock.runner.protocol.record import StateRun
from penstock.runner.store.cells import Store
from penstock.runner.store.folders import open_folder
from penstock.runner.store.runs import shared_cache
from penstock.runner.store.state import StateStore
from penstock.runner.tasks.epoch import EpochInput, StepState


class MemoryStore:
    """A store that ends with its task: batch keeps no state between tasks."""

    def __init__(self) -> None:
        self._entries: SortedDict = SortedDict()

    def get(self, key_group: int, key: bytes) -> bytes | None:
        """The value of a key, None if there is none."""
        value: bytes | None = self._entries.get((key_group, key))
        return value

    def put(self, key_group: int, key: bytes, value: bytes) -> None:
        """Set a key."""
        self._entries[(key_group, key)] = value

    def delete(self, key_group: int, key: bytes) -> None:
        """Forget a key; a missing one is fine."""
        self._entries.pop((key_group, key), None)

    def scan(
        self, first: int, last: int, prefix: bytes, stop: bytes | None = None
    ) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield (group, key, value) of keys with `prefix` and below `stop`, ascending by group and key."""
        for group in range(first, last + 1):
            for entry in self._entries.irange((group, prefix)):
                if entry[0] != group or not entry[1].startswith(prefix) or (stop and entry[1] >= stop):
                    break
                yield group, entry[1], self._entries[entry]

    def firsts(self, first: int, last: int, prefix: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield (group, key) of the first key with `prefix` of each group."""
        for group in range(first, last + 1):
            for _, key, _ in self.scan(group, group, prefix):
                yield group, key
                break


class TaskState:
    """Opens the stores of a task's key groups as the record left them; `seal` writes what has changed."""

    def __init__(self, epoch: EpochInput, nonce: str, first: int, last: int) -> None:
        self._epoch = epoch
        self._nonce = nonce
        self._first, self._last = first, last
        self._stores: dict[str, StateStore] = {}
        self._passing: dict[str, MemoryStore] = {}
        if epoch.state_folder:
            self._files, self._folder = open_folder(epoch.state_folder)
            alive = {run.name for state in epoch.state.values() for run in state.runs}
            before = (epoch.attempt.generation, epoch.attempt.epoch)
            shared_cache().forget_dead(self._folder, alive, before)
            self._files.forget_copies(self._folder, alive, before)

    def open(self, name: str) -> Store:
        """The store of a stateful transform."""
        if not self._epoch.state_folder:
            return self._passing.setdefault(name, MemoryStore())
        if name not in self._stores:
            runs = self._epoch.state.get(name, StepState()).runs
            self._stores[name] = StateStore.open(self._files, self._folder, runs, self._first, self._last)
        return self._stores[name]

    def look(self, name: str) -> Store:
        """Return the last record's state in the first key group, also in tasks that do not own it. Read-only."""
        runs = self._epoch.state.get(name, StepState()).runs
        return StateStore.open(self._files, self._folder, runs, 0, 0)

    def seal(self) -> dict[str, tuple[StateRun, ...]]:
        """Write the changes; return, for each store that was opened, all runs of the task's key groups."""
        attempt = self._epoch.attempt

        def seal(name: str) -> tuple[StateRun, ...]:
            run = RunName(attempt.generation, attempt.epoch, self._nonce, name)
            return tuple(self._stores[name].seal(run))

        names = list(self._stores)
        # An object store answers after tens of ms, so its puts run at the same time. A local disk is faster in turn.
        late = bool(names) and not self._files.lists_cheaply
        return dict(zip(names, in_parallel(seal, names) if late else map(seal, names), strict=True))
