"""A table with a changefeed that changes at random, and a reader in parts that lag, crash and are dealt again.

The table, its shards and the topic are those of the test service. The rules of the reader are its own:
`PartitionSteps`, `Frontier` and the tracker. There are no threads and no clock: a history is replayed from its seed.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

from penstock.io.ydb.frontier import Advanced, Finished, Frontier
from penstock.io.ydb.preflight import first_frontier
from penstock.io.ydb.record import ChangefeedRecord
from penstock.io.ydb.source import ChangeStream
from penstock.io.ydb.steps import Message, PartitionSteps, Rules
from penstock.io.ydb.tracker import FrontierCoder, YdbTracker
from penstock_emulators.ydb.database import Database
from penstock_emulators.ydb.topic import TopicError
from tests.unit.ydb.memory import TABLE, described

MILLISECOND = 1_000_000
KEYS = 24


class Reading:
    """One history. `crash_at`: the number of the step at which the reader crashes; None: at random."""

    def __init__(self, seed: int, events: int = 60, crash_at: int | None = None) -> None:
        self.draw = random.Random(seed)
        self.now = 1_790_000_000_000 * MILLISECOND
        self.database = Database("/local", lambda: self.now)
        self.database.create_table("orders", {"id": "Utf8", "note": "Utf8"}, ["id"], shards=3)
        self.barriers = self.draw.random() < 0.7
        self._fill(self.draw.randrange(8))
        self.database.add_changefeed(
            "orders",
            "feed",
            mode="NEW_AND_OLD_IMAGES",
            virtual_timestamps=True,
            barrier_seconds=0.01 if self.barriers else 0,
            initial_scan=True,
            partitions=self.draw.choice((1, 2, 3)),
        )
        self.feed = self.database.feed("orders", "feed")
        self.topic = self.feed.topic
        self.expected: Counter[tuple[Any, ...]] = Counter(
            (key, self.feed.snapshot, "READ") for key in self.feed.to_scan
        )
        self.commits: dict[Any, list[Any]] = {key: [self.feed.snapshot] for key in self.feed.to_scan}
        self._events, self._crash_at = events, crash_at
        self.steps = self.crashes = self.merges = self.splits = 0
        self.committed: list[ChangefeedRecord] = []
        self.delivery = 30 * MILLISECOND
        options = {"barrier_seconds": 0.01 if self.barriers else 0.0, "initial_scan": True}
        found = described(self.topic, **options)
        stream = ChangeStream("/local", "orders", "feed", 0, None)
        self.rules = Rules.of(stream, found, self.delivery / 1e9, lambda schema: TABLE)
        self.parts = [first_frontier(stream, found)]
        self.watermark = 0

    def run(self) -> None:
        """Let everything happen, then let the reader catch up, and check what it has committed."""
        for _ in range(self._events):
            self._happen()
            self._epoch()
        self._settle()
        self._check()

    def _fill(self, count: int) -> None:
        for number in range(count):
            self.database.commit([("upsert", "orders", [f"k{number}"], {"note": "old"})])

    def _happen(self) -> None:
        self.now += self.draw.randrange(1, 12) * MILLISECOND
        match self.draw.randrange(8):
            case 0 | 1 | 2 | 3:
                self._transaction()
            case 4:
                self.database.hold("orders", self.draw.randrange(3), self.draw.random() < 0.5)
            case 5:
                self.database.scan(2)
            case 6:
                self._repartition()
        self.database.emit_barriers()

    def _transaction(self) -> None:
        operations = []
        for key in self.draw.sample(range(KEYS), self.draw.randrange(1, 4)):
            kind = self.draw.choice(("upsert", "upsert", "replace", "erase"))
            values = {} if kind == "erase" else {"note": str(self.draw.random())}
            operations.append((kind, "orders", [f"k{key}"], values))
        at = self.database.commit(operations)
        for kind, _, (key,), _ in operations:
            self.expected[(key,), at, "erase" if kind == "erase" else "write"] += 1
            self.commits.setdefault((key,), []).append(at)

    def _repartition(self) -> None:
        active = sorted(self.topic.active, key=lambda each: each.low)
        if len(active) > 1 and self.draw.random() < 0.5:
            left = self.draw.randrange(len(active) - 1)
            self.topic.merge(active[left].number, active[left + 1].number)
            self.merges += 1
        elif len(active) < 6:
            try:
                self.topic.split(self.draw.choice(active).number)
            except TopicError:  # pragma: no cover - a partition of one hash
                return
            self.splits += 1

    def _epoch(self) -> None:
        """Join, deal, and read each part for a while; commit what was read, unless the reader crashes."""
        whole = Frontier.join(self.parts)
        dealt = whole.deal(self.draw.randrange(1, 4))
        residuals, outputs = [], []
        crashed = False
        for part in dealt:
            coder = FrontierCoder()
            tracker = YdbTracker(coder.decode(coder.encode(part)))
            outputs += self._read(tracker, self.draw.choice((0, 3, 10)))
            residual = tracker.try_split(0)
            residuals.append(part if residual is None else residual[1])
            if residual is None and tracker.current_restriction().done:
                residuals.pop()
            crashed = (
                crashed
                or self._crash_at == self.steps
                or (self._crash_at is None and self.draw.random() < 0.1)
            )
        if crashed:
            self.crashes += 1
            return
        for record in outputs:
            assert record.commit_timestamp >= self.watermark, "late data"
        self.committed += outputs
        self.parts = residuals
        self._note_watermark()

    def _note_watermark(self) -> None:
        marks = [part.watermark for part in self.parts if part.watermark is not None]
        if marks:
            assert min(marks) >= self.watermark, "the watermark went back"
            self.watermark = min(marks)

    def _read(self, tracker: YdbTracker, most: int) -> list[ChangefeedRecord]:
        """Claim up to `most` steps of each open partition. A lagging partition is not read at all."""
        outputs: list[ChangefeedRecord] = []
        tracker.try_claim(_poll())
        for number in list(tracker.current_restriction().open):
            if self.draw.random() < 0.3:  # it lags
                continue
            outputs += self._read_partition(tracker, number, most)
        return outputs

    def _read_partition(self, tracker: YdbTracker, number: int, most: int) -> list[ChangefeedRecord]:
        outputs: list[ChangefeedRecord] = []
        partition = self.topic.partitions[number]
        steps = PartitionSteps(self.rules, number, tracker.current_restriction().open[number])
        for _ in range(most):
            self.steps += 1
            offset = steps.position.offset
            if offset < partition.end:
                found = partition.message(offset)
                message = Message(offset, found.data, b"", found.created_at, found.written_at)
                before = steps.position.watermark
                step = steps.message(message, len(found.data))
                assert tracker.try_claim(Advanced(number, step.position))
                if step.record is not None:
                    assert isinstance(step.record, ChangefeedRecord)
                    if self.barriers:
                        assert step.record.step * MILLISECOND >= before, "a change before its barrier"
                    outputs.append(step.record)
                continue
            if not partition.active:
                assert tracker.try_claim(Finished(number, partition.children, self.topic.adjacent(number)))
                break
            idle = steps.idle(partition.end, self.now)
            if idle is not None:
                assert tracker.try_claim(Advanced(number, idle.position))
            break
        return outputs

    def _settle(self) -> None:
        """Deliver everything, and read until the watermark has passed the last change."""
        for shard in range(3):
            self.database.hold("orders", shard, False)
        self.database.scan(KEYS)
        last = self.now
        self._crash_at = -1
        for _ in range(400):
            self.now += 20 * MILLISECOND
            self.database.emit_barriers()
            self._epoch()
            if self.watermark > last and len(self.committed) >= self.expected.total():
                return
        raise AssertionError("the reader does not catch up")

    def _check(self) -> None:
        read: Counter[tuple[Any, ...]] = Counter()
        order: dict[Any, list[Any]] = {}
        for record in self.committed:
            found = json.loads(record.data)
            key, at = tuple(found["key"]), (record.step, record.tx_id)
            kind = "erase" if "erase" in found else "write"
            if at == self.feed.snapshot:
                assert record.is_initial_scan, "a row of the scan is not marked"
                kind = "READ"
            read[key, at, kind] += 1
            order.setdefault(key, []).append(at)
        assert read == self.expected, "a change is missing or came twice"
        for key, found_order in order.items():
            assert found_order == self.commits[key], f"the changes of {key} are out of order"


def _poll() -> Any:
    from penstock.io.change_streams.tracker import Poll

    return Poll()
