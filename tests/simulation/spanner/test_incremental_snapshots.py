"""Incremental snapshots that are merged with a simulated change stream: parts, splits, crashes, over random histories.

The frontier, its coder and tracker, the engine and `StreamMerge` are the real ones. The worker answers when the seed
says so, with the rows as of a read time that the seed chooses.
"""

from __future__ import annotations

import json
import queue
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from penstock.io.change_streams.incremental.channels import Polled
from penstock.io.change_streams.incremental.engine import Chunk, ChunkRequest
from penstock.io.change_streams.incremental.frontier import IncrementalFrontier
from penstock.io.change_streams.incremental.merge import StreamMerge
from penstock.io.change_streams.incremental.options import SnapshotOptions
from penstock.io.change_streams.incremental.progress import Snapshot, SnapshotProgress
from penstock.io.change_streams.incremental.signals import (
    ExecuteSnapshot,
    PauseSnapshot,
    ResumeSnapshot,
    Signal,
)
from penstock.io.change_streams.incremental.worker import Resolved
from penstock.io.change_streams.incremental_tracker import IncrementalCoder, IncrementalTracker
from penstock.io.change_streams.watermark import beam_watermark
from penstock.io.spanner.frontier import Frontier
from penstock.io.spanner.incremental.chunks import chunk_rows
from penstock.io.spanner.incremental.merging import SpannerRecords
from penstock.io.spanner.initial_scan.rows import READ
from penstock.io.spanner.read import ReadSpannerFn
from penstock.io.spanner.record import DataChangeRecord, Mod, Mods
from penstock.io.spanner.steps import announces_end, closes, last_step, to_steps
from penstock.io.spanner.tracker import FrontierCoder, SpannerTracker

CODER = IncrementalCoder(FrontierCoder())
KEYS = 8

Row = dict[str, Any]


class Rows:
    """The table that the records of a stream describe, as of any time. The records get kinds and values first."""

    def __init__(self, partitions: Any, rng: random.Random) -> None:
        self.initial: dict[int, Row] = {
            key: {"T": "first", "B": "first"} for key in range(KEYS) if rng.random() < 0.7
        }
        self.changes: list[DataChangeRecord] = []
        rows = dict(self.initial)
        places = [(record, p, n) for p in partitions for n, record in enumerate(p.records)]
        # At one time a key is in one partition, or first in a parent and then in its child.
        places.sort(key=lambda place: (place[0].commit_timestamp, place[1].start, place[2]))
        for record, partition, number in places:
            key = int(json.loads(record.mods[0].keys)["K"])
            changed = self._changed(record, key, rows, rng)
            partition.records[number] = changed
            self.changes.append(changed)

    def _changed(
        self, record: DataChangeRecord, key: int, rows: dict[int, Row], rng: random.Random
    ) -> DataChangeRecord:
        now = f"{record.commit_timestamp}/{len(self.changes)}"
        capture, kind = "NEW_VALUES", "UPDATE"
        new: Row = {"T": now}
        if key not in rows:
            kind, new = "INSERT", {"T": now, "B": now}
        elif rng.random() < 0.07:
            kind, new = "DELETE", {}
        elif rng.random() < 0.1:
            capture, new = "NEW_ROW", {"T": now, "B": now}
        apply(rows, kind, key, new)
        mods = Mods.of([Mod(f'{{"K":"{key}"}}', json.dumps(new), "{}")])
        return replace(record, mods=mods, mod_type=kind, value_capture_type=capture)

    def at(self, timestamp: int) -> dict[int, Row]:
        rows = dict(self.initial)
        for record in self.changes:
            if record.commit_timestamp <= timestamp:
                apply(rows, record.mod_type, *key_and_values(record.mods[0]))
        return rows


def apply(rows: dict[int, Row], kind: str, key: int, new: Row) -> None:
    if kind == "DELETE":
        rows.pop(key, None)
    else:
        rows[key] = {**rows.get(key, {}), **new} if kind == "UPDATE" else new


def key_and_values(mod: Mod) -> tuple[int, Row]:
    keys, new, _ = mod.parsed()
    return int(keys["K"]), new


