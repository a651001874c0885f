"""Which keys of a state run count: the keys of some key groups, as bounds of its sorted keys. Pure.

A run that another number of tasks has written may have more key groups than the store that opens it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.runner.protocol.errors import CheckpointError
from penstock.runner.protocol.names import run_age, run_key_groups
from penstock.runner.protocol.record import StateRun
from penstock.runner.store.runs import GROUP_BYTES, Bounds, Run, key_of, run_key, successor


def bounds_of(group: int, prefix: bytes, stop: bytes | None) -> Bounds:
    """Return the bounds of one key group's keys with a prefix and below `stop`."""
    lower = run_key(group, prefix)
    upper = successor(lower)
    return lower, upper if stop is None else min(upper, run_key(group, stop))


def may_contain(bounds: Bounds, whole: Bounds, opened: Run) -> bool:
    """Whether a run may contain keys within the bounds. `whole` are the keys of the run that count."""
    if bounds[0] >= whole[1] or whole[0] >= bounds[1]:
        return False
    of_one_group = bounds[0][:GROUP_BYTES] == bounds[1][:GROUP_BYTES]
    return not of_one_group or key_of(bounds[0])[0] in opened.key_groups


def intersection(bounds: Bounds, whole: Bounds) -> Bounds:
    """Return the bounds of the keys that are within both."""
    return max(bounds[0], whole[0]), min(bounds[1], whole[1])


def counted_bounds(run: StateRun) -> Bounds:
    """Return the run keys [lower, upper) of a run that count."""
    return run_key(run.first_key_group, b""), successor(run_key(run.last_key_group, b""))


def overlaps(run: StateRun, first: int, last: int) -> bool:
    """Return whether key groups from `first` to `last` (inclusive) of the run count."""
    return run.first_key_group <= last and first <= run.last_key_group


def limit_to(run: StateRun, first: int, last: int) -> StateRun:
    """Return the run without key groups below `first` and above `last`."""
    return replace(
        run,
        first_key_group=max(first, run.first_key_group),
        last_key_group=min(last, run.last_key_group),
    )


def counted_bytes(run: StateRun) -> int:
    """Estimate the bytes of a run that count: the size of its file, in proportion to the key groups."""
    groups = run_key_groups(run.name)
    counting = run.last_key_group - run.first_key_group + 1
    return run.size * counting // max(len(groups or ()), counting)


def age_of(run: StateRun) -> tuple[int, int]:
    """Return generation and epoch of a run: a run with a higher pair is newer.

    Raises:
        CheckpointError: the name of the run has none.
    """
    age = run_age(run.name)
    if age is None:
        raise CheckpointError(f"{run.name!r} is not the name of a state run; was the commit record edited?")
    return age


def check_order(runs: Sequence[StateRun]) -> None:
    """Reject two runs of one age for one key group: it would be undefined which of them wins.

    Raises:
        CheckpointError: there are two such runs.
    """
    for index, run in enumerate(runs):
        for other in runs[index + 1 :]:
            if age_of(other) == age_of(run) and overlaps(other, run.first_key_group, run.last_key_group):
                raise CheckpointError(
                    f"state runs {run.name!r} and {other.name!r} both claim the same key groups"
                )
