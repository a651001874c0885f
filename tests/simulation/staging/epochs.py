"""The DoFns of staging in a small model of epochs, for any store, crashed at every request to the store.

The model guarantees exactly what the runner's protocol guarantees. State, source position and Publications are
in a record that is replaced as a whole. A crash discards the try. The publish step runs at the start of the
next epoch, as often as that epoch is tried. Around it there are a consumer that takes files away, clean-ups and
publish steps that were paused and resume much later, and tasks of failed tries that still stage files. A crash
kills the process: after it no `except` or `finally` of the code under test can touch the store.

Each run is a function of its seed and of the request that crashes; a failure shows both.
"""

from __future__ import annotations

import copy
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, count
from typing import Any, Protocol

from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import Timestamp

from penstock.attempt import Attempt, running_attempt
from penstock.io.files.json_lines import JsonLines
from penstock.io.files.names import bucket_name
from penstock.io.staging import file_stager
from penstock.io.staging.blocks import RecordBlock
from penstock.io.staging.coders import RecordBlockCoder, StagedFileCoder
from penstock.io.staging.collect import CollectRecordsFn, WholeFiles
from penstock.io.staging.file_stager import FileStager
from penstock.io.staging.publish import PublishFilesFn
from penstock.io.staging.roll import RollFilesFn
from penstock.io.staging.rolling import RollingPolicy
from penstock.io.staging.staged_file import StagedFile
from penstock.io.staging.store import FileStore
from penstock.pace import Pace, reading_at
from penstock.publish import current_attempt

JOB, SINK = "job", "sink"
BUCKETS = [bucket_name("t", hour, shard, 2) for hour in (0, 1) for shard in (0, 1)]


class Crash(BaseException):
    """The process was killed."""


class CrashPoint:
    """Counts the requests of the code under test and kills the process at the chosen one.

    `before` tells whether the process dies before the request takes effect or right after it. A dead process
    makes no requests.
    """

    def __init__(self) -> None:
        self.start(None, True)

    def start(self, crash_at: int | None, before: bool) -> None:
        self.count, self.crash_at, self.before, self.dead = 0, crash_at, before, False

    def restart(self) -> None:
        self.dead, self.crash_at = False, None

    def request(self, effect: Callable[[], Any]) -> Any:
        if self.dead:
            raise Crash
        here = self.count == self.crash_at
        self.count += 1
        if here and self.before:
            self._die()
        result = effect()
        if here:
            self._die()
        return result

    def _die(self) -> None:
        self.dead = True
        raise Crash


class Output(Protocol):
    """The output as the consumer sees it, and the staging folder as the check sees it. Never crashes."""

    def published(self) -> dict[str, bytes]:
        """Return all published files with their content."""

    def take(self, name: str) -> None:
        """Remove a published file."""

    def staged(self) -> list[str]:
        """Return the names of all staged files."""


@dataclass
class World:
    """One store, the view of it from outside, and the point where a process dies.

    `take_at_once`: consumers may take a file away as soon as they see it. Otherwise they wait until the record
    that names the file is replaced.
    """

    store: FileStore
    output: Output
    crash: CrashPoint
    take_at_once: bool = True


@dataclass
class Cell:
    """A bag or a value of keyed state."""

    values: list[Any] = field(default_factory=list)

    def read(self) -> Any:
        return list(self.values)

    def add(self, value: Any) -> None:
        self.values.append(value)

    def clear(self) -> None:
        self.values = []


class Value(Cell):
    def read(self) -> Any:
        return self.values[-1] if self.values else None

    def write(self, value: Any) -> None:
        self.values = [value]


@dataclass
class Timer:
    at: Timestamp | None = None

    def set(self, at: Timestamp) -> None:
        self.at = at

    def clear(self) -> None:
        self.at = None


@dataclass
class BucketState:
    """State and timers of one bucket, in the order of the callbacks' parameters."""

    records: Cell = field(default_factory=Cell)
    open_file: Value = field(default_factory=Value)
    roll: Timer = field(default_factory=Timer)
    full: Timer = field(default_factory=Timer)
    passed: Timer = field(default_factory=Timer)
    end: Timer = field(default_factory=Timer)

    def parameters(self) -> tuple[Any, ...]:
        return self.records, self.open_file, *self.timers()

    def timers(self) -> tuple[Timer, ...]:
        return self.roll, self.full, self.passed, self.end

    def empty(self) -> bool:
        stored = self.records.values or self.open_file.values
        return not stored and all(timer.at is None for timer in self.timers())


