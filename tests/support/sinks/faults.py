"""Comparison of what a target has with the source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from tests.support.sinks.source import COMPARED, Key, Truth, number_at


def replica_faults(
    name: str, found: Iterable[tuple[Any, ...]], truth: Truth, columns: Sequence[str] = COMPARED
) -> list[str]:
    """Compare rows (owner, slot, columns …) with those of the source."""
    listed = list(found)
    rows = {(owner, slot): tuple(values) for owner, slot, *values in listed}
    expected = truth.rows(columns)
    faults = [] if len(rows) == len(listed) else [f"{name}: a key is there twice"]
    missing, foreign = expected.keys() - rows.keys(), rows.keys() - expected.keys()
    differ = [key for key in expected.keys() & rows.keys() if rows[key] != expected[key]]
    for what, keys in (("missing", missing), ("not in the source", foreign), ("different", differ)):
        if keys:
            faults.append(f"{name}: {len(keys)} rows are {what}, such as {sorted(keys)[0]}")
    return faults


def log_faults(
    name: str,
    found: Iterable[tuple[str, int, int]],
    truth: Truth,
    *,
    repeats: bool = False,
    ordered: bool = True,
) -> list[str]:
    """Compare a log (owner, slot, time of the event in ns) with that of the source.

    `found` is in the order in which a consumer sees it. With `repeats` a key is in order if the first ones of equal
    events are, or the last ones: a copy of a job repeats old events behind newer ones, and an event may have been
    written before an earlier one of its key was refused together with another row.
    """
    log: dict[Key, list[int]] = {}
    for owner, slot, time in found:
        log.setdefault((owner, slot), []).append(number_at(time))
    expected = truth.log()
    if repeats:
        log = {key: _without_repeats(numbers, expected.get(key, [])) for key, numbers in log.items()}
    if not ordered:
        log = {key: sorted(numbers) for key, numbers in log.items()}
    faults = []
    for key in sorted(expected.keys() | log.keys()):
        if log.get(key, []) != expected.get(key, []):
            times, wanted = Counter(log.get(key, [])), Counter(expected.get(key, []))
            lost, more = (wanted - times).total(), (times - wanted).total()
            faults.append(f"{name}: {key} has {lost} lost and {more} doubled events, or another order")
    return faults[:5]


def _without_repeats(numbers: list[int], expected: list[int]) -> list[int]:
    last = [*dict.fromkeys(reversed(numbers))][::-1]
    return last if last == expected else [*dict.fromkeys(numbers)]
