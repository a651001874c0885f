"""CPU time of comparing Spanner's changes with the rows of an incremental snapshot, per mod.

    python benchmarks/snapshot_merge.py

While a snapshot is read, one worker reads all partitions of the stream. This cost is added there to the cost of reading
(`benchmarks/spanner_reader.py`). Records of 20 mods of one table whose rows are being read.
"""

from __future__ import annotations

import json
import queue
import time
from types import SimpleNamespace
from typing import Any

from penstock.io.change_streams.incremental.frontier import IncrementalFrontier
from penstock.io.change_streams.incremental.merge import StreamMerge
from penstock.io.change_streams.incremental.options import SnapshotOptions
from penstock.io.change_streams.incremental.progress import SnapshotProgress
from penstock.io.change_streams.incremental.signals import ExecuteSnapshot
from penstock.io.spanner.frontier import Frontier
from penstock.io.spanner.incremental.merging import SpannerRecords
from penstock.io.spanner.record import DataChangeRecord, Mod, Mods

RECORDS, MODS, ROUNDS = 4_000, 20, 3


def record(number: int) -> DataChangeRecord:
    keys = range(MODS * number, MODS * (number + 1))
    mods = Mods.of([Mod(json.dumps({"Id": str(key)}), json.dumps({"V": "x" * 100}), "{}") for key in keys])
    return DataChangeRecord(
        number, f"{number:08d}", "t", True, "T", (), mods, "UPDATE", "OLD_AND_NEW_VALUES", 1, 1, "", False
    )


def merge_while_rows_are_read() -> StreamMerge:
    progress, _ = SnapshotProgress().receive(ExecuteSnapshot("1", ("T",)))
    progress, _ = progress.resolved("1", ["T"])
    worker: Any = SimpleNamespace(answers=queue.SimpleQueue(), ask=lambda job: None)
    frontier = IncrementalFrontier(Frontier.starting_at(0, 1 << 60), progress)
    merge = StreamMerge(
        SpannerRecords(), worker, SnapshotOptions(), "", frontier, notifications=False, dead_letters=False
    )
    merge.look(frontier)
    return merge


def main() -> None:
    records = [record(number) for number in range(RECORDS)]
    for each in records:
        list(each.mods)  # parsed by the reader in any case
    merge = merge_while_rows_are_read()
    seconds = []
    for _ in range(ROUNDS):
        begun = time.process_time()
        for each in records:
            merge.note([each], None)
            merge.changes_claimed([each])
        seconds.append(time.process_time() - begun)
    print(f"{1e6 * min(seconds) / (RECORDS * MODS):.1f} µs of CPU time per mod, best of {ROUNDS}")


if __name__ == "__main__":
    main()