class SeededWorker:
    """Answers requests when it is told to."""

    def __init__(self, rows: Rows, rng: random.Random, tick: int) -> None:
        self.answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.jobs: list[Any] = []
        self._rows, self._rng, self._tick = rows, rng, tick
        self.now = 0
        """A time that has passed."""

    def ask(self, job: Any) -> None:
        self.jobs.append(job)

    def work(self) -> None:
        """Answer one of the requests."""
        if self.jobs:
            job = self.jobs.pop(self._rng.randrange(len(self.jobs)))
            known = isinstance(job, Snapshot)
            self.answers.put(Resolved(job.id, ["T"], {}) if known else self._chunk(job))

    def _chunk(self, request: ChunkRequest) -> Chunk:
        timestamp = max(*request.after, self.now) + self._rng.randint(0, 5) * self._tick
        rows = self._rows.at(timestamp)
        keys = sorted(rows)
        if request.keys:
            wanted = [int(json.loads(each)["K"]) for each in request.keys]
            keys = [key for key in keys if key in wanted]
        else:
            after = int(json.loads(request.cursor)["K"]) if request.cursor else -1
            keys = [key for key in keys if key > after][: request.size]
        mods = Mods.of(Mod(f'{{"K":"{key}"}}', json.dumps(rows[key]), "{}") for key in keys)
        record = DataChangeRecord(timestamp, "", "", True, "T", (), mods, READ, "NEW_ROW", 1, 1, "", False)
        is_last = not request.keys and len(keys) < request.size
        return Chunk(request, chunk_rows(record), timestamp.__ge__, timestamp + 1, is_last)

    def park(self, seconds: float) -> None: ...
    def stop(self) -> None: ...

    def resume(self) -> bool:
        return True


