"""Rules that every output must follow, whichever process was killed. Each rule returns sentences about violations.

An empty list means that the rule holds. The sentences name files, tables and transactions, never values.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence, Set
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import pairwise

from penstock_emulators.oracle.change import Change, Identity
from penstock_emulators.oracle.lines import Line


def nothing_doubled(changes: Sequence[Change]) -> list[str]:
    """No change is in the files twice."""
    times = Counter(change.identity for change in changes)
    return [
        f"{change.table}: a change of {change.transaction} is there {times[change.identity]} times, "
        f"once at {change.place}"
        for change in changes
        if times[change.identity] > 1
    ]


def in_order_per_key(changes: Sequence[Change]) -> list[str]:
    """The changes of a key are in commit order within each bucket, and buckets are read by hour."""
    wrong = []
    latest: dict[tuple[str, str], Change] = {}
    for change in changes:
        before = latest.get((change.table, change.key))
        if before is not None and before.version >= change.version:
            wrong.append(f"{change.table}: {before.place} and {change.place} hold one key in the wrong order")
        latest[change.table, change.key] = change
    return wrong


def one_shard_per_key(changes: Sequence[Change]) -> list[str]:
    """All changes of a key are in shards with the same number."""
    shards: dict[tuple[str, str], set[str]] = defaultdict(set)
    for change in changes:
        shards[change.table, change.key].add(change.bucket[2])
    return [
        f"{table}: one key is in shards {sorted(found)}"
        for (table, _), found in shards.items()
        if len(found) > 1
    ]


def in_the_folder_of_its_table_and_hour(changes: Sequence[Change]) -> list[str]:
    """Each change is in the folder of its table and of the hour of its commit."""
    wrong = []
    for change in changes:
        committed = datetime.fromtimestamp(change.version[0] // 1_000_000_000, timezone.utc)
        if change.bucket[:2] != (change.table, f"{committed:%Y-%m-%dT%H}"):
            found = "/".join(change.bucket[:2])
            wrong.append(f"{change.place} in {found} is a change of {change.table}, {committed:%FT%H}")
    return wrong


def transactions_whole(changes: Sequence[Change]) -> list[str]:
    """Each transaction has all its records, each record has all its mods, and each partition has its last record."""
    transactions: dict[str, list[Change]] = defaultdict(list)
    for change in changes:
        transactions[change.transaction].append(change)
    return [sentence for name, of_one in transactions.items() for sentence in _not_whole(name, of_one)]


def _not_whole(name: str, changes: list[Change]) -> list[str]:
    records: dict[str, list[Change]] = defaultdict(list)
    for change in changes:
        records[change.version[1]].append(change)
    wrong = []
    if len({change.version[0] for change in changes}) > 1:
        wrong.append("has several commit timestamps")
    if len(records) != changes[0].records_in_transaction:
        wrong.append(f"has {len(records)} of {changes[0].records_in_transaction} records")
    lasts = sum(mods[0].last_in_partition for mods in records.values())
    if lasts != changes[0].partitions_in_transaction:
        wrong.append(f"has {lasts} last records in {changes[0].partitions_in_transaction} partitions")
    for mods in records.values():
        if sorted(mod.version[2] for mod in mods) != list(range(mods[0].mods_in_record)):
            wrong.append(f"has a record with {len(mods)} of {mods[0].mods_in_record} mods")
    return [f"transaction {name} {each}" for each in wrong]


ALL = (
    nothing_doubled,
    in_order_per_key,
    one_shard_per_key,
    in_the_folder_of_its_table_and_hour,
    transactions_whole,
)


def broken_rules(changes: Iterable[Change]) -> list[str]:
    """Return all violations in `changes`, which are in the order of the files."""
    found = list(changes)
    return [sentence for rule in ALL for sentence in rule(found)]


@dataclass(frozen=True, slots=True)
class Counts:
    """How many changes are lost, how often changes are repeated, and how many come after a later one of their key."""

    lost: int
    doubled: int
    out_of_order: int


def count_faults(changes: Sequence[Change], expected: Set[Identity]) -> Counts:
    """Count the faults of `changes`, which are in the order of the files; `expected` are all changes of the source."""
    first: dict[Identity, Change] = {}
    for change in changes:
        first.setdefault(change.identity, change)
    return Counts(
        lost=len(expected - first.keys()),
        doubled=len(changes) - len(first),
        # Where a change is repeated, it is also out of order; it counts only as doubled.
        out_of_order=len(in_order_per_key(list(first.values()))),
    )


def counted(lines: Iterable[Line], key: str, number: str, expected: dict[Hashable, int]) -> list[str]:
    """Compare with a generated source: each key counts 0, 1, 2, … up to its `expected` number (exclusive), in order.

    `key` and `number` are the names of the two fields of a line.
    """
    found: dict[Hashable, list[int]] = defaultdict(list)
    for line in lines:
        found[line.content[key]].append(line.content[number])
    wrong = [f"key {each!r} was never generated" for each in found.keys() - expected.keys()]
    for each, count in expected.items():
        wrong += _miscounted(each, found[each], count)
    return wrong


def _miscounted(key: Hashable, numbers: list[int], count: int) -> list[str]:
    if numbers == list(range(count)):
        return []
    times = Counter(numbers)
    lost = sum(number not in times for number in range(count))
    doubled = sum(each - 1 for each in times.values())
    foreign = sum(not 0 <= number < count for number in times)
    disordered = sum(one > other for one, other in pairwise(numbers))
    return [
        f"key {key!r}: {lost} lost, {doubled} doubled, {foreign} never generated, {disordered} out of order"
    ]
