"""What `Pipeline.run` returns: a pipeline that runs, or has run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from apache_beam.runners.runner import PipelineResult, PipelineState

from penstock.runner import metrics
from penstock.runner.driver.residuals import Residuals, ResidualView
from penstock.runner.metrics import Metrics
from penstock.runner.protocol.record import CommitRecord, WatermarkKind


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a pipeline stands after its last commit.

    `epoch` is the number of the record, `generation` that of the driver's take-over, `epochs` how many the
    job has committed in its life. Times in µs since 1970; `watermark_us` is the lowest of all steps that
    read, None before the first. `publications` wait for the next epoch.
    """

    epoch: int
    generation: int
    epochs: int
    committed_us: int | None
    watermark_us: int | None
    residuals: tuple[ResidualView, ...]
    publications: int


class PySparkPipelineResult(PipelineResult):
    """A pipeline on Spark. Batch pipelines and streams have the same result; a stream can be stopped.

    `stop` ends after the current epoch and keeps the checkpoint, so that the next run goes on; `drain` ends
    the pipeline for good: what is unbounded is read no further, windows close, and everything is published.
    """

    def __init__(self, residuals: Residuals | None = None) -> None:
        super().__init__(PipelineState.STARTING)
        self._residuals = residuals
        self._record: CommitRecord | None = None
        self._tally = metrics.Tally()
        self._error: BaseException | None = None
        self._finished = threading.Event()
        self._turning = (
            threading.Lock()
        )  # a state that has been reached is not overwritten by one that was asked for
        self._stop = threading.Event()
        self._drain = threading.Event()
        self._cancel_job: Callable[[], None] = lambda: None
        self._thread: threading.Thread | None = None

    # For whoever waits.

    def wait_until_finish(self, duration: int | None = None) -> str | None:
        """Wait at most `duration` milliseconds (None: for ever); return the final state, None if it runs.

        Raises:
            the error that the pipeline FAILED with; a user's exception with the worker's traceback as a note.
        """
        if not self._finished.wait(None if duration is None else duration / 1000):
            return None
        if self._error is not None:
            raise self._error
        return str(self.state)

    def stop(self) -> None:
        """Ask the pipeline to stop after the current epoch's commit; its checkpoint can be resumed."""
        self._stop.set()

    def drain(self) -> None:
        """Ask the pipeline to end: read what is bounded, close windows, publish everything."""
        with self._turning:
            if not self._finished.is_set() and not self.cancelling:
                self._state = PipelineState.DRAINING
        self._drain.set()

    def cancel(self) -> str:
        """Stop at once; the epoch that runs is thrown away, the checkpoint stays as it is."""
        with self._turning:
            if self._finished.is_set():
                return str(self.state)
            self._state = PipelineState.CANCELLING
        self._stop.set()
        for _ in range(60):
            self._cancel_job()  # again and again: a job may be about to start
            if self._finished.wait(1):
                break
        return str(self.state)

    def metrics(self) -> Metrics:
        """Committed metrics."""
        record = self._record
        return Metrics(metrics.deserialized(record.state.metrics if record else ()))

    def monitoring_metrics(self) -> Metrics:
        """Beam's own metrics too: element counts, sizes and times, of what this driver has committed."""
        return Metrics(self._tally.merged(), users_only=False)

    @property
    def watermarks(self) -> Mapping[str, int]:
        """Output watermark of each step that reads and of each grouping, in µs, as of the last commit."""
        marks = self._record.state.watermarks if self._record else {}
        return {key.step: mark for key, mark in marks.items() if key.kind is WatermarkKind.OUTPUT}

    def residuals(self) -> tuple[ResidualView, ...]:
        """What is left to read, as of the last commit."""
        if self._record is None or self._residuals is None:
            return ()
        return self._residuals.views(self._record.state.residuals)

    def progress(self) -> Progress:
        """Where the pipeline stands after its last commit."""
        record = self._record
        if record is None:
            return Progress(0, 0, 0, None, None, (), 0)
        return Progress(
            epoch=record.number,
            generation=record.generation,
            epochs=record.epochs,
            committed_us=record.committed_us,
            watermark_us=min(self.watermarks.values(), default=None),
            residuals=self.residuals(),
            publications=len(record.state.publications),
        )

    # For the runner.

    def run_in_background(self, work: Callable[[], str], cancel_job: Callable[[], None]) -> None:
        """Run `work` in a thread; its return value is the final state."""
        self._cancel_job = cancel_job
        self._state = PipelineState.RUNNING
        self._thread = threading.Thread(target=self._run, args=(work,), name="penstock-driver", daemon=True)
        self._thread.start()

    def committed(self, record: CommitRecord, measured: Iterable[bytes] = ()) -> None:
        """Take note of a record, and of what the tasks of its epoch have measured."""
        self._record = record
        self._tally.add(measured)

    @property
    def stopping(self) -> bool:
        """Whether somebody has asked to stop."""
        return self._stop.is_set()

    @property
    def cancelling(self) -> bool:
        """Whether somebody has asked to cancel."""
        return bool(self._state == PipelineState.CANCELLING)

    @property
    def draining(self) -> bool:
        """Whether somebody has asked to drain."""
        return self._drain.is_set()

    def _run(self, work: Callable[[], str]) -> None:
        error: BaseException | None = None
        try:
            state = work()
        except BaseException as failure:
            state, error = PipelineState.FAILED, failure
        with self._turning:
            if self.cancelling and state in (PipelineState.STOPPED, PipelineState.FAILED):
                state, error = PipelineState.CANCELLED, None
            self._state, self._error = state, error
            self._finished.set()