@dataclass
class Record:
    """What one commit replaces as a whole."""

    number: int = 0
    generation: int = 0
    position: int = 0
    buckets: dict[str, BucketState] = field(default_factory=lambda: defaultdict(BucketState))
    publications: list[bytes] = field(default_factory=list)


class Pipeline:
    """One driver over one record; the record survives it."""

    def __init__(self, store: FileStore, source: list[tuple[str, bytes]], policy: RollingPolicy) -> None:
        self.store = store
        self.source = source
        self.policy = policy
        self.record = Record()
        self.now = 1_000.0
        self.tries = 0

    def take_over(self) -> None:
        number = self.record.number + 1
        self.record = Record(
            number, number, self.record.position, self.record.buckets, list(self.record.publications)
        )

    def publications(self) -> list[StagedFile]:
        return [StagedFileCoder().decode(each) for each in self.record.publications]

    def finals(self) -> set[str]:
        """Return the final names of the files that the record names."""
        return {publication.final for publication in self.publications()}

    def epoch(self, lines: int, drain: bool = False) -> None:
        """Publish the last record, process this number of lines, and commit."""
        self.tries += 1
        attempt = Attempt(JOB, self.record.generation, self.record.number + 1, f"n{self.tries}")
        with running_attempt(attempt):
            list(self.publish(self.publications()))
            buckets = copy.deepcopy(self.record.buckets)
            taken = self.source[self.record.position : self.record.position + lines]
            publications = list(self.roll(buckets, taken, drain))
        self.record = Record(
            attempt.epoch,
            attempt.generation,
            self.record.position + len(taken),
            buckets,
            [StagedFileCoder().encode(each) for each in publications],
        )

    def publish(self, publications: Iterable[StagedFile]) -> Iterator[None]:
        """Run the post-commit step, one publication for each `next`, so that a test can pause it."""
        publish = PublishFilesFn(self.store, SINK)
        publish.start_bundle()
        for publication in publications:
            list(publish.process(publication, Timestamp(0)))
            yield
        list(publish.finish_bundle())

    def roll(
        self, buckets: dict[str, BucketState], taken: list[tuple[str, bytes]], drain: bool
    ) -> Iterator[StagedFile]:
        file_stager.file_numbers = count()  # a task may run in a new process
        fn = RollFilesFn(self.store, SINK, self.policy, JsonLines(), clock=lambda: self.now)
        fn.start_bundle()
        for bucket, block in self.blocks(taken):
            yield from values(fn.process((bucket, block), *buckets[bucket].parameters()))
        for bucket, state in buckets.items():
            if state.roll.at is not None and state.roll.at <= Timestamp(self.now):
                yield from values(fn.on_roll(bucket, *state.parameters()))
            if drain and state.end.at is not None:
                assert state.end.at == GlobalWindow().max_timestamp()
                yield from values(fn.on_end(bucket, *state.parameters()))
        fn.finish_bundle()

    def blocks(self, taken: list[tuple[str, bytes]]) -> Iterator[tuple[str, RecordBlock]]:
        """Return the blocks of the collecting step: one for each line, or whole files while the reader is behind."""
        if self.record.number % 2:
            return ((bucket, RecordBlock.of([(1_000_000, line)])) for bucket, line in taken)
        whole_files = WholeFiles(FileStager(self.store, SINK, JsonLines()), self.policy.at_bytes)
        fn = CollectRecordsFn(
            lambda element: element[1], lambda element, _: element[0], whole_files=whole_files
        )
        outputs: list[Any] = []
        # Another task than the one that rolls, so another attempt.
        with running_attempt(replace(current_attempt(), nonce=f"c{self.tries}")):
            fn.start_bundle()
            with reading_at(Pace(0.0, catches_up=True)):
                for element in taken:
                    outputs += fn.process(element, Timestamp(1)) or ()
            outputs += fn.finish_bundle()
        coder = RecordBlockCoder()
        return ((bucket, coder.decode(coder.encode(block))) for bucket, block in values(outputs))

    def clean_up(self) -> Callable[[], None]:
        """Return a clean-up after this record, to be run at any later time."""
        publish, record, named = PublishFilesFn(self.store, SINK), self.record, self.publications()
        return lambda: publish.clean_up(JOB, record.generation, record.number, named)


def values(outputs: Iterable[Any]) -> Iterator[Any]:
    return (output.value for output in outputs)


