"""The rows of a replica, against a dict that follows the source: any batches, repeats and late snapshots."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.event import ChangeEvent, Op, Version
from penstock.event.keys import RowKey, row_key
from penstock.event.replica import (
    ReplicaRow,
    apply,
    decode_version,
    encode_version,
    fold,
)
from tests.support.changing_table import COLUMNS, changed_table


class Target:
    """A replica in memory: what every sink does with `fold` and `apply`."""

    def __init__(self) -> None:
        self.rows: dict[RowKey, ReplicaRow] = {}
        self.truncated: Version | None = None

    def write(self, events: list[ChangeEvent]) -> None:
        for changes in fold(events).values():
            current = {key: self.rows[key] for key in changes.keys_to_read() if key in self.rows}
            written = apply(changes, current, self.truncated)
            if changes.truncated is not None and (
                self.truncated is None or changes.truncated > self.truncated
            ):
                self.truncated = changes.truncated
                self.rows = {key: row for key, row in self.rows.items() if row.version > changes.truncated}
            self.rows |= written

    @property
    def live(self) -> dict[int, dict[str, Any]]:
        return {
            row.key["k"]: {name: row.values.get(name) for name in COLUMNS}
            for row in self.rows.values()
            if not row.deleted
        }


seeds = st.integers(0, 2**32)
sizes = st.integers(0, 30)


@settings(max_examples=60)
@given(seeds, sizes, st.lists(st.integers(1, 9), min_size=1, max_size=8), st.data())
def test_replica_equals_the_source_in_batches_of_any_size_with_repeats(
    seed: int, statements: int, cuts: list[int], data: st.DataObject
) -> None:
    table, target = changed_table(seed, statements), Target()
    done: list[list[ChangeEvent]] = []
    place = 0
    while place < len(table.events):
        size = cuts[len(done) % len(cuts)]
        batch = table.events[place : place + size]
        target.write(batch)
        done.append(batch)
        # A batch that comes again, as after a crash, or late from another driver.
        target.write(done[data.draw(st.integers(0, len(done) - 1))])
        place += size
    assert target.live == table.rows


@given(seeds, sizes, st.lists(st.integers(0, 100), max_size=10))
def test_old_batches_that_come_again_change_nothing(seed: int, statements: int, repeats: list[int]) -> None:
    table, target = changed_table(seed, statements), Target()
    batches = [table.events[place : place + 4] for place in range(0, len(table.events), 4)]
    for batch in batches:
        target.write(batch)
    before = dict(target.rows)
    for number in repeats:
        if batches:
            target.write(batches[number % len(batches)])
    assert target.rows == before


@given(seeds, sizes, st.randoms(use_true_random=False))
def test_whole_rows_may_come_in_any_order(seed: int, statements: int, rng: random.Random) -> None:
    table, target = changed_table(seed, statements, partial=False), Target()
    events = list(table.events)
    rng.shuffle(events)
    for place in range(0, len(events), 3):
        target.write(events[place : place + 3])
    assert target.live == table.rows


@given(seeds, sizes, st.randoms(use_true_random=False))
def test_rows_of_a_snapshot_never_replace_newer_rows(seed: int, statements: int, rng: random.Random) -> None:
    table, target = changed_table(seed, statements), Target()
    reads = [event for event in table.events if event.op is Op.READ]
    rng.shuffle(reads)
    target.write([event for event in table.events if event.op is not Op.READ])
    target.write(reads)
    assert target.live == table.rows


@given(seeds, sizes)
def test_one_batch_gives_what_single_events_give(seed: int, statements: int) -> None:
    table, at_once, singly = changed_table(seed, statements), Target(), Target()
    at_once.write(table.events)
    for event in table.events:
        singly.write([event])
    assert at_once.live == singly.live == table.rows


@given(seeds, st.integers(1, 40))
def test_text_of_versions_sorts_as_versions(seed: int, count: int) -> None:
    rng = random.Random(seed)

    def part() -> str:
        return "".join(rng.choice('\x00 !"#aAzé09-') for _ in range(rng.randrange(4)))

    versions = [
        Version(rng.choice([0, 9, 10, 2**80]), part(), part(), rng.randrange(20)) for _ in range(count)
    ]
    by_text = sorted(versions, key=lambda version: encode_version(version).encode())
    assert by_text == sorted(versions)
    assert [decode_version(encode_version(version)) for version in versions] == versions


def test_nan_in_a_key_is_equal_to_itself() -> None:
    assert row_key({"k": float("nan")}) == row_key({"k": float("nan")})
