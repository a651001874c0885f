"""A frontier for sources whose partitions neither split nor merge, such as one replication slot. Pure.

    frontier = FlatFrontier({"slot": FlatPosition("0/16B3748", watermark)}, end=None)
    frontier = frontier.advanced({"slot": FlatPosition("0/16B3750", later)})
    frontier = frontier.apply(Ended("slot"))

No partition ever waits for another one. `flat_tracker` has its coder and its tracker.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

from penstock.errors import LineageError
from penstock.io.change_streams.frontier import Scan


class FlatPosition(NamedTuple):
    """`position`: where a partition continues, a JSON value. `watermark`: no unread change is below it; nanoseconds."""

    position: Any
    watermark: int


class Advanced(NamedTuple):
    """Records or heartbeats of `partition` were read up to `position`."""

    partition: str
    position: FlatPosition


class Ended(NamedTuple):
    """The partition was read to the frontier's end."""

    partition: str


@dataclass(frozen=True, slots=True)
class FlatFrontier:
    """The partitions that remain to be read, and how far each is; `end`: last timestamp to read, None: no end."""

    positions: Mapping[str, FlatPosition]
    end: int | None

    @property
    def readable(self) -> Collection[str]:
        """All partitions."""
        return self.positions.keys()

    @property
    def waiting(self) -> Collection[str]:
        """None."""
        return ()

    @property
    def done(self) -> bool:
        """Whether no partition remains."""
        return not self.positions

    @property
    def can_progress(self) -> bool:
        """Whether a partition remains."""
        return bool(self.positions)

    @property
    def watermark(self) -> int | None:
        """The lowest watermark of a partition; None: none remains."""
        return min((position.watermark for position in self.positions.values()), default=None)

    @property
    def snapshots(self) -> tuple[Any, ...]:
        """The progress of snapshots: a position may be a list with a `SnapshotProgress`."""
        parts = chain.from_iterable(
            each.position for each in self.positions.values() if isinstance(each.position, list)
        )
        return tuple(part for part in parts if hasattr(part, "scans"))

    @property
    def scans(self) -> tuple[Scan, ...]:
        """The tables that snapshots have not finished."""
        return tuple(chain.from_iterable(part.scans for part in self.snapshots))

    @property
    def summary(self) -> str:
        """The remaining work, in words."""
        return f"{len(self.positions)} partitions to read"

    def advanced(self, positions: Mapping[str, FlatPosition]) -> FlatFrontier:
        """Return the frontier with some partitions at new positions."""
        return replace(self, positions={**self.positions, **positions})

    def apply(self, step: Ended) -> FlatFrontier:
        """Return the frontier without a partition that ended.

        Raises:
            LineageError: it is not among the partitions.
        """
        if step.partition not in self.positions:
            raise LineageError(f"the end of partition {step.partition}, which is not read here")
        return self._of(name for name in self.positions if name != step.partition)

    def exhausted(self) -> FlatFrontier:
        """Return the same frontier without partitions."""
        return replace(self, positions={})

    def deal(self, n: int) -> list[FlatFrontier]:
        """Return at most `n` frontiers, none empty. The same partitions stay together as long as `n` is the same."""
        # By name: in the order of watermarks, partitions would change their worker often, and each change costs a new
        # connection.
        names = sorted(self.positions)
        return [self._of(names[number::n]) for number in range(min(n, len(names)))]

    @staticmethod
    def join(parts: Sequence[FlatFrontier]) -> FlatFrontier:
        """Return one frontier from all parts of a deal.

        Raises:
            LineageError: two parts hold the same partition.
        """
        # A partition in two parts would be read twice. The dictionary hides it, so the sizes are compared.
        together = {name: position for part in parts for name, position in part.positions.items()}
        if len(together) < sum(len(part.positions) for part in parts):
            raise LineageError("two parts of a frontier hold the same partition")
        return replace(parts[0], positions=together)

    def _of(self, names: Iterable[str]) -> FlatFrontier:
        return replace(self, positions={name: self.positions[name] for name in names})
