"""Comparison of what a target has with the source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.support.sinks.source import COMPARED, Key, Truth, Values, number_at


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


def feed_faults(name: str, found: Iterable[Mapping[str, Any]], truth: Truth) -> list[str]:
    """Compare the rows of a change feed with the statements of the source.

    `found` are rows of the table's columns and of `_change_type`, `_commit_version`, `_commit_timestamp` and
    `_not_sent`, in the order in which a consumer sees them. Each row must be there once, a key's rows in order, and a
    replay in the order of the versions must give the rows of the source.
    """
    rows = list(found)
    faults = log_faults(
        name, [_entry(row) for row in rows if row["_change_type"] != "update_preimage"], truth
    )
    made = Counter((*_entry(row), row["_change_type"]) for row in rows)
    expected = Counter(truth.feed())
    for what, entries in (("lost", expected - made), ("doubled or foreign", made - expected)):
        if entries:
            faults.append(f"{name}: {entries.total()} rows are {what}, such as {sorted(entries)[0]}")
    replayed = [(*key, *(row.get(each) for each in COMPARED)) for key, row in _replayed(rows).items()]
    return faults + replica_faults(f"{name}, replayed", replayed, truth)


def _entry(row: Mapping[str, Any]) -> tuple[str, int, int]:
    return row["owner"], row["slot"], round(row["_commit_timestamp"].timestamp()) * 1_000_000_000


def _replayed(rows: Iterable[Mapping[str, Any]]) -> dict[Key, Values]:
    """Return the table that the rows make. What was not sent keeps its value, also if the key of the row changes."""
    table: dict[Key, Values] = {}
    moved: Values = {}
    for row in sorted(
        rows, key=lambda row: (row["_commit_version"], row["_change_type"] != "update_preimage")
    ):
        key = row["owner"], row["slot"]
        sent = {each: row[each] for each in COMPARED if each not in row["_not_sent"]}
        match row["_change_type"]:
            case "update_preimage":
                moved = table.pop(key, {})
            case "delete":
                table.pop(key, None)
            case _:
                table[key] = {**table.get(key, {}), **moved, **sent}
                moved = {}
    return table
