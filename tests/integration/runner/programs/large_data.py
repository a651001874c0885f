"""Pipelines with data larger than memory, one for each way in which data can be large.

    python -m tests.integration.runner.programs.large_data WHAT FOLDER [name=number …]

WHAT is the name of a function below. It prints one line of JSON with its figures. Sizes are `name=number`. The values
are random, so that no compression makes them small.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.coders import BytesCoder, VarIntCoder
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import userstate
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.utils.timestamp import Timestamp

from penstock.io.files import WriteToJsonLines
from penstock.runner import PySparkRunner
from penstock.runner.options import PySparkOptions
from penstock.runner.protocol import Coordinator, RunName
from penstock.runner.store import Checkpoint, StateStore
from penstock.runner.store.cells import Cells
from penstock.runner.store.keys import groups_of, key_group, partition_of

Figures = dict[str, float]

_RANDOM = random.Random(1).randbytes(1 << 20)


def value_of(number: int, size: int) -> bytes:
    """Return `size` bytes (below a megabyte) that look random and begin with the number."""
    start = number * 7919 % (len(_RANDOM) - size)
    return number.to_bytes(8, "big") + _RANDOM[start : start + size - 8]


def _options(*flags: str) -> PipelineOptions:
    return PipelineOptions(["--spark_master=local[2,4]", "--spark_parallelism=2", *flags])


class ValuesFn(beam.DoFn):
    """Emits the values of a range of numbers."""

    def __init__(self, size: int, keys: int) -> None:
        self._size = size
        self._keys = keys

    def process(self, element: tuple[int, int]) -> Iterator[tuple[int, bytes]]:
        for number in range(*element):
            yield number % self._keys, value_of(number, self._size)


class ReadTwiceFn(beam.DoFn):
    """Reads the values of a key twice, as Beam allows, and emits how many and the sum of their numbers."""

    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[tuple[int, int]]:
        values = element[1]
        first = sum(1 for _ in values)
        yield first, sum(int.from_bytes(value[:8], "big") for value in values)


class CollectFn(beam.DoFn):
    """Adds what comes to counters of the pipeline."""

    def process(self, element: tuple[int, int]) -> None:
        beam.metrics.Metrics.counter("large", "count").inc(element[0])
        beam.metrics.Metrics.counter("large", "sum").inc(element[1])


def _counters(result: Any) -> Figures:
    counters = result.metrics().query()["counters"]
    return {each.key.metric.name: each.committed or each.attempted for each in counters}


def _ranges(values: int, parts: int = 16) -> list[tuple[int, int]]:
    return [(values * part // parts, values * (part + 1) // parts) for part in range(parts)]


def _pairs(p: beam.Pipeline, values: int, size: int, keys: int) -> Any:
    numbers = p | "Ranges" >> beam.Create(_ranges(values)) | "Spread" >> beam.Reshuffle()
    return numbers | "Values" >> beam.ParDo(ValuesFn(size, keys)).with_output_types(tuple[int, bytes])


def group(folder: str, values: int, size: int = 1000, keys: int = 1) -> Figures:
    """A batch: all values of few keys go through a GroupByKey."""
    p = beam.Pipeline(runner=PySparkRunner(), options=_options())
    grouped = _pairs(p, values, size, keys) | beam.GroupByKey()
    _ = grouped | "Twice" >> beam.ParDo(ReadTwiceFn()) | beam.ParDo(CollectFn())
    result = p.run()
    result.wait_until_finish()
    return _counters(result)


class SumSideFn(beam.DoFn):
    """Reads an iterable side input twice."""

    def process(self, element: Any, side: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, int]]:
        first = sum(1 for _ in side)
        yield first, sum(int.from_bytes(value[:8], "big") for _, value in side)


class LookUpFn(beam.DoFn):
    """Looks keys up in a multimap side input."""

    def process(self, element: tuple[int, int], side: Any) -> Iterator[tuple[int, int]]:
        for key in range(*element):
            for value in side[key]:
                yield 1, int.from_bytes(value[:8], "big")


def iterable_side_input(folder: str, values: int, size: int = 1000) -> Figures:
    """A batch whose side input is read as an iterable."""
    p = beam.Pipeline(runner=PySparkRunner(), options=_options())
    side = _pairs(p, values, size, values)
    main = p | "One" >> beam.Create([0])
    _ = main | beam.ParDo(SumSideFn(), beam.pvalue.AsIter(side)) | beam.ParDo(CollectFn())
    result = p.run()
    result.wait_until_finish()
    return _counters(result)


def multimap_side_input(folder: str, values: int, size: int = 1000, keys: int = 100_000) -> Figures:
    """A batch whose side input is looked up by key."""
    p = beam.Pipeline(runner=PySparkRunner(), options=_options())
    side = _pairs(p, values, size, keys)
    main = p | "Main" >> beam.Create(_ranges(keys)) | "Apart" >> beam.Reshuffle()
    _ = main | beam.ParDo(LookUpFn(), beam.pvalue.AsMultiMap(side)) | beam.ParDo(CollectFn())
    result = p.run()
    result.wait_until_finish()
    return _counters(result)


class Numbers(RestrictionProvider):
    """The numbers of an element, (first, last + 1)."""

    def initial_restriction(self, element: tuple[int, int]) -> OffsetRange:
        return OffsetRange(*element)

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return OffsetRestrictionTracker(restriction)

    def restriction_size(self, element: Any, restriction: OffsetRange) -> int:
        return restriction.size()


class ReadFn(beam.DoFn):
    """Emits (key, value) for each number of a range; in a stream an epoch ends it after its budget."""

    def __init__(self, size: int, keys: int) -> None:
        self._size = size
        self._keys = keys

    def process(
        self, element: tuple[int, int], tracker: Any = beam.DoFn.RestrictionParam(Numbers())
    ) -> Iterator[tuple[int, bytes]]:
        number = tracker.current_restriction().start
        while tracker.try_claim(number):
            yield number % self._keys, value_of(number, self._size)
            number += 1


def _stream(folder: str, *flags: str) -> beam.Pipeline:
    options = _options("--streaming", f"--checkpoint_dir={folder}/checkpoint", *flags)
    return beam.Pipeline(runner=PySparkRunner(), options=options)


def _read(p: beam.Pipeline, values: int, size: int, keys: int, parts: int = 2) -> Any:
    ranges = p | beam.Create(_ranges(values, parts))
    return ranges | "Read" >> beam.ParDo(ReadFn(size, keys)).with_output_types(tuple[int, bytes])


def group_in_stream(folder: str, values: int, size: int = 1000, keys: int = 1) -> Figures:
    """A stream: all values of few keys go through a GroupByKey, which stores them until the input ends."""
    p = _stream(folder)
    grouped = _read(p, values, size, keys) | beam.GroupByKey()
    _ = grouped | "Twice" >> beam.ParDo(ReadTwiceFn()) | beam.ParDo(CollectFn())
    return _run_stream(p)


def _run_stream(p: beam.Pipeline) -> Figures:
    epochs: list[float] = []
    records = Path(p.options.view_as(PySparkOptions).checkpoint_dir, "records")
    largest = 0
    result = p.run()
    seen, at = 0, time.monotonic()
    while result.state not in ("DONE", "FAILED", "CANCELLED", "STOPPED"):
        done = result.progress().epochs
        if done != seen:
            epochs.append((time.monotonic() - at) / (done - seen))
            seen, at = done, time.monotonic()
            largest = max([largest, *_sizes(records)])
        time.sleep(0.005)
    result.wait_until_finish()
    # The first epochs open files and start processes.
    steady = sorted(epochs[len(epochs) // 6 :])
    return {
        **_counters(result),
        "epochs": seen,
        "median_epoch_seconds": round(steady[len(steady) // 2], 3),
        "mean_epoch_seconds": round(sum(steady) / len(steady), 3),
        "slowest_epoch_seconds": round(max(epochs), 3),
        "largest_record_bytes": largest,
    }


def _sizes(folder: Path) -> Iterator[int]:
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # swept since
            yield path.stat().st_size


def _line(pair: tuple[int, bytes]) -> dict[str, Any]:
    return {"number": pair[0], "text": "x" * len(pair[1])}


def files(folder: str, values: int, size: int = 100) -> Figures:
    """A stream that reads all values in one epoch and writes them to files, two at a time."""
    unlimited = ("--epoch_seconds=600", f"--epoch_max_records={values + 1}", f"--epoch_max_bytes={1 << 40}")
    pairs = _read(_stream(folder, *unlimited), values, size, values)
    _ = pairs | WriteToJsonLines(
        f"{folder}/out", table="pairs", key=itemgetter(0), format=_line, shards=2, roll_seconds=0
    )
    figures = _run_stream(pairs.pipeline)
    found = Path(folder, "out/pairs").rglob("*.jsonl")
    numbers = [json.loads(line)["number"] for path in found for line in path.open()]
    assert sorted(numbers) == list(range(values)), "lines are lost or repeated"
    return figures


class OneTimerFn(beam.DoFn):
    """Sets a timer for each key; all are due when the input ends."""

    END = userstate.TimerSpec("end", TimeDomain.WATERMARK)

    def process(self, element: tuple[int, bytes], end: Any = beam.DoFn.TimerParam(END)) -> None:
        end.set(Timestamp(1_000_000 + element[0] % 1000))

    @userstate.on_timer(END)
    def on_end(self, key: Any = beam.DoFn.KeyParam) -> Iterator[tuple[int, int]]:
        yield 1, key


def timers(folder: str, count: int) -> Figures:
    """A stream that sets `count` timers, all of which fire when the input ends."""
    p = _stream(folder)
    fired = _read(p, count, 8, count) | "Timer" >> beam.ParDo(OneTimerFn()).with_output_types(tuple[int, int])
    _ = fired | beam.ParDo(CollectFn())
    return _run_stream(p)


def residuals(folder: str, count: int, size: int = 1000, each: int = 20) -> Figures:
    """A stream with `count` elements of a splittable DoFn, each of `size` bytes, in one bundle."""
    p = _stream(folder)
    fan_out = p | beam.Create([0]) | beam.FlatMap(_fan_out, count, each, size)
    numbers = fan_out | "Read" >> beam.ParDo(SlowReadFn()).with_output_types(tuple[int, int])
    _ = numbers | beam.ParDo(CollectFn())
    return _run_stream(p)


def _fan_out(_: int, count: int, each: int, size: int) -> Iterator[tuple[int, int, bytes]]:
    for number in range(count):
        yield 0, each, value_of(number, size)


class Padded(Numbers):
    """As `Numbers`, for elements that also carry bytes."""

    def initial_restriction(self, element: tuple[int, int, bytes]) -> OffsetRange:
        return OffsetRange(*element[:2])


class SlowReadFn(beam.DoFn):
    """Emits the numbers of a range, one in each epoch until a half of them has come, and then the rest."""

    def process(
        self, element: tuple[int, int, bytes], tracker: Any = beam.DoFn.RestrictionParam(Padded())
    ) -> Iterator[tuple[int, int]]:
        number = tracker.current_restriction().start
        while tracker.try_claim(number):
            yield 1, number
            number += 1
            if number < element[1] // 10:
                tracker.defer_remainder()
                return


class TurnsFn(beam.DoFn):
    """Emits `touched` random keys below `keys` in each epoch, each with 100 bytes."""

    def __init__(self, keys: int, touched: int) -> None:
        self._keys = keys
        self._touched = touched

    def process(
        self, element: tuple[int, int], tracker: Any = beam.DoFn.RestrictionParam(Numbers())
    ) -> Iterator[tuple[int, bytes]]:
        turn = tracker.current_restriction().start
        if tracker.try_claim(turn):
            chosen = random.Random(turn)
            for _ in range(self._touched):
                yield chosen.randrange(self._keys), value_of(turn, VALUE)
            tracker.defer_remainder()


class LastValueFn(beam.DoFn):
    """Keeps the last value of each key."""

    LAST = userstate.ReadModifyWriteStateSpec("last", BytesCoder())

    def process(self, element: tuple[int, bytes], last: Any = beam.DoFn.StateParam(LAST)) -> Iterator[Any]:
        yield int(last.read() is not None), 0
        last.write(element[1])


VALUE = 100
PARTITIONS = 2


def _touch(folder: str, keys: int, touched: int, epochs: int) -> Any:
    p = _stream(folder)
    turns = (
        p
        | beam.Create([(0, epochs)])
        | beam.ParDo(TurnsFn(keys, touched)).with_output_types(tuple[int, bytes])
    )
    known = turns | beam.ParDo(LastValueFn()).with_output_types(tuple[int, int])
    _ = known | beam.ParDo(CollectFn())
    return p


def _give_state(folder: str, keys: int) -> None:
    """Write the state of `keys` keys into a checkpoint, as the pipeline of `_touch` would."""
    checkpoint = Checkpoint.open(f"{folder}/checkpoint")
    coordinator = Coordinator(checkpoint)
    state = coordinator.take_over().state
    (stage,) = {run.stage for run in state.state_runs}
    attempt = coordinator.begin()
    name = RunName(attempt.generation, attempt.epoch, attempt.nonce, stage)
    ranges = [groups_of(partition, PARTITIONS) for partition in range(PARTITIONS)]
    files, location = checkpoint.filesystem, checkpoint.state_folder
    stores = [StateStore.open(files, location, (), each.start, each.stop - 1) for each in ranges]
    key_coder, value_coder = VarIntCoder().get_impl(), BytesCoder().get_impl()
    for number in range(keys):
        key, value = key_coder.encode_nested(number), value_coder.encode_nested(value_of(number, VALUE))
        group = key_group(key)
        Cells(stores[partition_of(group, PARTITIONS)]).replace(group, key, b"", b"last", value)
    runs = tuple(run for store in stores for run in store.seal(name))
    coordinator.commit(attempt, replace(state, state_runs=runs))


def _touched_epochs(folder: str, keys: int, touched: int, epochs: int) -> Figures:
    result = _touch(folder, keys, touched, epochs).run()
    while result.progress().epochs < 3:
        time.sleep(0.01)
    result.stop()
    result.wait_until_finish()
    _give_state(folder, keys)
    return _run_stream(_touch(folder, keys, touched, epochs))


def state(folder: str, keys: int, few: int, touched: int, epochs: int) -> Figures:
    """Two streams, with few and with many keys in state, of which each epoch touches the same number."""
    with_few = _touched_epochs(f"{folder}/few", few, touched, epochs)
    with_many = _touched_epochs(f"{folder}/many", keys, touched, epochs)
    return {**with_many, **{f"{name}_with_few": value for name, value in with_few.items()}}


def main() -> None:
    """Run one pipeline."""
    what, folder, *sizes = sys.argv[1:]
    pairs = (size.partition("=")[::2] for size in sizes)
    began = time.monotonic()
    figures = globals()[what](folder, **{name: int(value) for name, value in pairs})
    print(json.dumps({**figures, "seconds": round(time.monotonic() - began, 1)}))


if __name__ == "__main__":
    main()
