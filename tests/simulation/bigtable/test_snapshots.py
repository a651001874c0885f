"""Rows that are read while their changes are, over random histories of layouts, skewed clocks, pauses and crashes.

The frontier, coders, trackers, the engine, `StreamMerge` and the reader of chunks are the real ones. As in Bigtable,
each row of a chunk is read at its own moment, and the service writes while a chunk is read.
"""

from __future__ import annotations

import queue
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from penstock.io.bigtable.filter import Selection
from penstock.io.bigtable.frontier import Frontier
from penstock.io.bigtable.incremental import BigtableRecords, RowReader
from penstock.io.bigtable.keys import EVERYTHING, KeyRange
from penstock.io.bigtable.record import (
    ChangeStreamMutation,
    DeleteCells,
    DeleteFamily,
    Entry,
    MutationType,
    SetCell,
)
from penstock.io.bigtable.tracker import BigtableTracker, FrontierCoder
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
from tests.integration.bigtable.replay import apply, replayed
from tests.simulation.bigtable.reading import BrokenPromiseError, Reading
from tests.simulation.bigtable.service import KEYS, MILLI, Change, Service

CODER = IncrementalCoder(FrontierCoder())
SKEW = 3 * MILLI
"""How far the clock of the reader may be from that of the service."""

Row = dict[tuple[str, bytes, int], bytes]


