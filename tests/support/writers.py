"""Threads that write to a database while a test reads its changes."""

from __future__ import annotations

import random
import threading

from typing_extensions import Self

from tests.support.waiting import join


class WriterThreads:
    """Threads that call `write` until they are stopped. A subclass writes one change, or a few, in each call."""

    def __init__(self, threads: int, pause: float) -> None:
        self.errors: list[BaseException] = []
        self._pause = pause
        self._stop = threading.Event()
        self._lock = threading.Lock()
        """For what a subclass counts."""
        self._threads = [
            threading.Thread(target=self._run, args=(seed,), daemon=True) for seed in range(threads)
        ]

    def write(self, rng: random.Random, seed: int, number: int) -> None:
        """Write once. `number` counts the calls of the thread `seed`."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> None:
        """Stop the threads after their current call."""
        self._stop.set()

    def __exit__(self, *_: object) -> None:
        self.stop()
        join(*self._threads)
        assert not self.errors, self.errors[0]

    def _run(self, seed: int) -> None:
        try:
            rng, number = random.Random(seed), 0
            while not self._stop.wait(self._pause):
                self.write(rng, seed, number)
                number += 1
        except BaseException as error:
            self.errors.append(error)
