"""The merge of chunks with a partitioned stream, when claims are refused and bundles move between workers."""

from __future__ import annotations

import json
import queue
from dataclasses import replace
from typing import Any

from penstock.io.change_streams.incremental.engine import Chunk, ChunkRequest
from penstock.io.change_streams.incremental.frontier import IncrementalFrontier
from penstock.io.change_streams.incremental.merge import StreamMerge
from penstock.io.change_streams.incremental.options import SnapshotOptions
from penstock.io.change_streams.incremental.progress import SnapshotProgress
from penstock.io.change_streams.incremental.signals import ExecuteSnapshot
from penstock.io.spanner.frontier import Frontier
from penstock.io.spanner.incremental.chunks import chunk_rows
from penstock.io.spanner.incremental.merging import SpannerRecords
from penstock.io.spanner.position import Position
from penstock.io.spanner.record import DataChangeRecord, Mod, Mods


def record(timestamp: int, *keys: int, kind: str = "UPDATE") -> DataChangeRecord:
    mods = Mods.of(Mod(json.dumps({"K": str(key)}), "{}", "{}") for key in keys)
    return DataChangeRecord(timestamp, "0", "t", True, "T", (), mods, kind, "NEW_VALUES", 1, 1, "", False)


class Worker:
    """Keeps requests until the test answers them."""

    def __init__(self) -> None:
        self.answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.requests: list[ChunkRequest] = []
        self.ask = self.requests.append

    def answer(self, timestamp: int, *keys: int) -> None:
        rows = chunk_rows(record(timestamp, *keys, kind="READ"))
        self.answers.put(Chunk(self.requests.pop(0), rows, timestamp.__ge__, timestamp + 1, False))

    def park(self, seconds: float) -> None: ...

    def resume(self) -> bool:
        return True


class Bundle:
    """A frontier and what was emitted. It starts at the time 10, while the table T is read."""

    def __init__(self) -> None:
        progress, _ = SnapshotProgress().receive(ExecuteSnapshot("1", ("T",), chunk_rows=2))
        progress, _ = progress.resolved("1", ["T"])
        self.frontier = IncrementalFrontier(Frontier({"a": Position(10)}, {}), progress)
        self.worker: Any = Worker()
        self.merge = StreamMerge(
            SpannerRecords(),
            self.worker,
            SnapshotOptions(),
            "",
            self.frontier,
            notifications=False,
            dead_letters=False,
        )
        self.emitted: list[tuple[str, int, list[str]]] = []
        self.look(10)

    def look(self, watermark: int) -> None:
        self.frontier = replace(self.frontier, stream=Frontier({"a": Position(watermark)}, {}))
        self.merge.look(self.frontier)
        while self.merge.has_rows:
            self._emit(*self.merge.next_claim())
            self.merge.row_claimed()

    def change(self, timestamp: int, key: int, *, refused: bool = False) -> None:
        changed = record(timestamp, key)
        claim = self.merge.note([changed], None)
        if not refused:
            self._emit(*claim)
            self.merge.changes_claimed([changed])

    def _emit(self, records: Any, claim: Any) -> None:
        self.emitted += [
            (each.mod_type, each.commit_timestamp, [m.keys[7] for m in each.mods]) for each in records
        ]
        self.frontier = self.frontier.merged(claim)


def test_a_change_that_was_refused_comes_again_with_the_row_before_it():
    bundle = Bundle()
    bundle.worker.answer(20, 1, 2)
    bundle.look(15)
    bundle.change(30, 1, refused=True)
    bundle.look(25)
    assert bundle.emitted == [], "the cursor would pass a row that is not emitted"
    bundle.change(30, 1)
    bundle.look(31)
    assert bundle.emitted == [("READ", 20, ["1"]), ("UPDATE", 30, ["1"]), ("READ", 20, ["2"])]


def test_a_change_that_was_refused_counts_for_a_chunk_that_was_requested_meanwhile():
    bundle = Bundle()
    bundle.worker.answer(12, 1, 2)
    bundle.change(30, 3, refused=True)
    bundle.look(13)
    bundle.worker.answer(20, 3, 4)
    bundle.look(14)
    bundle.change(30, 3)
    assert bundle.emitted[-2:] == [("READ", 20, ["3"]), ("UPDATE", 30, ["3"])]


def test_a_reader_does_not_continue_after_changes_that_another_reader_claimed():
    first = Bundle()
    first.change(11, 1)
    assert first.merge.resume(first.frontier)
    other = Bundle()
    other.frontier = first.frontier
    other.change(12, 1)
    assert not first.merge.resume(other.frontier)
    assert other.merge.resume(other.frontier)
