"""The DoFns of a sink that sends rows, in a small model of epochs, crashed at every request to store and target.

The model of epochs is that of `tests/simulation/staging/epochs.py`: what a record holds is replaced as a whole, and a
crash discards the try. Around it there are drivers that were paused in the middle of a send and resume much later.
"""

from __future__ import annotations

import contextlib
import copy
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from penstock.attempt import Attempt, DriverToken, offering_staging, running_attempt
from penstock.event import NO_COLUMNS, ChangeEvent, Op, Source, Version
from penstock.event.coder import encode_event
from penstock.event.sharding import shard_of
from penstock.io.staging import file_stager
from penstock.io.staging.batch import DeliveredBatch, EventBlocks, StagedBatch
from penstock.io.staging.blocks import RecordBlock
from penstock.io.staging.coders import RecordBlockCoder
from penstock.io.staging.delivery import (
    Delivery,
    EventBatch,
    LedgerConflictError,
    LedgerEntry,
    Refusal,
    RefusalError,
    Sent,
    TargetUnavailableError,
    is_delivered,
)
from penstock.io.staging.delivery_coders import StagedBatchCoder
from penstock.io.staging.errors import OutputError
from penstock.io.staging.names import staging_folder
from penstock.io.staging.refused import RefusedEvent
from penstock.io.staging.roll_batches import RollBatchesFn, bucket_of
from penstock.io.staging.rolling import RollingPolicy
from penstock.io.staging.send import SendBatchesFn
from tests.simulation.staging.epochs import BucketState, Crash, CrashPoint

JOB, SINK, SHARDS, KEYS = "job", "sink", 2, 5
_tokens = count()


def event_of(number: int, key: int) -> ChangeEvent:
    row = {"k": key}
    return ChangeEvent(
        Source("test", table="t"),
        Op.UPDATE,
        0,
        row,
        None,
        {"n": number},
        Version(number, str(number)),
        NO_COLUMNS,
    )


@dataclass
class Database:
    """A target with transactions: rows in the order of their commits, and a ledger."""

    rows: list[tuple[int, int]] = field(default_factory=list)
    ledger: dict[str, tuple[LedgerEntry, Sent]] = field(default_factory=dict)
    refuses: Callable[[int], bool] = lambda number: False


@dataclass
class DatabaseTarget:
    """Opens senders; each request to the database may kill the process, or fail from time to time."""

    database: Database
    crash: CrashPoint
    down: Callable[[], bool] = lambda: False
    name: str = "a database"

    def check(self) -> None:
        pass

    def open(self, *, skip_refused: bool) -> DatabaseSender:
        self.request(lambda: None)
        return DatabaseSender(self, skip_refused)

    def request(self, effect: Callable[[], Any]) -> Any:
        if self.down():
            raise TargetUnavailableError("a lost connection")
        answer = self.crash.request(effect)
        if self.down():  # the answer is lost, after the effect
            raise TargetUnavailableError("a lost answer")
        return answer


@dataclass
class DatabaseSender:
    target: DatabaseTarget
    skip_refused: bool

    def send(self, delivery: Delivery, events: EventBatch) -> Sent:
        database = self.target.database
        assert len(events) == len(list(events)), "the number of events is wrong"
        pairs = [(event.key["k"], event.after["n"]) for event in events]
        refused = tuple(
            Refusal(index, "refused") for index, (_, number) in enumerate(pairs) if database.refuses(number)
        )

        def transaction() -> Sent:
            entry, before = database.ledger.get(delivery.writer, (None, Sent()))
            if is_delivered(entry, delivery):
                return before if entry == delivery.position else Sent()
            if refused and not self.skip_refused:
                raise RefusalError(refused[0])
            left_out = {refusal.index for refusal in refused}
            database.rows += [pair for index, pair in enumerate(pairs) if index not in left_out]
            database.ledger[delivery.writer] = (delivery.position, Sent(refused))
            return Sent(refused)

        return self.target.request(transaction)

    def close(self) -> None:
        pass


@dataclass
class Record:
    number: int = 0
    generation: int = 0
    position: int = 0
    drivers: tuple[DriverToken, ...] = ()
    buckets: dict[str, BucketState] = field(default_factory=lambda: defaultdict(BucketState))
    batches: list[bytes] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    """Numbers of the events that reached the error output in committed epochs."""