class Cells(Service):
    """The service with rows: what each change does depends on the seed and its number."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rng = random.Random(self.seed)
        self.initial = {
            key: (SetCell("f", b"a", 1000, b"first"), SetCell("g", b"a", 1000, b"kept"))
            for key in KEYS
            if rng.random() < 0.7
        }

    def advance(self, events: int) -> None:
        super().advance(events)
        if self.over:
            self.now += MILLI  # rows wait for a watermark above the moment when they were read

    def entries(self, change: Change) -> tuple[Entry, ...]:
        rng = random.Random(f"{self.seed}/{change.number}")
        cell = rng.choice((b"a", b"b")), 1000 * rng.randrange(1, 3)
        return rng.choice(
            (
                (SetCell("f", *cell, b"%d" % change.number),),
                (SetCell("f", *cell, b"%d" % change.number),),
                (DeleteCells("f", cell[0], 0, cell[1]), SetCell("f", *cell, b"%d" % change.number)),
                (DeleteFamily("f"),),
                (DeleteFamily("f"), DeleteFamily("g")),
            )
        )

    def row(self, key: bytes) -> Row:
        """Return the row as it is now."""
        row: Row = {}
        own = (self.entries(change) for change in self.log if change.row_key == key)
        for entries in (self.initial.get(key, ()), *own):
            for entry in entries:
                apply(row, entry)
        return row


class SeededRowReader(RowReader):
    """Reads rows of `Cells`. A row has the number of changes that it contains in place of the tiebreaker."""

    def __init__(self, service: Cells, row_range: KeyRange, rng: random.Random) -> None:
        stream = SimpleNamespace(table="t", row_range=row_range)
        super().__init__(None, stream, Selection(), clock=self._now, skew=SKEW)  # type: ignore[arg-type]
        self._service, self._rng = service, rng
        self._offset = rng.randint(-2, 2) * MILLI
        self._contained: dict[bytes, int] = {}

    def _now(self) -> int:
        return self._service.now + self._offset

    def _found(
        self, rows: KeyRange, keys: Sequence[bytes], request: ChunkRequest
    ) -> Iterator[tuple[bytes, tuple[SetCell, ...]]]:
        wanted = sorted(keys) if keys else [key for key in KEYS if rows.holds(key)]
        count = 0
        for key in wanted:
            self._service.advance(self._rng.choice((0, 0, 1)))
            row = self._service.row(key)
            if row and (keys or count < request.size):
                count += 1
                self._contained[key] = len(self._service.log)
                yield key, tuple(SetCell(*cell, value) for cell, value in row.items())

    def _record(self, row_key: bytes, cells: tuple[SetCell, ...], timestamp: int) -> ChangeStreamMutation:
        contained = self._contained[row_key]
        return ChangeStreamMutation(
            row_key, MutationType.READ, "", timestamp, contained, "", timestamp, cells
        )


class SeededWorker:
    """Answers requests when it is told to."""

    def __init__(self, reader: SeededRowReader, rng: random.Random) -> None:
        self.answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._jobs: list[Any] = []
        self._read: list[Chunk] = []
        self._reader, self._rng = reader, rng

    def ask(self, job: Any) -> None:
        self._jobs.append(job)

    def work(self) -> None:
        """Read a chunk, or hand one over that was read before: changes are emitted between the two."""
        if self._read and self._rng.random() < 0.5:
            self.answers.put(self._read.pop())
        elif self._jobs:
            job = self._jobs.pop(self._rng.randrange(len(self._jobs)))
            if isinstance(job, Snapshot):
                self.answers.put(Resolved(job.id, ["t"], {}))
            else:
                self._read.append(self._reader.read(job))

    def park(self, seconds: float) -> None: ...
    def stop(self) -> None: ...

    def resume(self) -> bool:
        return True


class MergedReading(Reading):
    """Reads one history while snapshots are taken; `run` checks the promises of docs/snapshots.md at its end."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.parked: StreamMerge | None = None
        self.continued = self.rows_first = self.pauses = self.reads = 0

    def _new_service(self, seed: int, events: int) -> Cells:
        return Cells(seed, events)

    def _end(self) -> None:
        return None  # rows may be newer than an end

    def _row_range(self) -> KeyRange:
        return EVERYTHING

    def _start(self, stream: Frontier) -> IncrementalFrontier:
        progress, _ = SnapshotProgress().receive(self._request("1"))
        return IncrementalFrontier(stream, progress)

    def _request(self, id_: str) -> ExecuteSnapshot:
        return ExecuteSnapshot(id_, ("t",), chunk_rows=self.rng.choice((1, 2, 5, 20)))

    def _tracker(self, frontier: IncrementalFrontier) -> Any:
        return IncrementalTracker(frontier, BigtableTracker)

    def _stored(self, frontier: Any) -> Any:
        return CODER.decode(CODER.encode(frontier))

    def _stream_of(self, tracker: Any) -> Frontier:
        stream: Frontier = tracker.current_restriction().stream
        return stream

    def _merge(self, frontier: IncrementalFrontier) -> StreamMerge:
        parked, self.parked = self.parked, None
        if parked is not None and self.rng.random() < 0.8 and parked.resume(frontier):
            self.continued += 1
            return parked
        worker = SeededWorker(SeededRowReader(self.service, self.row_range, self.rng), self.rng)
        options = SnapshotOptions()
        return StreamMerge(
            BigtableRecords("t"), worker, options, "", frontier, notifications=False, dead_letters=False
        )

    def _steps(self, tracker: Any) -> Iterator[Any]:
        frontier = tracker.current_restriction()
        if frontier.progress is None:
            yield from super()._steps(tracker)
            return
        merge = self.parked = self._merge(frontier)
        worker: Any = merge._worker
        while (frontier := tracker.current_restriction()).can_progress or frontier.waiting:
            for _ in range(self.rng.choice((0, 1, 3))):
                worker.work()
            if self.rng.random() < 0.05:
                worker.answers.put(Polled("file", [self._signal()], self.steps))
            merge.look(frontier)
            while merge.has_rows:
                yield merge.next_claim()
                merge.row_claimed()
            for changes, step in self._one_stream(tracker):
                if not changes or not merge.notes_changes:
                    yield changes, step
                    continue
                records, merged = merge.note(changes, step)
                self.rows_first += len(records) - len(changes)
                yield records, merged
                merge.changes_claimed(changes)

    def _signal(self) -> Signal:
        kind = self.rng.random()
        if kind < 0.2 and not self.service.over:
            self.pauses += 1
            return PauseSnapshot("p")
        # A second snapshot hides what the first one lost, so it is rare.
        return self._request(str(self.steps)) if kind < 0.3 and not self.service.over else ResumeSnapshot("r")

    def _all_read(self) -> bool:
        snapshots = [part.progress.snapshots for part, _ in self.residuals if part.progress is not None]
        changes = sum(record.type is not MutationType.READ for record in self.committed)
        return self.service.over and changes >= len(self._expected()) and not any(snapshots)

    def _check_all(self) -> None:
        last: dict[bytes, int] = {}
        for record in self.committed:
            if record.type is not MutationType.READ:
                last[record.row_key] = record.tiebreaker
            elif last.get(record.row_key, -1) >= record.tiebreaker:
                raise BrokenPromiseError("a row follows a change that it does not contain")
        if replayed(self.committed) != {key: row for key in KEYS if (row := self.service.row(key))}:
            raise BrokenPromiseError("rows and changes do not converge to the table")
        self.reads = sum(record.type is MutationType.READ for record in self.committed)
        self.committed = [record for record in self.committed if record.type is not MutationType.READ]
        super()._check_all()


def test_a_row_does_not_follow_a_change_at_the_watermark_that_was_written_after_it_was_read() -> None:
    MergedReading(954).run()


def test_rows_and_changes_converge_to_the_table_through_layouts_and_crashes(campaign: Any) -> None:
    counts: Counter[str] = Counter()

    @settings(max_examples=campaign.size(14, 2_000), deadline=None, database=None)
    @seeded(campaign.seed)
    @given(st.integers(0, 2**32))
    def converges(seed: int) -> None:
        reading = MergedReading(seed)
        reading.run()
        counts.update(histories=1, crashes=reading.crashes, rows=reading.reads, pauses=reading.pauses)
        counts.update(rows_before_their_changes=reading.rows_first, continued=reading.continued)

    converges()
    # The histories must reach every case, to show anything.
    assert counts["crashes"] > counts["histories"]
    assert counts["rows"] > 5 * counts["histories"]
    assert counts["continued"] > counts["histories"]
    assert counts["rows_before_their_changes"] > 5
    assert counts["pauses"] > 2
    campaign.record("snapshot-histories-bigtable", **counts)
