"""The seeded histories of `conftest`, read in closed slices: apart, repeated, with a crash between any two calls."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.io.spanner.query import ROOT
from penstock.io.spanner.record import DataChangeRecord
from penstock.io.spanner.slice import SlicePart, live_partitions, slice_parts
from penstock.io.spanner.steps import announces_end, closes, last_step, to_steps
from tests.simulation.spanner.conftest import Stream
from tests.simulation.spanner.mutable import MutableStream

HISTORIES = 1000


class CrashError(Exception):
    """The process dies at this call."""


class SlicedReading:
    """Reads one history as Spark's micro-batches do: offsets on the driver, stateless parts on the executors.

    A batch has four calls: its end is chosen and stored; its parts are planned; each part is read; the batch is
    committed. A crash at any call makes the driver continue with what was stored. A part may be read twice, as by
    speculative execution, and must give equal records.
    """

    def __init__(
        self, seed: int, *, mutable: bool = False, scattered: bool = False, crash_at: int = -1
    ) -> None:
        self.rng = random.Random(seed * 31 + 7)
        self.mutable = mutable
        self.stream: Any = MutableStream(seed) if mutable else Stream(seed, scattered=scattered)
        self.crash_at, self.calls, self.queries, self.batches = crash_at, 0, 0, 0
        self.before = self.stream.start  # the committed offset: everything below it was delivered
        self.planned: int | None = None  # the stored end of the batch that runs
        self.sink: dict[int, list[DataChangeRecord]] = {}  # by batch, so a repeated batch replaces itself
        self.repeated = 0

    def run(self) -> None:
        finish = self.stream.horizon + 1
        for _ in range(10_000):
            if self.before >= finish:
                break
            try:
                self._batch(finish)
            except CrashError:
                self.repeated += 1
        else:
            raise AssertionError("the reader makes no progress")
        self._check()

    def _batch(self, finish: int) -> None:
        if self.planned is None:
            self._call()
            # Ends on, just after and between the times at which partitions begin and changes commit.
            step = self.rng.randint(0, 12) * self.stream.tick + self.rng.choice((0, 0, 1))
            self.planned = min(self.before + step, finish)
        self._call()
        parts = self._parts(self.before, self.planned, self.rng.randint(1, 4))
        found: list[DataChangeRecord] = []
        for part in self.rng.sample(parts, len(parts)):
            self._call()
            records = list(self._read(part))
            if self.rng.random() < 0.1:
                assert sorted(map(identity, self._read(part))) == sorted(map(identity, records))
            found += records
        self._call()
        if self.batches in self.sink:
            assert sorted(map(identity, self.sink[self.batches])) == sorted(map(identity, found))
        self.sink[self.batches] = found
        self._call()
        self.before, self.planned = self.planned, None
        self.batches += 1

    def _call(self) -> None:
        self.calls += 1
        if self.calls == self.crash_at or (self.crash_at < 0 and self.rng.random() < 0.05):
            raise CrashError

    def _ask(self, token: str, start: int, end: int) -> Any:
        self.queries += 1
        return self.stream.ask(token, start, end)

    def _parts(self, start: int, end: int, most: int) -> list[SlicePart]:
        if start >= end:
            return []
        live = live_partitions(ROOT, start, self._ask(ROOT, start, start))
        return slice_parts(live, start, end, most, mutable=self.mutable)

    def _read(self, part: SlicePart) -> Iterator[DataChangeRecord]:
        frontier = part.frontier()
        assert frontier.end is not None
        while frontier.open:
            token = self.rng.choice(sorted(frontier.open))
            position = frontier.open[token]
            until = min(position.timestamp + self.rng.randint(0, 12) * self.stream.tick, frontier.end)
            steps, position = to_steps(token, position, self._ask(token, position.timestamp, until))
            for records, step in steps:
                frontier = frontier.apply(part.owned(step))
                yield from records
            if steps and closes(steps[-1][1]):
                continue
            announced = any(announces_end(step) for _, step in steps)
            if step := last_step(token, position, until, frontier.end, announced=announced):
                frontier = frontier.apply(step)
        assert not frontier.waiting, "a part ended with partitions that it never read"

    def _check(self) -> None:
        read = Counter(identity(record) for found in self.sink.values() for record in found)
        expected = Counter(map(identity, self.stream.records))
        assert not expected - read, f"{len(expected - read)} records were lost"
        assert not read - expected, f"{len(read - expected)} records were read twice"


def identity(record: DataChangeRecord) -> tuple[int, str, str]:
    return record.commit_timestamp, record.server_transaction_id, record.record_sequence


def read_histories(count: int, **options: Any) -> int:
    """Read histories and check each; return the number of crashes."""
    crashes = 0
    for seed in range(count):
        run = SlicedReading(seed, **options)
        try:
            run.run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        crashes += run.repeated
    return crashes


@pytest.mark.long(seconds=10)
def test_a_thousand_histories_in_slices_lose_nothing_and_read_nothing_twice(campaign: Any) -> None:
    crashes = read_histories(HISTORIES)
    assert crashes > HISTORIES, "the histories do not crash enough to show anything"


def test_a_few_histories_in_slices_lose_nothing_and_read_nothing_twice() -> None:
    read_histories(60)


@pytest.mark.long(seconds=5)
def test_slices_of_streams_whose_keys_leave_their_lineage_lose_nothing() -> None:
    read_histories(100, scattered=True)


def test_slices_of_mutable_streams_lose_nothing_and_read_nothing_twice(campaign: Any) -> None:
    read_histories(campaign.size(60, HISTORIES), mutable=True)


@pytest.mark.parametrize("seed", range(3))
def test_a_crash_at_every_call_of_the_api_changes_nothing(seed: int) -> None:
    undisturbed = SlicedReading(seed, crash_at=0)
    undisturbed.run()
    for call in range(1, undisturbed.calls + 1):
        SlicedReading(seed, crash_at=call).run()


def share_of_broken_histories(count: int = 100) -> int:
    broken = 0
    for seed in range(count):
        try:
            SlicedReading(seed).run()
        except Exception:
            broken += 1
    return broken


@pytest.mark.parametrize(
    "owner",
    [
        pytest.param(lambda parents: None, id="every-parent-owns-a-merged-child"),
        pytest.param(max, id="the-largest-parent-agrees-too"),
    ],
)
def test_one_rule_for_merged_children_is_needed_and_which_one_does_not_matter(
    owner: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    from penstock.io.spanner.frontier import Announced

    def owned(self: SlicePart, step: Any) -> Any:
        if not isinstance(step, Announced):
            return step
        kept = tuple(
            child
            for child in step.record.child_partitions
            if owner(child.parent_partition_tokens) in (None, step.token)
        )
        return replace(step, record=replace(step.record, child_partitions=kept))

    monkeypatch.setattr(SlicePart, "owned", owned)
    broken = share_of_broken_histories()
    assert broken == 0 if owner is max else broken > 50


def test_the_parts_of_equal_slices_are_equal_and_have_each_partition_once() -> None:
    live = [f"p{number}" for number in range(10)]
    parts = slice_parts(live, 5, 9, 4)
    assert parts == slice_parts(live, 5, 9, 4)
    assert len(parts) == 4
    assert sorted(key for part in parts for key in part.partitions) == live


def test_a_slice_without_time_or_partitions_has_no_parts() -> None:
    assert slice_parts(["p"], 5, 5, 4) == []
    assert slice_parts([], 5, 9, 4) == []


def test_a_slice_of_a_mutable_stream_is_one_part() -> None:
    assert len(slice_parts(["a", "b", "c"], 5, 9, 4, mutable=True)) == 1
