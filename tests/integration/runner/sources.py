"""Small unbounded sources and sinks for tests of the runner; ordinary Beam, importable by workers."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Duration, Timestamp


class Endless(RestrictionProvider):
    """Numbers from 0, unbounded or up to `end`."""

    def __init__(self, end: int = 10**12) -> None:
        self.end = end

    def initial_restriction(self, element: Any) -> OffsetRange:
        return OffsetRange(0, self.end)

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return OffsetRestrictionTracker(restriction)

    def restriction_size(self, element: Any, restriction: OffsetRange) -> int:
        return 1

    def truncate(self, element: Any, restriction: OffsetRange) -> OffsetRange | None:
        return None


class CountFn(beam.DoFn):
    """Emits (element, n) for n = 0, 1, … below `end`: `per_second` of them, at event time n / 100 s.

    With `defer_every` it defers the residual by 30 ms after this number of numbers.
    """

    def __init__(self, per_second: float = 1000, end: int = 10**12, defer_every: int = 0) -> None:
        self.per_second = per_second
        self.end = end
        self.defer_every = defer_every

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        element: Any,
        tracker: Any = beam.DoFn.RestrictionParam(Endless()),
        watermark: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> Iterator[Any]:
        n = tracker.current_restriction().start
        while tracker.try_claim(n if n < self.end else 10**12):
            at = Timestamp(n / 100)
            yield TimestampedValue((element, n), at)
            watermark.set_watermark(at)
            n += 1
            if self.defer_every and n % self.defer_every == 0 and n < self.end:
                tracker.defer_remainder(Duration(seconds=0.03))
                return
            time.sleep(1 / self.per_second)


class AppendFn(beam.DoFn):
    """A post-commit step that is safe to repeat: one file per element, and a line in a log of tries."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def process(self, element: Any) -> Iterator[Any]:
        name = "-".join(str(part) for part in element).replace("/", "_")
        path = os.path.join(self.folder, name)
        with open(path, "a") as file:
            file.write("x")
        yield element


class FailingFn(beam.DoFn):
    """A post-commit step that fails as long as a file exists, and logs each try."""

    def __init__(self, switch: str, log: str) -> None:
        self.switch = switch
        self.log = log

    def process(self, element: Any) -> Iterator[Any]:
        with open(self.log, "a") as file:
            file.write("tried\n")
        if os.path.exists(self.switch):
            raise OSError("the target is not there")
        yield element


class FinalizingFn(beam.DoFn):
    """Registers a bundle finalizer for each element, which makes a file with the element's name."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def process(self, element: Any, finalizer: Any = beam.DoFn.BundleFinalizerParam) -> Iterator[Any]:
        path = os.path.join(self.folder, str(element))
        finalizer.register(lambda: open(path, "a").close())
        yield element


class ProcessesFn(beam.DoFn):
    """Passes (element, n) on, and writes for each bundle a line with the process into the element's file."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.seen: set[Any] = set()

    def start_bundle(self) -> None:
        self.seen.clear()

    def process(self, pair: Any) -> Iterator[Any]:
        if pair[0] not in self.seen:
            self.seen.add(pair[0])
            with open(os.path.join(self.folder, pair[0]), "a") as file:
                file.write(f"{os.getpid()}\n")
        yield pair