class Pipeline:
    """One driver over one record; the record survives it."""

    def __init__(
        self,
        staging: str,
        target: DatabaseTarget,
        source: list[ChangeEvent],
        policy: RollingPolicy,
        inline_bytes: int,
    ) -> None:
        self.staging, self.target, self.source, self.policy = staging, target, source, policy
        self.inline_bytes = inline_bytes
        self.record = Record()
        self.now, self.tries = 1_000.0, 0

    def take_over(self) -> None:
        number = self.record.number + 1
        self.record = copy.deepcopy(self.record)
        self.record.number = self.record.generation = number
        self.record.drivers = (*self.record.drivers, DriverToken(number, f"{next(_tokens):015x}"))

    def batches(self) -> list[StagedBatch]:
        return [StagedBatchCoder().decode(each) for each in self.record.batches]

    def epoch(self, events: int, drain: bool = False) -> None:
        """Send what the last record names, process this number of events, and commit."""
        self.tries += 1
        before = self.record
        attempt = Attempt(JOB, before.generation, before.number + 1, f"n{self.tries}", before.drivers)
        with running_attempt(attempt), offering_staging(self.staging):
            refused = list(before.refused)
            for output in self.send(self.batches()):
                refused += output
            buckets = copy.deepcopy(before.buckets)
            taken = self.source[before.position : before.position + events]
            batches = list(self.roll(buckets, taken, drain))
        self.record = Record(
            attempt.epoch,
            attempt.generation,
            before.position + len(taken),
            before.drivers,
            buckets,
            [StagedBatchCoder().encode(each) for each in batches],
            refused,
        )

    def send(self, batches: list[StagedBatch]) -> Iterator[list[int]]:
        """Run the post-commit step, one batch for each `next`, so that a test can pause it."""
        fn = self.send_fn()
        for batch in batches:
            refused = []
            for output in fn.process(batch):
                if isinstance(output, TaggedOutput):
                    assert isinstance(output.value, RefusedEvent)
                    refused.append(output.value.event.after["n"])
                else:
                    assert output == DeliveredBatch(batch.delivery, batch.records, len(refused))
            yield refused
        fn.teardown()

    def send_fn(self) -> SendBatchesFn:
        clock = count(step=10.0)
        return SendBatchesFn(
            self.target, SINK, skip_refused=True, clock=lambda: next(clock), pause=lambda seconds: None
        )

    def roll(
        self, buckets: dict[str, BucketState], taken: list[ChangeEvent], drain: bool
    ) -> Iterator[StagedBatch]:
        file_stager.file_numbers = count()  # a task may run in a new process
        fn = RollBatchesFn(
            None,
            SINK,
            self.policy,
            EventBlocks(RecordBlockCoder().encode),
            inline_bytes=self.inline_bytes,
            clock=lambda: self.now,
        )
        fn.start_bundle()
        for event in taken:
            block = RecordBlock.of([(1_000_000, encode_event(event))])
            bucket = bucket_of(shard_of(event, SHARDS), SHARDS)
            yield from _values(fn.process((bucket, block), *buckets[bucket].parameters()))
        for bucket, state in buckets.items():
            for timer, callback in ((state.full, fn.on_full), (state.roll, fn.on_roll)):
                if timer.at is not None and timer.at <= Timestamp(self.now):
                    yield from _values(callback(bucket, *state.parameters()))
            if drain and state.end.at is not None:
                yield from _values(fn.on_end(bucket, *state.parameters()))
        fn.finish_bundle()

    def clean_up(self) -> Callable[[], None]:
        """Return a clean-up after this record, to be run at any later time."""
        record, named = self.record, self.batches()

        def run() -> None:
            with offering_staging(self.staging):
                self.send_fn().clean_up(JOB, record.generation, record.number, named)

        return run


def _values(outputs: Any) -> Iterator[StagedBatch]:
    return (output.value if isinstance(output, TimestampedValue) else output for output in outputs)


