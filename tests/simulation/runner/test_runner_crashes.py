"""The whole runner without Spark, crashed at every step: real plan, tasks, state, records and file sink.

A run is one seed: it says where the driver dies (before the tasks, after them, before or after the record is
created), where one task of an epoch fails, and which parallelism the next driver has. After each death a new
driver takes the checkpoint over. At the end the files hold each number once and each key's in order.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import VarIntCoder
from apache_beam.pvalue import AsSingleton
from apache_beam.transforms import trigger, userstate, window
from apache_beam.transforms.environments import EmbeddedPythonEnvironment
from apache_beam.transforms.timeutil import TimeDomain

from penstock.io.files import WriteToJsonLines
from penstock.runner.driver.driver import Driver
from penstock.runner.driver.publish_early import EarlyPublisher
from penstock.runner.driver.residuals import Residuals
from penstock.runner.harness.bundle import PlanContext
from penstock.runner.planning.graph import build_plan
from penstock.runner.planning.plan import Plan
from penstock.runner.protocol.coordinator import Coordinator
from penstock.runner.protocol.errors import EpochAbortedError, EpochFailedError
from penstock.runner.protocol.frames import Frame, Kind
from penstock.runner.protocol.loop import run_epochs
from penstock.runner.protocol.record import CommitRecord
from penstock.runner.store.checkpoint import Checkpoint
from penstock.runner.store.filesystem import LocalFileSystem
from penstock.runner.tasks.epoch import EpochInput, EpochLimits, TaskReport
from tests.integration.runner.sources import CountFn, Endless
from tests.simulation.inprocess import InProcessEngine

END = 60
KEYS = 4
PARTS = 3


class _InOrderFn(beam.DoFn):
    NEXT = userstate.ReadModifyWriteStateSpec("next", VarIntCoder())

    def process(
        self, keyed: tuple[str, tuple[str, int]], expected: Any = beam.DoFn.StateParam(NEXT)
    ) -> Iterator[Any]:
        key, (element, n) = keyed
        turn = expected.read() or 0
        if turn != n // KEYS:
            raise AssertionError(f"{key} is at turn {turn}, got {n // KEYS}")
        expected.write(turn + 1)
        yield {"element": element, "n": n}


class _ReadBesideFn(beam.DoFn):
    """Reads each number in parts, possibly in different epochs, with the size of its window as a side input."""

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        keyed: tuple[str, tuple[str, int]],
        size: int,
        tracker: Any = beam.DoFn.RestrictionParam(Endless(PARTS)),
    ) -> Iterator[Any]:
        _, (element, n) = keyed
        part = tracker.current_restriction().start
        while tracker.try_claim(part):
            yield {"element": element, "n": n, "part": part, "size": size}
            part += 1
            if n % 10 == 0:
                tracker.defer_remainder()
                return


class _AtTheEndFn(beam.DoFn):
    """Counts the numbers of a key in each window; a timer at the end of the window emits the count."""

    COUNT = userstate.CombiningValueStateSpec("count", combine_fn=sum)
    END = userstate.TimerSpec("end", TimeDomain.WATERMARK)

    def process(
        self,
        keyed: tuple[str, Any],
        within: Any = beam.DoFn.WindowParam,
        count: Any = beam.DoFn.StateParam(COUNT),
        timer: Any = beam.DoFn.TimerParam(END),
    ) -> None:
        count.add(1)
        timer.set(within.max_timestamp())

    @userstate.on_timer(END)
    def end(
        self,
        key: Any = beam.DoFn.KeyParam,
        within: Any = beam.DoFn.WindowParam,
        count: Any = beam.DoFn.StateParam(COUNT),
    ) -> Iterator[Any]:
        yield {"key": key, "start": float(within.start), "count": count.read()}


def _windowed(keyed: beam.PCollection, output: Path) -> None:
    """Early panes, timers at the ends of windows, side inputs of two kinds of DoFns, each in separate files."""
    short = keyed | "Short" >> beam.WindowInto(window.FixedWindows(0.1))
    early = keyed | "Early" >> beam.WindowInto(
        window.FixedWindows(0.1),
        trigger=trigger.AfterWatermark(early=trigger.AfterCount(2)),
        accumulation_mode=trigger.AccumulationMode.DISCARDING,
    )
    panes = (
        early
        | "Panes" >> beam.GroupByKey()
        | beam.Map(
            lambda kv, w=beam.DoFn.WindowParam, pane=beam.DoFn.PaneInfoParam: {
                "key": kv[0],
                "start": float(w.start),
                "index": pane.index,
                "nonspeculative": pane.nonspeculative_index,
                "last": pane.is_last,
                "numbers": [n for _, n in kv[1]],
            }
        )
    )
    sizes = short | beam.combiners.Count.Globally().without_defaults()
    beside = short | beam.Map(
        lambda kv, size: {"element": kv[1][0], "n": kv[1][1], "size": size}, AsSingleton(sizes)
    )
    read = short | "Read" >> beam.ParDo(_ReadBesideFn(), AsSingleton(sizes))
    ends = short | "Ends" >> beam.ParDo(_AtTheEndFn())
    for table, rows in (("panes", panes), ("beside", beside), ("read", read), ("ends", ends)):
        _ = rows | f"Write {table}" >> WriteToJsonLines(output, table=table, roll_seconds=0)


def _plan(output: Path, *, windowed: bool = False) -> Plan:
    pipeline = beam.Pipeline()
    keyed = (
        pipeline
        | beam.Create(["a", "b"])
        | beam.ParDo(CountFn(1e9, END, defer_every=25))
        | beam.Map(lambda pair: (f"{pair[0]}{pair[1] % KEYS}", pair))
    )
    numbers = keyed | "In order" >> beam.ParDo(_InOrderFn())
    _ = numbers | "Lines" >> WriteToJsonLines(
        output,
        table="numbers",
        key=lambda row: row["n"] % KEYS,
        shards=2,
        roll_seconds=0,
        in_event_time_order=True,
    )
    counts = (
        keyed
        | beam.WindowInto(window.FixedWindows(0.1))
        | beam.combiners.Count.PerKey()
        | beam.Map(
            lambda kv, w=beam.DoFn.WindowParam: {"key": kv[0], "start": float(w.start), "count": kv[1]}
        )
    )
    _ = counts | "Counts" >> WriteToJsonLines(output, table="counts", roll_seconds=0)
    if windowed:
        _windowed(keyed, output)
    proto = pipeline.to_runner_api(default_environment=EmbeddedPythonEnvironment.default())
    return build_plan(proto, streaming=True)


class _Killed(BaseException):
    """The driver dies. No code catches this exception."""


class _Chance:
    """Draws where faults occur; the probability of `hurt` is low enough for some epochs to succeed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.deaths = 0

    def die(self, probability: float = 0.08) -> None:
        if self.rng.random() < probability:
            self.deaths += 1
            raise _Killed


