"""The other tasks of an epoch that read on this executor: they tell each other in a small file what they read.

See `penstock.runner.harness.idle_wait` for the rule. The file is in the folder of `input_exchange`, whose file
says which tasks have arrived.
"""

from __future__ import annotations

from penstock.runner.harness.idle_wait import NoOtherReaders, OtherReaders, Said
from penstock.runner.spark.input_exchange import inputs_taken, shared_file, write_shared
from penstock.runner.tasks.epoch import EpochInput


def other_readers(index: int, epoch: EpochInput, *, folder: str | None = None) -> OtherReaders:
    """Return the tasks of level 0 that read, besides the one that runs the input `index`. `folder`: as `input_of`."""
    if epoch.limits.quiet_seconds <= 0:
        return NoOtherReaders()  # no task of this epoch waits for another one
    reading = frozenset(i for i, task in enumerate(epoch.inputs) if task.residuals)
    return _ReadersHere(reading, epoch, folder) if reading - {index} else NoOtherReaders()


class _ReadersHere:
    exist = True

    def __init__(self, reading: frozenset[int], epoch: EpochInput, folder: str | None) -> None:
        self._reading, self._epoch, self._folder = reading, epoch, folder
        self._path = shared_file("data", epoch.attempt, folder)
        # With the attempt, because the file is that of another one at first.
        self._words = {f"{epoch.attempt.nonce} {word}": word for word in Said}

    def all_hear(self) -> bool:
        return self._reading <= inputs_taken(self._epoch, folder=self._folder)

    def say(self, what: Said) -> None:
        if what is Said.ENDED and self.heard() is Said.READ:
            return
        write_shared(self._path, f"{self._epoch.attempt.nonce} {what}")

    def heard(self) -> Said | None:
        try:
            return self._words.get(self._path.read_text(encoding="ascii"))
        except FileNotFoundError:  # no task has said anything yet
            return None
