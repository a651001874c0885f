"""Drives a source's DoFn as a runner does, in epochs: deal, read in parallel, split, encode, commit or crash."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from apache_beam.pvalue import TaggedOutput
from apache_beam.runners.sdf_utils import (
    RestrictionTrackerView,
    ThreadsafeRestrictionTracker,
    ThreadsafeWatermarkEstimator,
)
from apache_beam.utils.timestamp import Timestamp

from penstock.batches import ElementBatch
from penstock.io.change_streams.incremental.notifications import NOTIFICATIONS, NotificationRecord
from penstock.io.change_streams.tracker import Poll
from penstock.io.change_streams.transform import ReadFromChangeStream
from penstock.io.change_streams.watermark import FrontierWatermarkEstimator, beam_watermark
from tests.support.waiting import PATIENCE_SECONDS, wait_until


@dataclass
class Part:
    """One `process` call: its outputs, and the residual after the split."""

    outputs: list[Any] = field(default_factory=list)
    residual: tuple[Any, Timestamp] | None = None
    error: BaseException | None = None
    seconds_to_stop: float = 0.0


class Epochs:
    """One read from its beginning on; `committed` holds the records of committed epochs."""

    def __init__(self, transform: ReadFromChangeStream, parts: int = 1, *, stream: Any = None) -> None:
        """`stream`: the element to read; None: that of the transform."""
        self.fn = transform.bounded_fn(transform._settings)
        self.stream = transform.stream if stream is None else stream
        self.parts = parts
        self.committed: list[Any] = []
        frontier = self.fn.initial_restriction(self.stream)
        self.residuals: list[tuple[Any, Timestamp]] = [(frontier, beam_watermark(frontier.watermark))]
        self.seconds_to_stop: list[float] = []
        self.crashes = 0
        self.widest = 0

    @property
    def watermark(self) -> Timestamp:
        return min((state for _, state in self.residuals), default=beam_watermark(None))

    def run(
        self, seconds: float, *, crash: bool = False, late: bool = False, steps: int | None = None
    ) -> list[Any]:
        """Run one epoch; a crash drops its outputs and its residuals. Return what it emitted.

        `late`: records may be below the watermark. `steps`: each part is split as soon as it has claimed so many steps.
        """
        before = self.watermark
        dealt = self.fn.rebalance(self.stream, self.residuals, self.parts)
        self.widest = max(self.widest, len(dealt))
        parts = [self._start(restriction, state, steps) for restriction, state in dealt]
        ended = [part for _, _, part in parts]
        _join_for([thread for _, thread, _ in parts], seconds)
        for cut, thread, _ in parts:
            wait_until(
                lambda thread=thread, cut=cut: not thread.is_alive() or cut(), "a reader cannot be split"
            )
        for _, thread, _ in parts:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive(), "a reader that was split did not return"
        for part in ended:
            if part.error is not None:
                raise part.error
        outputs = [record for part in ended for record in part.outputs]
        for part in ended:
            # The tracker and its callback refer to each other and to the part. Records do not count for the garbage
            # collector, so it would run seldom and keep the outputs of many epochs.
            part.outputs.clear()
        assert late or all(beam_watermark(r.commit_timestamp) >= before for r in outputs), "late data"
        self.crashes += crash
        if not crash:
            self.committed += outputs
            self.residuals = [self._stored(part.residual) for part in ended if part.residual]
            self.seconds_to_stop += [part.seconds_to_stop for part in ended]
            assert self.watermark >= before, "the watermark went back"
        return outputs

    def run_until(self, timestamp: int, seconds: float = 0.2, timeout: float = PATIENCE_SECONDS) -> None:
        """Run epochs until the watermark has passed a commit timestamp.

        An epoch that does not move the watermark is followed by a longer one: on a busy machine `seconds` may be too
        few for a reader to open its streams, and each epoch opens them again.
        """
        deadline = time.monotonic() + timeout
        length = seconds
        while self.residuals and (before := self.watermark) <= beam_watermark(timestamp):
            assert time.monotonic() < deadline, "the watermark does not move"
            self.run(length)
            length = seconds if self.watermark > before else 2 * length

    def run_to_the_end(self, seconds: float = 0.2, timeout: float = PATIENCE_SECONDS) -> list[Any]:
        """Run epochs until no work remains; return all committed records."""
        deadline = time.monotonic() + timeout
        while self.residuals:
            assert time.monotonic() < deadline, "the bounded read does not end"
            self.run(seconds)
        return self.committed

    def _start(
        self, frontier: Any, state: Timestamp, steps: int | None
    ) -> tuple[Callable[[], bool], threading.Thread, Part]:
        tracker = _StepTracker(self.fn.create_tracker(frontier))
        estimator = ThreadsafeWatermarkEstimator(FrontierWatermarkEstimator(state))
        part = Part()
        split_at = [0.0]

        def split() -> bool:
            watermark = estimator.current_watermark()
            residual = tracker.try_split(0)
            split_at[0] = time.monotonic()
            if residual:
                part.residual = (residual[1], watermark)
            return residual is not None

        def split_after_steps(claimed: int) -> None:
            if steps is not None and claimed >= steps:
                split()

        tracker.on_claim = split_after_steps

        def process() -> None:
            fn = type(self.fn)(self.fn._settings)  # each bundle has its own instance
            try:
                for output in fn.process(self.stream, RestrictionTrackerView(tracker), estimator):
                    part.outputs += _emitted(output)
                part.seconds_to_stop = time.monotonic() - split_at[0] if split_at[0] else 0.0
                tracker.check_done()
                deferred = tracker.deferred_status()
                if deferred:
                    part.residual = (deferred[0], estimator.current_watermark())
            except BaseException as error:
                part.error = error

        thread = threading.Thread(target=process, daemon=True)
        thread.start()
        return split, thread, part

    def _stored(self, residual: tuple[Any, Timestamp]) -> tuple[Any, Timestamp]:
        """Send the residual through its coder, as a checkpoint does."""
        coder = self.fn.restriction_coder()
        return coder.decode(coder.encode(residual[0])), residual[1]


class _StepTracker(ThreadsafeRestrictionTracker):  # type: ignore[misc, unused-ignore]
    """Calls `on_claim` with the number of claimed steps after each of them."""

    on_claim: Callable[[int], None] = staticmethod(lambda claimed: None)
    claimed = 0

    def try_claim(self, position: Any) -> bool:
        claimed: bool = super().try_claim(position)
        if claimed and not isinstance(position, Poll):
            self.claimed += 1
            self.on_claim(self.claimed)
        return claimed


def _emitted(output: Any) -> list[Any]:
    """Return what was emitted. Elements of other outputs are kept with the records: their type tells them apart."""
    if isinstance(output, TaggedOutput):
        value = output.value.value
        if output.tag == NOTIFICATIONS:
            value = NotificationRecord(output.value.timestamp.micros * 1000, value)
        return [value]
    if isinstance(output.value, ElementBatch):
        assert output.timestamp.micros == min(output.value.times_us)
        assert output.value.times_us == [each.commit_timestamp // 1000 for each in output.value.elements]
        return output.value.elements
    return [output.value]


def _join_for(threads: list[threading.Thread], seconds: float) -> None:
    """Return when all threads have ended, or after `seconds`."""
    until = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