@dataclasses.dataclass
class _FragileFiles(LocalFileSystem):
    chance: _Chance = dataclasses.field(default_factory=lambda: _Chance(0))

    def create_if_absent(self, path: str, data: bytes) -> bool:
        self.chance.die()
        created = super().create_if_absent(path, data)
        self.chance.die()
        return created


class _FragileEngine(InProcessEngine):
    """Dies around an epoch, or lets one task run again with other data, as Spark does when an executor is lost."""

    def __init__(self, plan: Plan, chance: _Chance) -> None:
        super().__init__(plan)
        self._chance = chance

    def run(self, epoch: EpochInput, description: str, group: str) -> list[TaskReport]:
        self._chance.die()
        if self._chance.rng.random() < 0.1:
            raise EpochAbortedError("an executor is gone")
        reports = super().run(epoch, description, group)
        self._chance.die()
        return reports


def _run_to_the_end(plan: Plan, folder: Path, chance: _Chance) -> None:
    while True:
        try:
            return _one_driver(plan, folder, chance)
        except _Killed:
            continue


def _one_driver(plan: Plan, folder: Path, chance: _Chance) -> None:
    checkpoint = Checkpoint.open(str(folder), filesystem=_FragileFiles(chance=chance))
    coordinator = Coordinator(checkpoint)
    coordinator.take_over()
    driver = Driver(
        plan,
        _FragileEngine(plan, chance),
        Residuals(PlanContext(plan)),
        partitions=chance.rng.randint(1, 3),
        limits=EpochLimits(seconds=0.02, max_records=chance.rng.randint(5, 40), max_bytes=1 << 20),
        state_folder=checkpoint.state_folder,
        name="simulation",
    )
    early = EarlyPublisher(plan)

    def publish_early(record: CommitRecord) -> None:
        if chance.rng.random() < 0.5:
            early.committed(record)
        chance.die()

    with contextlib.closing(early):
        run_epochs(
            coordinator,
            driver,
            retries=5,
            back_off=lambda failures: 0.0,
            sweep_every=3,
            on_commit=publish_early,
        )


