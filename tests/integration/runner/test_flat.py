"""A stream with thousands of windows and of keys that occur once does not grow, on real Spark.

The in-process test of the same name measures state and records; this one measures folders, heaps and processes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import StrUtf8Coder
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import trigger, userstate, window
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from penstock.runner import PySparkRunner
from tests.integration.runner.sources import Endless

pytestmark = [pytest.mark.spark, pytest.mark.long(seconds=15)]

KEYS_A_TURN = 20
LEEWAY = {"files": 30, "kilobytes": 1300, "driver_mb": 12, "worker_mb": 8, "heap_mb": 24}
"""What a figure may grow by, beside a fifth, without being taken for a leak: noise of allocators and collectors.

What is not needed any more is swept every 16 epochs, so the folder's files are counted at their fewest, give or take
the four epochs between a sweep and the next look.
"""
SWEPT = ("files", "kilobytes")


class TurnsFn(beam.DoFn):
    """Each call advances event time by a second and emits new keys, one of them late."""

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        element: str,
        tracker: Any = beam.DoFn.RestrictionParam(Endless()),
        watermark: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> Iterator[TimestampedValue]:
        turn = tracker.current_restriction().start
        if tracker.try_claim(turn):
            for number in range(KEYS_A_TURN):
                at = turn - 2 if turn > 2 and not number else turn + number / KEYS_A_TURN
                yield TimestampedValue((f"{element}{turn}-{number}", "x" * 100), at)
            watermark.set_watermark(Timestamp(turn))
            tracker.defer_remainder()


class OnceFn(beam.DoFn):
    """Stores each key and sets timers for it. The DoFn never clears this state; it is deleted with its window."""

    SEEN = userstate.BagStateSpec("seen", StrUtf8Coder())
    END = userstate.TimerSpec("end", TimeDomain.WATERMARK)
    SOON = userstate.TimerSpec("soon", TimeDomain.REAL_TIME)

    def process(
        self,
        element: tuple[str, str],
        seen: Any = beam.DoFn.StateParam(SEEN),
        end: Any = beam.DoFn.TimerParam(END),
        soon: Any = beam.DoFn.TimerParam(SOON),
        within: Any = beam.DoFn.WindowParam,
    ) -> None:
        seen.add(element[1])
        end.set(within.max_timestamp())
        soon.set(Timestamp.now() + 0.1)

    @userstate.on_timer(END)
    def on_end(self) -> Iterator[str]:
        yield "end"

    @userstate.on_timer(SOON)
    def on_soon(self) -> Iterator[str]:
        yield "soon"


def _windows(fn: Any) -> beam.WindowInto:
    return beam.WindowInto(
        fn,
        trigger=trigger.AfterWatermark(early=trigger.AfterCount(1), late=trigger.AfterCount(2)),
        accumulation_mode=trigger.AccumulationMode.ACCUMULATING,
        allowed_lateness=3,
    )


def _build(p: beam.Pipeline) -> None:
    pairs = p | beam.Create(["a", "b"]) | beam.ParDo(TurnsFn()).with_output_types(tuple[str, str])
    for name, fn in (("Fixed", window.FixedWindows(1)), ("Sessions", window.Sessions(1))):
        _ = pairs | name >> _windows(fn) | f"Group {name}" >> beam.GroupByKey()
    short = pairs | "Short" >> beam.WindowInto(window.FixedWindows(1), allowed_lateness=3)
    _ = short | "Once" >> beam.ParDo(OnceFn())


class Meter:
    """Measures the sizes of a driver, its JVM, its workers and a checkpoint folder."""

    def __init__(self, spark: Any, checkpoint: Path) -> None:
        self._jvm = spark._jvm
        self._checkpoint = checkpoint

    def look(self) -> dict[str, float]:
        sizes = list(self._sizes())
        heap = self._jvm.java.lang.management.ManagementFactory.getMemoryMXBean()
        self._jvm.java.lang.System.gc()
        workers = [_resident_mb(process) for process in self._workers()]
        return {
            "files": len(sizes),
            "kilobytes": sum(sizes) / 1e3,
            "driver_mb": _resident_mb(os.getpid()),
            "worker_mb": max(workers, default=0),
            "heap_mb": heap.getHeapMemoryUsage().getUsed() / 1e6,
        }

    def _sizes(self) -> Iterator[int]:
        for path in self._checkpoint.rglob("*"):
            try:
                if path.is_file():
                    yield path.stat().st_size
            except FileNotFoundError:
                continue  # swept since

    def _workers(self) -> Iterator[int]:
        """The processes that the workers' daemon has forked."""
        java = int(self._jvm.java.lang.ProcessHandle.current().pid())
        for daemon in _children(java):
            yield from _children(daemon)


def _children(parent: int) -> list[int]:
    """The children of a process; each is listed with the thread that made it, and threads come and go."""
    found: list[int] = []
    with suppress(FileNotFoundError):  # the process has ended since
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            with suppress(FileNotFoundError, ProcessLookupError):
                found += [int(child) for child in task.read_text().split()]
    return found


def _resident_mb(process: int) -> float:
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    except (FileNotFoundError, ProcessLookupError):
        return 0.0


def test_folder_heap_driver_and_workers_do_not_grow(spark: Any, tmp_path: Path, campaign: Any) -> None:
    epochs, every = campaign.size(60, 400), campaign.size(2, 8)
    flags = [f"--checkpoint_dir={tmp_path / 'checkpoint'}", "--spark_parallelism=2"]
    pipeline = beam.Pipeline(runner=PySparkRunner(spark), options=PipelineOptions(flags))
    _build(pipeline)
    result = pipeline.run()
    meter, seen = Meter(spark, tmp_path / "checkpoint"), []
    try:
        while (done := result.progress().epochs) < epochs:
            if done >= (len(seen) + 1) * every:
                seen.append(meter.look())
            if result.state == "FAILED":
                result.wait_until_finish()
            time.sleep(0.02)
    finally:
        result.cancel()
    warm, rest = seen[len(seen) // 6 : len(seen) // 2], seen[len(seen) // 2 :]
    sizes = {name: (_size(name, warm), _size(name, rest)) for name in LEEWAY}
    campaign.record(
        "flat-spark",
        epochs=epochs,
        keys=2 * KEYS_A_TURN * epochs,
        sizes={
            name: {"first_half": round(a, 1), "second_half": round(b, 1)} for name, (a, b) in sizes.items()
        },
    )
    grown = {name: pair for name, pair in sizes.items() if pair[1] > 1.2 * pair[0] + LEEWAY[name]}
    assert not grown, "(before, since)"


def _size(name: str, looks: list[dict[str, float]]) -> float:
    return (min if name in SWEPT else max)(look[name] for look in looks)