class Consumer:
    """Looks at the output from time to time, remembers every file that it saw, and takes some away."""

    def __init__(self, output: Output, rng: random.Random) -> None:
        self.output = output
        self.rng = rng
        self.seen: dict[str, bytes] = {}
        self.taken: set[str] = set()

    def look(self, leave: Container[str]) -> None:
        """Look at all files, and take some of those away that are not in `leave`."""
        for name, content in sorted(self.output.published().items()):
            assert name not in self.taken, f"{name} appeared again"
            assert self.seen.setdefault(name, content) == content, f"{name} changed"
            if self.rng.random() < 0.5 and name not in leave:
                self.output.take(name)
                self.taken.add(name)

    def look_for_losses(self) -> None:
        existing = self.output.published().keys()
        assert existing == set(self.seen) - self.taken, "a published file disappeared"

    def lines(self) -> dict[str, list[bytes]]:
        """Return all lines of each bucket, in the order of names, then lines."""
        buckets: dict[str, list[bytes]] = defaultdict(list)
        for name in sorted(self.seen):
            buckets[name.rsplit("_", 3)[0].removesuffix(f"_{JOB}")].extend(self.seen[name].splitlines())
        return buckets


def source_of(rng: random.Random, count: int) -> list[tuple[str, bytes]]:
    return [(rng.choice(BUCKETS), b"%d\n" % number) for number in range(count)]


def play(world: World, seed: int, crash_at: int | None, before: bool, twists: bool = False) -> int:
    """Run one history to its end and check it; return the number of requests to the store."""
    rng = random.Random(seed)
    lines = source_of(rng, 16)
    policy = RollingPolicy(after_us=rng.choice([0, 2_000_000]), at_bytes=rng.choice([6, 1_000]))
    pipeline, consumer = Pipeline(world.store, lines, policy), Consumer(world.output, random.Random(seed))
    world.crash.start(crash_at, before)
    pipeline.take_over()
    late: list[Callable[[], Any]] = []
    drained = False
    while not drained or pipeline.record.publications:
        pipeline.now += 1
        at_end = pipeline.record.position == len(lines)
        try:
            if twists:
                abort(pipeline, rng)
                late += paused(pipeline, rng)
                play_late(late, rng)
            pipeline.epoch(rng.randint(0, 6), drain=at_end)
            drained = drained or at_end
            if rng.random() < 0.5:
                pipeline.clean_up()()
        except Crash:
            world.crash.restart()
            pipeline.take_over()
        consumer.look(leave=() if world.take_at_once else pipeline.finals())
    requests = world.crash.count
    world.crash.restart()
    for each in late:
        each()
    pipeline.clean_up()()
    consumer.look(leave=())
    check(pipeline, consumer)
    return requests


def abort(pipeline: Pipeline, rng: random.Random) -> None:
    """Sometimes discard a whole epoch before its commit, in a driver that continues."""
    if rng.random() < 0.2:
        before = pipeline.record
        pipeline.epoch(rng.randint(0, 6))
        pipeline.record = before


def paused(pipeline: Pipeline, rng: random.Random) -> list[Callable[[], Any]]:
    """Pause a process here, and return how it resumes at any later time: in a publish step, a clean-up, or a task."""
    chance = rng.random()
    if chance < 0.3:
        rest = pipeline.publish(pipeline.publications())
        next(rest, None)
        return [lambda: list(rest)]
    if chance < 0.5 and pipeline.record.number > pipeline.record.generation:
        return [pipeline.clean_up()]
    if chance < 0.7:
        return [zombie(pipeline)]
    return []


def zombie(pipeline: Pipeline) -> Callable[[], Any]:
    """A task of a failed try: it stages its files whenever it resumes, and no record names them."""
    pipeline.tries += 1
    attempt = Attempt(JOB, pipeline.record.generation, pipeline.record.number + 1, f"z{pipeline.tries}")
    buckets = copy.deepcopy(pipeline.record.buckets)
    taken = pipeline.source[pipeline.record.position : pipeline.record.position + 9]

    def stage() -> None:
        with running_attempt(attempt):
            list(pipeline.roll(buckets, taken, drain=True))

    return stage


def play_late(late: list[Callable[[], Any]], rng: random.Random) -> None:
    while late and rng.random() < 0.4:
        late.pop(rng.randrange(len(late)))()


def check(pipeline: Pipeline, consumer: Consumer) -> None:
    expected: dict[str, list[bytes]] = defaultdict(list)
    for bucket, line in pipeline.source:
        expected[bucket].append(line.rstrip())
    found = consumer.lines()
    doubled = [line for line, times in Counter(chain.from_iterable(found.values())).items() if times > 1]
    assert not doubled, "published twice"
    assert found == expected
    consumer.look_for_losses()
    assert all(state.empty() for state in pipeline.record.buckets.values()), "state is left"
    assert not consumer.output.staged(), "staged files are left"
