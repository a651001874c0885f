"""Random splits, merges and moves: the same seed and the same partitions give the same changes."""

from __future__ import annotations

import random
from dataclasses import dataclass

from penstock_emulators.simulated_spanner.key_ranges import KeyRanges, MutableRanges


@dataclass(frozen=True, slots=True)
class RangeChange:
    """One change of key ranges: the arguments of `Database.change_ranges`."""

    action: str
    tokens: tuple[str, ...]
    to: str | None = None
    ways: int = 2


@dataclass(frozen=True, slots=True)
class ChurnLimits:
    """The least and the greatest number of partitions that random changes may lead to."""

    least: int = 1
    most: int = 8


def next_change(rng: random.Random, ranges: KeyRanges, limits: ChurnLimits) -> RangeChange:
    """Choose a change that keeps the number of partitions within the limits."""
    live = ranges.live()
    token = rng.choice(live)
    neighbours = ranges.neighbours(token)
    choices = ["move"]
    if len(live) < limits.most:
        choices += ["split", "split"]
    if len(live) > limits.least and neighbours:
        choices += ["merge", "merge"]
    action = rng.choice(choices)
    if action == "split":
        return RangeChange("split", (token,), ways=rng.choice((2, 2, 2, min(3, limits.most - len(live) + 1))))
    if action == "merge":
        return RangeChange("merge", (token, rng.choice(neighbours)))
    others = [each for each in live if each != token]
    if isinstance(ranges, MutableRanges) and others and rng.random() < 0.7:
        return RangeChange("move", (token,), to=rng.choice(others))
    return RangeChange("move", (token,))