def _rows(folder: Path, names: str = "*.jsonl") -> list[Any]:
    files = sorted(path for path in folder.rglob(names) if ".penstock-staging" not in path.parts)
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def _check(output: Path) -> None:
    rows = _rows(output / "numbers")
    for element in "ab":
        for key in range(KEYS):
            mine = [r["n"] for r in rows if r["element"] == element and r["n"] % KEYS == key]
            assert mine == list(range(key, END, KEYS)), f"{element}{key}"
    for shard in ("00-of-02", "01-of-02"):
        times = [row["n"] for row in _rows(output / "numbers", f"{shard}*.jsonl")]
        assert times == sorted(times), f"{shard}: two readers, one bucket, in event-time order"
    counted: dict[str, int] = {}
    windows = [(row["key"], row["start"]) for row in _rows(output / "counts")]
    assert len(windows) == len(set(windows)), "each window fires once"
    for row in _rows(output / "counts"):
        counted[row["key"]] = counted.get(row["key"], 0) + row["count"]
    assert counted == {f"{element}{key}": END // KEYS for element in "ab" for key in range(KEYS)}


def _check_windows(output: Path) -> None:
    windows = [
        (f"{element}{key}", n // 10) for element in "ab" for key in range(KEYS) for n in range(0, END, 10)
    ]
    numbers = {
        (key, at): [n for n in range(10 * at, 10 * at + 10) if n % KEYS == int(key[1])] for key, at in windows
    }
    panes: dict[tuple[str, int], list[Any]] = {}
    for row in _rows(output / "panes"):
        panes.setdefault((row["key"], round(row["start"] * 10)), []).append(row)
    for name, expected in numbers.items():
        mine = sorted(panes[name], key=lambda row: row["index"])
        assert [row["index"] for row in mine] == list(range(len(mine))), f"{name}: each pane once"
        assert [row["nonspeculative"] for row in mine] == [-1] * (len(mine) - 1) + [0]
        assert [row["last"] for row in mine] == [False] * (len(mine) - 1) + [True]
        assert sorted(n for row in mine for n in row["numbers"]) == expected
    beside = sorted((row["element"], row["n"], row["size"]) for row in _rows(output / "beside"))
    assert beside == [(element, n, 20) for element in "ab" for n in range(END)]
    read = sorted((row["element"], row["n"], row["part"], row["size"]) for row in _rows(output / "read"))
    assert read == [(element, n, part, 20) for element in "ab" for n in range(END) for part in range(PARTS)]
    ends = sorted((row["key"], round(row["start"] * 10), row["count"]) for row in _rows(output / "ends"))
    assert ends == sorted((*name, len(expected)) for name, expected in numbers.items())


def _campaign(folder: Path, seeds: range, campaign: Any, *, windowed: bool) -> int:
    """Run each seed to its end and check what was published; return how often a driver died."""
    deaths = 0
    for seed in seeds:
        output = folder / f"out{seed}"
        plan, chance = _plan(output, windowed=windowed), _Chance(campaign.seed * 1000 + seed)
        try:
            _run_to_the_end(plan, folder / f"checkpoint{seed}", chance)
            _check(output)
            if windowed:
                _check_windows(output)
        except (AssertionError, EpochFailedError) as error:
            raise AssertionError(f"seed {seed} of {campaign.seed}") from error
        deaths += chance.deaths
    return deaths


def test_a_driver_crash_at_any_step_loses_repeats_and_reorders_nothing(tmp_path: Path, campaign: Any) -> None:
    seeds = range(campaign.size(6, 150))
    assert _campaign(tmp_path, seeds, campaign, windowed=False) > len(seeds), "drivers were killed"


@pytest.mark.long(seconds=20)
def test_panes_timers_and_side_inputs_are_exact_after_a_driver_crash_at_any_step(
    tmp_path: Path, campaign: Any
) -> None:
    seeds = range(campaign.size(2, 60))
    deaths = _campaign(tmp_path, seeds, campaign, windowed=True)
    campaign.record("windows-simulation", seeds=len(seeds), deaths=deaths, wrong=0)
    assert deaths > len(seeds), "drivers were killed"


def _foreign(level: int, frames: list[bytes]) -> list[bytes]:
    """Replace one block by that of another attempt of the same task, which comes last."""
    for index, data in enumerate(frames):
        frame = Frame.unpack(data)
        if frame.kind is Kind.DATA:
            changed = dataclasses.replace(frame, nonce="f" * 16)
            return [*frames[:index], *frames[index + 1 :], changed.pack()]
    return frames


def _without_a_block(level: int, frames: list[bytes]) -> list[bytes]:
    for index, data in enumerate(frames):
        if Frame.unpack(data).kind is Kind.DATA:
            return frames[:index] + frames[index + 1 :]
    return frames


@pytest.mark.parametrize("tamper", [_foreign, _without_a_block])
def test_a_block_of_another_attempt_or_a_missing_one_voids_the_epoch(tmp_path: Path, tamper: Any) -> None:
    plan = _plan(tmp_path / "out")
    checkpoint = Checkpoint.open(str(tmp_path / "checkpoint"))
    coordinator = Coordinator(checkpoint)
    coordinator.take_over()
    driver = Driver(
        plan,
        InProcessEngine(plan, tamper),
        Residuals(PlanContext(plan)),
        partitions=2,
        limits=EpochLimits(0.02, 20, 1 << 20),
        state_folder=checkpoint.state_folder,
        name="simulation",
    )
    with pytest.raises(EpochFailedError) as caught:
        run_epochs(coordinator, driver, retries=1, back_off=lambda failures: 0.0)
    assert isinstance(caught.value.__cause__, EpochAbortedError)
    assert not _rows(tmp_path / "out")
