"""Full garbage collections of a worker cost at most 2 % of its time."""

from __future__ import annotations

import pytest

from penstock.runner.spark.collect_garbage import GarbageCollector


class Machine:
    """A clock, and a garbage collector whose full collection takes `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.now = 100.0
        self.full = self.young = 0
        self._seconds = seconds

    def collect(self, generation: int) -> int:
        if generation < 2:
            self.young += 1
        else:
            self.full += 1
            self.now += self._seconds
        return 0


@pytest.mark.parametrize("seconds", [0.001, 0.05, 0.5])
def test_full_collections_take_two_percent_of_the_time(seconds: float) -> None:
    machine = Machine(seconds)
    collector = GarbageCollector(machine.collect, lambda: machine.now)
    tasks = 0
    while machine.now < 200.0:
        machine.now += 0.1
        collector.collect()
        tasks += 1
    assert machine.full + machine.young == tasks
    assert machine.full * seconds <= 2.0 + seconds
    # Cycles do not wait for longer than that takes.
    assert machine.full >= min(tasks, 100.0 / (seconds * 51 + 0.1)) - 1