@pytest.fixture
def merged_reading(reading: Any, broken: Any) -> Any:
    """Return a class that reads one history of `reading` while a snapshot is taken."""

    class MergedReading(reading):  # type: ignore[misc]
        def __init__(self, seed: int, *, mutable: bool = False) -> None:
            super().__init__(seed, mutable=mutable)
            self.fn = ReadSpannerFn(None)
            self.rows = Rows(self.stream._all.values(), self.rng)
            self.parked: StreamMerge | None = None
            self.horizon_passed = self.paused = False
            # A second snapshot hides what the first one lost.
            self.repeats = self.rng.random() < 0.2
            self.refused = self.continued = self.begun = self.pauses = self.rows_first = 0
            progress, _ = SnapshotProgress().receive(
                ExecuteSnapshot("1", ("T",), chunk_rows=self.rng.choice((1, 2, 3, 9)))
            )
            start = IncrementalFrontier(
                Frontier.starting_at(self.stream.start, self.stream.horizon, mutable=mutable), progress
            )
            self.residuals = [(start, beam_watermark(start.watermark))]

        def tracker(self, frontier: Any) -> Any:
            return IncrementalTracker(frontier, SpannerTracker)

        def _stored(self, frontier: Any) -> Any:
            return CODER.decode(CODER.encode(frontier))

        def _merge(self, frontier: IncrementalFrontier) -> StreamMerge:
            parked, self.parked = self.parked, None
            if parked is not None and self.rng.random() < 0.8 and parked.resume(frontier):
                self.continued += 1
                return parked
            self.begun += 1
            self.worker = SeededWorker(self.rows, self.rng, self.stream.tick)
            return StreamMerge(
                SpannerRecords(),
                self.worker,
                SnapshotOptions(),
                "",
                frontier,
                notifications=False,
                dead_letters=False,
            )

        def _steps(self, tracker: Any) -> Iterator[Any]:
            frontier = tracker.current_restriction()
            if frontier.progress is None:
                yield from self._changes(tracker, None)
                return
            merge = self._merge(frontier)
            worker = merge._worker  # that of this merge, which may not be the latest one
            self.parked = merge  # the bundle ends without another call of this generator
            while (frontier := tracker.current_restriction()).can_progress:
                worker.now = self.stream.horizon if self.horizon_passed else 0
                if self.rng.random() < 0.8:
                    worker.work()
                if self.rng.random() < 0.1:
                    worker.answers.put(Polled("file", [self._signal(frontier)], self.steps))
                merge.look(frontier)
                while merge.has_rows:
                    yield merge.next_claim()
                    merge.row_claimed()
                yield from self._changes(tracker, merge)

        def _signal(self, frontier: IncrementalFrontier) -> Signal:
            # A bounded read does not wait for a paused snapshot: near its end no pause comes.
            late = (frontier.stream.watermark or self.stream.horizon) > self.stream.horizon // 2
            kind = self.rng.random()
            if kind < 0.2 and not late:
                self.pauses += 1
                return PauseSnapshot("p")
            if kind < 0.5 and not late and self.repeats:
                return ExecuteSnapshot(str(self.steps), ("T",), chunk_rows=self.rng.choice((1, 2, 3, 9)))
            return ResumeSnapshot("r")

        def _changes(self, tracker: Any, merge: StreamMerge | None) -> Iterator[Any]:
            """Yield the steps of one window; without a merge, of all windows."""
            while True:
                stream = tracker.current_restriction().stream
                if not stream.open:
                    return
                token = self._pick(sorted(stream.open))
                position = stream.open[token]
                end = min(position.timestamp + self.rng.randint(0, 6) * self.stream.tick, self.stream.horizon)
                answer = self.stream.ask(token, position.timestamp, end)
                if end == self.stream.horizon:
                    self.horizon_passed = True
                steps, position = to_steps(token, position, answer, max_in_claim=self.rng.choice((1, 3)))
                for changes, step in steps:
                    if not changes or merge is None or not merge.notes_changes:
                        yield changes, step
                        continue
                    records, merged = merge.note(changes, step)
                    self.rows_first += len(records) - len(changes)
                    yield records, merged
                    merge.changes_claimed(changes)
                if not (steps and closes(steps[-1][1])):
                    announced = any(announces_end(step) for _, step in steps)
                    last = last_step(token, position, end, self.stream.horizon, announced=announced)
                    if last is not None:
                        yield [], last
                if merge is not None:
                    return

        def _split(self, tracker: Any, steps: Iterator[Any], outputs: list[Any]) -> Any:
            split = super()._split(tracker, steps, outputs)
            if split is not None and self.rng.random() < 0.5 and (taken := next(steps, None)) is not None:
                self.refused += 1
                assert not tracker.try_claim(taken[1])
            return split

        def _commit(self, before: object, outputs: list[Any], residuals: list[Any]) -> None:
            super()._commit(before, outputs, residuals)
            for frontier, _ in residuals:
                if frontier.progress is not None:
                    self.paused = frontier.progress.paused

        def _check_all(self) -> None:
            rows: dict[int, Row] = {}
            emitted: dict[int, int] = {}
            for record in self.committed:
                for mod in record.mods:
                    key, new = key_and_values(mod)
                    if emitted.get(key, -1) > record.commit_timestamp:
                        raise broken(f"the row {key} came after a change that it does not contain")
                    if record.mod_type != READ:
                        emitted[key] = record.commit_timestamp
                    elif self._missing(key, record.commit_timestamp, emitted.get(key, -1)):
                        raise broken(f"the row {key} came before a change that it contains")
                    apply(rows, record.mod_type, key, new)
            # A bounded read ends without the rest of a snapshot that is paused.
            if rows != self.rows.at(self.stream.horizon) and not self.paused:
                raise broken("replaying the output does not give the table")
            self.reads = sum(record.mod_type == READ for record in self.committed)
            self.committed = [record for record in self.committed if record.mod_type != READ]
            super()._check_all()

        def _missing(self, key: int, timestamp: int, emitted: int) -> bool:
            return any(
                emitted < change.commit_timestamp <= timestamp
                and int(json.loads(change.mods[0].keys)["K"]) == key
                for change in self.rows.changes
            )

    return MergedReading


def test_a_snapshot_beside_a_stream_gives_the_table_through_splits_and_crashes(
    merged_reading: Any, campaign: Any
) -> None:
    counts: Counter[str] = Counter()

    @settings(max_examples=campaign.size(60, 2_000), deadline=None, database=None)
    @seeded(campaign.seed)
    @given(st.integers(0, 2**32))
    def gives_the_table(seed: int) -> None:
        reading = merged_reading(seed)
        reading.run()
        counts.update(histories=1, crashes=reading.crashes, rows=reading.reads, pauses=reading.pauses)
        counts.update(refused_claims=reading.refused, continued=reading.continued)

    gives_the_table()
    campaign.record("snapshot-histories-spanner", **counts)


def test_the_histories_reach_every_case(merged_reading: Any) -> None:
    runs = [merged_reading(seed) for seed in range(40)]
    for run in runs:
        run.run()
    assert sum(run.reads for run in runs) > 100
    assert sum(run.refused for run in runs) > 40
    assert sum(run.crashes for run in runs) > 40
    assert sum(run.continued for run in runs) > 100
    assert sum(run.rows_first for run in runs) > 10
    assert sum(run.pauses for run in runs) > 10
