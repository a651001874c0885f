"""The sink's own DoFns in a small model of epochs, on a real folder, crashed at every file-system call.

The model does what the runner's protocol promises and no more: state, source position and Publications live
in a record that is replaced as a whole; a crash throws the try away; the publish step runs at the head of the
next epoch, again and again. Around it: a consumer who takes files away, clean-ups and publish steps that were
paused and go on much later, tasks of failed tries that go on staging. A crash kills the process: no `except`
or `finally` of the code under test can touch the disk any more.

Each run is a function of its seed and of the call that crashes; a failure shows both.
"""

from __future__ import annotations

import copy
import os
import random
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import Any

import pytest
from apache_beam.transforms.window import GlobalWindow, TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from penstock.attempt import Attempt, running_attempt
from penstock.io.files import local, naming, write
from penstock.io.files.local import LocalFolder
from penstock.io.files.publication import Publication, PublicationCoder
from penstock.io.files.rolling import RollRule
from penstock.io.files.write import MoveFn, RollFn

JOB, SINK = "job", "sink"
LANES = [naming.lane("t", hour, shard, 2) for hour in (0, 1) for shard in (0, 1)]


class Crash(BaseException):
    """The process was killed."""


class CrashingOs:
    """Stands in for `os` in the code under test: counts its calls and kills the process at the chosen one.

    `before` tells whether the process dies before the call or right after it. A dead process calls nothing.
    """

    calls = ("open", "fsync", "rename", "mkdir", "unlink", "rmdir", "listdir", "stat")

    def __init__(self) -> None:
        self.path = os.path
        self.count = 0
        self.crash_at: int | None = None
        self.before = True
        self.dead = False

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        return self._counted(name, real) if name in self.calls else real

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.dead:
                raise Crash
            here = self.count == self.crash_at
            self.count += 1
            if here and self.before:
                self._die()
            result = None if name == "fsync" else real(*args, **kwargs)
            if here:
                self._die()
            return result

        return call

    def _die(self) -> None:
        self.dead = True
        raise Crash

    def born_again(self) -> None:
        self.dead, self.crash_at = False, None


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
class LaneState:
    lines: Cell = field(default_factory=Cell)
    opened: Value = field(default_factory=Value)
    roll: Timer = field(default_factory=Timer)
    end: Timer = field(default_factory=Timer)
    passed: Timer = field(default_factory=Timer)

    def empty(self) -> bool:
        return (
            not self.lines.values and not self.opened.values and self.roll.at is None and self.end.at is None
        )


@dataclass
class Record:
    """What a commit makes true all at once."""

    number: int = 0
    generation: int = 0
    position: int = 0
    lanes: dict[str, LaneState] = field(default_factory=lambda: defaultdict(LaneState))
    publications: list[bytes] = field(default_factory=list)


class Pipeline:
    """One driver over one record; the record survives it."""

    def __init__(self, folder: LocalFolder, source: list[tuple[str, bytes]], rule: RollRule) -> None:
        self.folder = folder
        self.source = source
        self.rule = rule
        self.record = Record()
        self.now = 1_000.0
        self.tries = 0

    def take_over(self) -> None:
        number = self.record.number + 1
        self.record = Record(
            number, number, self.record.position, self.record.lanes, list(self.record.publications)
        )

    def publications(self) -> list[Publication]:
        return [PublicationCoder().decode(each) for each in self.record.publications]

    def epoch(self, lines: int, drain: bool = False) -> None:
        """Publish the last record, take in so many lines, and commit."""
        self.tries += 1
        attempt = Attempt(JOB, self.record.generation, self.record.number + 1, f"n{self.tries}")
        with running_attempt(attempt):
            list(self.publish(self.publications()))
            lanes = copy.deepcopy(self.record.lanes)
            taken = self.source[self.record.position : self.record.position + lines]
            publications = list(self.roll(lanes, taken, drain))
        self.record = Record(
            attempt.epoch,
            attempt.generation,
            self.record.position + len(taken),
            lanes,
            [PublicationCoder().encode(each) for each in publications],
        )

    def publish(self, publications: Iterable[Publication]) -> Iterator[None]:
        """The post-commit step, one publication a step: whoever drives it may leave it for a while."""
        move = MoveFn(self.folder, SINK)
        move.start_bundle()
        for publication in publications:
            list(move.process(publication))
            yield
        move.finish_bundle()

    def roll(
        self, lanes: dict[str, LaneState], taken: list[tuple[str, bytes]], drain: bool
    ) -> Iterator[Publication]:
        write._index = count()  # a task may run in a new process
        fn = RollFn(self.folder, SINK, self.rule, clock=lambda: self.now)
        fn.start_bundle()
        for lane, block in taken:
            state = lanes[lane]
            yield from values(
                fn.process((lane, block), Timestamp(1), state.lines, state.opened, state.roll, state.end)
            )
        for lane, state in lanes.items():
            if state.roll.at is not None and state.roll.at <= Timestamp(self.now):
                yield from values(fn.on_roll(lane, state.lines, state.opened, state.roll, state.end))
            if drain and state.end.at is not None:
                assert state.end.at == GlobalWindow().max_timestamp()
                timers = state.roll, state.end, state.passed
                yield from values(fn.on_end(lane, state.lines, state.opened, *timers))
        fn.finish_bundle()

    def clean_up(self) -> Callable[[], None]:
        """What a clean-up after this record will do, whenever it gets to run."""
        move, record, named = MoveFn(self.folder, SINK), self.record, self.publications()
        return lambda: move.clean_up(JOB, record.generation, record.number, named)


