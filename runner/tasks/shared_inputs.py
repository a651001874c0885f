"""Which task of level 0 runs which input of an epoch, so that a reader stays in its process. Pure.

A source keeps its streams open between epochs: a replication slot, prefetched messages. They are in the Python worker
that has read last, but Spark gives a task to any idle worker. So the tasks on one host exchange their inputs. Each
takes the input that its own process has run in the last epoch; the others share what remains.

Invariant: every taken input was made for a task that has arrived on this host. So an input never has to move to another
host, and a task always finds a free one, because fewer inputs are taken than tasks have arrived.

An exchange only decides *who* reads. Before the commit the driver checks that each input was read exactly once
(`check_inputs`), because a task that Spark repeats on another host does not see the exchange.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from penstock.runner.protocol.errors import EpochAbortedError


@dataclass(slots=True)
class HostTasks:
    """The tasks of level 0 that have arrived on one host in one attempt of an epoch.

    `arrived` is the process of each task by its partition, `taken` the partition of the task that runs an input, by
    the index of the input. The input with index `i` is the one that the driver has made for partition `i`.
    """

    arrived: dict[int, str] = field(default_factory=dict)
    taken: dict[int, int] = field(default_factory=dict)

    def choose(self, partition: int, owners: Sequence[str], *, waited: bool) -> int | None:
        """Return the index of the input that the task of `partition` runs; None: ask again a little later.

        `owners` is by input the process that holds its open streams, or "". `waited` says that the task has waited long
        enough for the others. The task must have arrived.
        """
        for index, runner in self.taken.items():
            if runner == partition:  # an earlier attempt of this task took it, and has died
                return index
        own = [
            i for i, owner in enumerate(owners) if owner == self.arrived[partition] and i not in self.taken
        ]
        free = [i for i in self.arrived if i not in self.taken]
        # Its own partition first: then the others find theirs as well.
        free.sort(key=lambda i: (i != partition, i))
        here = [i for i in free if i in own]
        if here:
            return here[0]
        if own and not waited:
            return None  # the task of that partition has not arrived
        unclaimed = [i for i in free if not owners[i] or self._runs_another(owners[i])]
        if unclaimed:
            return unclaimed[0]
        return free[0] if waited else None

    def _runs_another(self, process: str) -> bool:
        """Whether a process runs an input already, so that it will not take another one."""
        return any(self.arrived.get(partition) == process for partition in self.taken.values())


def check_inputs(indices: Iterable[int], partitions: int) -> None:
    """Check that the tasks of level 0 have run each input once.

    Raises:
        EpochAbortedError: they have not, because Spark has repeated a task that had exchanged its input.
    """
    if sorted(indices) != list(range(partitions)):
        raise EpochAbortedError("the tasks of level 0 did not run each input once")
