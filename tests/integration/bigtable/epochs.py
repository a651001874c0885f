"""Drives the reader's DoFn as a runner does, in epochs: deal, read side by side, cut, encode, commit or crash."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from apache_beam.runners.sdf_utils import (
    RestrictionTrackerView,
    ThreadsafeRestrictionTracker,
    ThreadsafeWatermarkEstimator,
)
from apache_beam.utils.timestamp import Timestamp

from penstock.io.bigtable import ChangeStream, ChangeStreamMutation, ReadFromBigtableChangeStream
from penstock.io.bigtable.frontier import Frontier
from penstock.io.bigtable.read import ReadBigtableFn
from penstock.io.bigtable.tracker import FrontierCoder
from penstock.io.change_streams.watermark import FrontierWatermarkEstimator, beam_watermark


@dataclass
class Part:
    """One `process` call: outputs, and the residual after the cut."""

    outputs: list[ChangeStreamMutation] = field(default_factory=list)
    residual: tuple[Frontier, Timestamp] | None = None
    error: BaseException | None = None
    seconds_to_stop: float = 0.0


class Epochs:
    """One reading from its beginning on; `committed` is what has come out for good."""

    def __init__(self, transform: ReadFromBigtableChangeStream, parts: int = 1) -> None:
        self.fn = ReadBigtableFn(transform._settings)
        self.stream: ChangeStream = transform.stream
        self.parts = parts
        self.committed: list[ChangeStreamMutation] = []
        frontier = self.fn.initial_restriction(self.stream)
        self.residuals: list[tuple[Frontier, Timestamp]] = [(frontier, beam_watermark(frontier.watermark))]
        self.seconds_to_stop: list[float] = []
        self.widest = 0

    @property
    def watermark(self) -> Timestamp:
        return min((state for _, state in self.residuals), default=beam_watermark(None))

    def run(self, seconds: float, *, crash: bool = False, late: bool = False) -> list[ChangeStreamMutation]:
        """Run one epoch; a crash drops its outputs and its residuals. Return what it emitted."""
        before = self.watermark
        dealt = self.fn.rebalance(self.stream, self.residuals, self.parts)
        self.widest = max(self.widest, len(dealt))
        parts = [self._start(restriction, state) for restriction, state in dealt]
        time.sleep(seconds)
        deadline = time.monotonic() + 15
        for cut, thread, _ in parts:
            while thread.is_alive() and not cut():
                assert time.monotonic() < deadline, "a reader cannot be cut"
                time.sleep(0.01)
        for _, thread, _ in parts:
            thread.join(10)
            assert not thread.is_alive(), "a cut reader did not return"
        results = [part for _, _, part in parts]
        for part in results:
            if part.error is not None:
                raise part.error
        outputs = [record for part in results for record in part.outputs]
        assert late or all(beam_watermark(r.commit_timestamp) >= before for r in outputs), "late data"
        if not crash:
            self.committed += outputs
            self.residuals = [self._stored(part.residual) for part in results if part.residual]
            self.seconds_to_stop += [part.seconds_to_stop for part in results]
            assert self.watermark >= before, "the watermark went back"
        return outputs

    def run_until(self, timestamp: int, seconds: float = 0.2, timeout: float = 30) -> None:
        """Run epochs until the watermark has passed a commit timestamp."""
        deadline = time.monotonic() + timeout
        while self.residuals and self.watermark <= beam_watermark(timestamp):
            assert time.monotonic() < deadline, "the watermark does not move"
            self.run(seconds)

    def run_to_the_end(self, seconds: float = 0.2, timeout: float = 30) -> list[ChangeStreamMutation]:
        """Run epochs until nothing is left to read."""
        deadline = time.monotonic() + timeout
        while self.residuals:
            assert time.monotonic() < deadline, "the bounded reading does not end"
            self.run(seconds)
        return self.committed

    def _start(
        self, frontier: Frontier, state: Timestamp
    ) -> tuple[Callable[[], bool], threading.Thread, Part]:
        tracker = ThreadsafeRestrictionTracker(self.fn.create_tracker(frontier))
        estimator = ThreadsafeWatermarkEstimator(FrontierWatermarkEstimator(state))
        part = Part()
        cut_at = [0.0]

        def cut() -> bool:
            watermark = estimator.current_watermark()
            split = tracker.try_split(0)
            cut_at[0] = time.monotonic()
            if split:
                part.residual = (split[1], watermark)
            return split is not None

        def process() -> None:
            fn = ReadBigtableFn(self.fn._settings)  # each bundle has its own instance
            try:
                for output in fn.process(self.stream, RestrictionTrackerView(tracker), estimator):
                    part.outputs.append(output.value)
                part.seconds_to_stop = time.monotonic() - cut_at[0] if cut_at[0] else 0.0
                tracker.check_done()
                deferred = tracker.deferred_status()
                if deferred:
                    part.residual = (deferred[0], estimator.current_watermark())
            except BaseException as error:
                part.error = error

        thread = threading.Thread(target=process, daemon=True)
        thread.start()
        return cut, thread, part

    @staticmethod
    def _stored(residual: tuple[Frontier, Timestamp]) -> tuple[Frontier, Timestamp]:
        """Send the residual through its coder, as a checkpoint does."""
        return FrontierCoder().decode(FrontierCoder().encode(residual[0])), residual[1]
