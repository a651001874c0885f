"""Pipelines with data larger than memory, one for each way in which data can be large.

    python -m tests.integration.runner.programs.large_data WHAT FOLDER [name=number …]

WHAT is the name of a function below. It prints one line of JSON with its figures. Sizes are `name=number`. The values
are random, so that no compression makes them small.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import userstate
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.utils.timestamp import Timestamp

from penstock.runner import PySparkRunner

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
    result = p.run()
    seen, at = 0, time.monotonic()
    while result.state not in ("DONE", "FAILED", "CANCELLED", "STOPPED"):
        done = result.progress().epochs
        if done != seen:
            epochs.append((time.monotonic() - at) / (done - seen))
            seen, at = done, time.monotonic()
        time.sleep(0.005)
    result.wait_until_finish()
    slowest = sorted(epochs)
    return {
        **_counters(result),
        "epochs": seen,
        "median_epoch_seconds": slowest[len(slowest) // 2],
        "slowest_epoch_seconds": slowest[-1],
    }


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


def main() -> None:
    """Run one pipeline."""
    what, folder, *sizes = sys.argv[1:]
    pairs = (size.partition("=")[::2] for size in sizes)
    began = time.monotonic()
    figures = globals()[what](folder, **{name: int(value) for name, value in pairs})
    print(json.dumps({**figures, "seconds": round(time.monotonic() - began, 1)}))


if __name__ == "__main__":
    main()