def play(staging: str, seed: int, crash_at: int | None, before: bool, *, twists: bool = False) -> int:
    """Run one history to its end and check it; return the number of requests to the target."""
    rng = random.Random(seed)
    events = [event_of(number, rng.randrange(KEYS)) for number in range(18)]
    crash, database = CrashPoint(), Database(refuses=lambda number: number % 7 == 3)
    flaky = random.Random(seed)
    target = DatabaseTarget(database, crash, down=lambda: twists and flaky.random() < 0.1)
    policy = RollingPolicy(rng.choice([0, 2_000_000]), rng.choice([200, 100_000]))
    pipeline = Pipeline(staging, target, events, policy, rng.choice([0, 1 << 15]))
    crash.start(crash_at, before)
    pipeline.take_over()
    late: list[Callable[[], Any]] = []
    drained = False
    while not drained or pipeline.record.batches:
        pipeline.now += 1
        at_end = pipeline.record.position == len(events)
        try:
            if twists:
                late += _paused(pipeline, rng)
                while late and rng.random() < 0.4:
                    _resume(late.pop(rng.randrange(len(late))))
            pipeline.epoch(rng.randint(0, 6), drain=at_end)
            drained = drained or at_end
            if rng.random() < 0.5:
                pipeline.clean_up()()
        except Crash:
            crash.restart()
            pipeline.take_over()
    requests = crash.count
    crash.restart()
    for each in late:
        _resume(each)
    _check(pipeline, database)
    pipeline.clean_up()()
    left = [path.name for path in Path(staging).glob(f"{staging_folder(JOB, SINK)}/g*")]
    assert not left, "staged files are left"
    return requests


def _paused(pipeline: Pipeline, rng: random.Random) -> list[Callable[[], Any]]:
    """Pause a driver in its post-commit step or its clean-up, and return how it resumes at any later time."""
    if rng.random() < 0.3:
        rest = pipeline.send(pipeline.batches())
        if rng.random() < 0.5:
            next(rest, None)
        return [lambda: list(rest)]
    if rng.random() < 0.3 and pipeline.record.number > pipeline.record.generation:
        return [pipeline.clean_up()]
    return []


def _resume(work: Callable[[], Any]) -> None:
    # Its batches are delivered and deleted. The driver that was paused fails, and learns that it is superseded.
    with contextlib.suppress(OutputError, LedgerConflictError):
        work()


def play_copies(staging: str, seed: int) -> int:
    """Run a checkpoint and a copy of it against one target, one after the other or in turn.

    Checks that each shard of the target has the beginning of the source, without gaps. Returns how many of the two
    were refused.
    """
    rng = random.Random(seed)
    events = [event_of(number, rng.randrange(KEYS)) for number in range(40)]
    database = Database()
    target = DatabaseTarget(database, CrashPoint())
    pipelines = [Pipeline(staging, target, events, RollingPolicy(0, 100_000), 1 << 15) for _ in range(2)]
    original, copied = pipelines
    original.take_over()
    for _ in range(rng.randint(0, 3)):
        _step(original, rng)
    copied.record = copy.deepcopy(original.record)
    copied.take_over()
    chance = rng.choice([0.1, 0.5, 0.9])
    refused = 0
    for step in range(60):
        if not pipelines:
            break
        one = rng.choice(pipelines) if step % 10 else pipelines[int(rng.random() < chance) % len(pipelines)]
        try:
            _step(one, rng)
        except LedgerConflictError:
            pipelines.remove(one)
            refused += 1
    for key in range(KEYS):
        expected = [event.after["n"] for event in events if event.key["k"] == key]
        found = [number for each, number in database.rows if each == key]
        assert found == expected[: len(found)], f"rows of key {key} are lost or doubled"
    return refused


def _step(pipeline: Pipeline, rng: random.Random) -> None:
    if rng.random() < 0.2:
        pipeline.take_over()
    pipeline.epoch(rng.randint(0, 4))


def _check(pipeline: Pipeline, database: Database) -> None:
    expected: dict[int, list[int]] = defaultdict(list)
    for event in pipeline.source:
        if not database.refuses(event.after["n"]):
            expected[event.key["k"]].append(event.after["n"])
    found: dict[int, list[int]] = defaultdict(list)
    for key, number in database.rows:
        found[key].append(number)
    assert found == expected, "the target is not the source"
    refused = [event.after["n"] for event in pipeline.source if database.refuses(event.after["n"])]
    assert sorted(pipeline.record.refused) == refused, "the error output is not what was refused"
    assert all(state.empty() for state in pipeline.record.buckets.values()), "state is left"