def values(outputs: Iterable[TimestampedValue]) -> Iterator[Publication]:
    return (output.value for output in outputs)


class Consumer:
    """Looks at the output now and then; remembers every file that it saw and takes some away."""

    def __init__(self, folder: LocalFolder, rng: random.Random) -> None:
        self.root = Path(folder.path)
        self.rng = rng
        self.seen: dict[str, bytes] = {}
        self.taken: set[str] = set()

    def look(self) -> None:
        for path in sorted(self.root.glob("t/*/*.jsonl")):
            name = str(path.relative_to(self.root))
            content = path.read_bytes()
            assert name not in self.taken, f"{name} came again"
            assert self.seen.setdefault(name, content) == content, f"{name} changed"
            if self.rng.random() < 0.5:
                path.unlink()
                self.taken.add(name)

    def look_for_losses(self) -> None:
        there = {str(path.relative_to(self.root)) for path in self.root.glob("t/*/*.jsonl")}
        assert there == set(self.seen) - self.taken, "a published file went away"

    def lines(self) -> dict[str, list[bytes]]:
        """All lines of each lane, names first, then lines."""
        lanes: dict[str, list[bytes]] = defaultdict(list)
        for name in sorted(self.seen):
            lanes[name.rsplit("_", 3)[0].removesuffix(f"_{JOB}")].extend(self.seen[name].splitlines())
        return lanes


def source_of(rng: random.Random, count: int) -> list[tuple[str, bytes]]:
    return [(rng.choice(LANES), b"%d\n" % number) for number in range(count)]


def play(
    fake: CrashingOs, root: Path, seed: int, crash_at: int | None, before: bool, twists: bool = False
) -> int:
    """Run one history to its end and check it; return how many file-system calls it made."""
    rng = random.Random(seed)
    folder = LocalFolder(str(root / "out"))
    lines = source_of(rng, 16)
    rule = RollRule(after_us=rng.choice([0, 2_000_000]), at_bytes=rng.choice([6, 1_000]))
    pipeline, consumer = Pipeline(folder, lines, rule), Consumer(folder, random.Random(seed))
    fake.count, fake.crash_at, fake.before, fake.dead = 0, crash_at, before, False
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
            fake.born_again()
            pipeline.take_over()
        consumer.look()
    calls = fake.count
    fake.born_again()
    for each in late:
        each()
    pipeline.clean_up()()
    consumer.look()
    check(pipeline, consumer)
    return calls


def abort(pipeline: Pipeline, rng: random.Random) -> None:
    """Now and then a whole epoch is thrown away before its commit, by a driver that lives on."""
    if rng.random() < 0.2:
        before = pipeline.record
        pipeline.epoch(rng.randint(0, 6))
        pipeline.record = before


def paused(pipeline: Pipeline, rng: random.Random) -> list[Callable[[], Any]]:
    """Somebody is paused here and goes on at any later time: a publish step half done, a clean-up, a task."""
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
    """A task of a try that failed: it stages its files whenever it wakes up, and nobody hears of them."""
    pipeline.tries += 1
    attempt = Attempt(JOB, pipeline.record.generation, pipeline.record.number + 1, f"z{pipeline.tries}")
    lanes = copy.deepcopy(pipeline.record.lanes)
    taken = pipeline.source[pipeline.record.position : pipeline.record.position + 9]

    def stage() -> None:
        with running_attempt(attempt):
            list(pipeline.roll(lanes, taken, drain=True))

    return stage


def play_late(late: list[Callable[[], Any]], rng: random.Random) -> None:
    while late and rng.random() < 0.4:
        late.pop(rng.randrange(len(late)))()


def check(pipeline: Pipeline, consumer: Consumer) -> None:
    expected: dict[str, list[bytes]] = defaultdict(list)
    for lane, line in pipeline.source:
        expected[lane].append(line.rstrip())
    found = consumer.lines()
    doubled = [line for line, times in Counter(chain.from_iterable(found.values())).items() if times > 1]
    assert not doubled, "published twice"
    assert found == expected
    consumer.look_for_losses()
    assert all(state.empty() for state in pipeline.record.lanes.values()), "state is left"
    staging = Path(pipeline.folder.path, naming.STAGING)
    assert not [path for path in staging.rglob("*") if path.is_file()], "staged files are left"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> CrashingOs:
    fake = CrashingOs()
    monkeypatch.setattr(local, "os", fake)
    return fake


@pytest.fixture
def fresh(tmp_path: Path) -> Callable[[], Path]:
    def fresh() -> Path:
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        (tmp_path / "run").mkdir()
        return tmp_path / "run"

    return fresh


@pytest.mark.parametrize("seed", range(2))
def test_a_crash_at_any_file_system_call_loses_nothing_doubles_nothing_and_keeps_order(fake, fresh, seed):
    calls = play(fake, fresh(), seed, None, True)
    assert calls > 50
    for crash_at in range(calls):
        for before in (True, False):
            play(fake, fresh(), seed, crash_at, before)


@pytest.mark.parametrize("seed", range(60))
def test_zombies_paused_publishers_and_late_clean_ups_change_nothing(fake, fresh, seed):
    crash_at = random.Random(seed).randrange(150)
    play(fake, fresh(), seed, crash_at, bool(seed % 2), twists=True)
