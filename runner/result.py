"""The result of `Pipeline.run`: a running or ended pipeline."""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from apache_beam.runners.runner import PipelineResult, PipelineState

from penstock.parked import ParkedTable
from penstock.runner import metrics
from penstock.runner.driver.residuals import Residuals, ResidualView
from penstock.runner.interrupts import interrupted, interrupts_raised
from penstock.runner.metrics import Metrics
from penstock.runner.protocol.complete import complete_until_us
from penstock.runner.protocol.record import CommitRecord, WatermarkKind
from penstock.runner.store.drivers import Answers

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a pipeline at its last commit. Times are µs since 1970.

    `epoch` is the number of the record, `generation` the number of the driver's take-over, `epochs` counts the epochs
    committed in the life of the checkpoint. `watermark_us` is the lowest output watermark of all steps that read and
    of all groupings; None before the first. `publications` is the number that wait for the next epoch.
    `epoch_seconds` are the timings of the last epoch that ran here: `tasks` (the Spark job) and `commit`. `state_bytes`
    is the size of the state runs that the record names. `complete_us` is by step that publishes until when its target
    is complete (exclusive); None: not known. `parked` are tables that their targets have refused.
    """

    epoch: int
    generation: int
    epochs: int
    committed_us: int | None
    watermark_us: int | None
    residuals: tuple[ResidualView, ...]
    publications: int
    epoch_seconds: Mapping[str, float] = field(default_factory=dict)
    state_bytes: int = 0
    complete_us: Mapping[str, int | None] = field(default_factory=dict)
    parked: tuple[ParkedTable, ...] = ()


class PySparkPipelineResult(PipelineResult):
    """A pipeline on Spark, batch or streaming.

    `stop` ends a stream after the current epoch; the next start continues from its checkpoint. `drain` ends it
    permanently: unbounded sources are read no further, windows close, and everything is published.
    """

    def __init__(self, residuals: Residuals | None = None) -> None:
        super().__init__(PipelineState.STARTING)
        self._residuals = residuals
        self._noting = threading.Lock()
        self._leave: Callable[[Answers], None] | None = None
        self._answers: Answers | None = None
        self._record: CommitRecord | None = None
        self._progress: tuple[CommitRecord, Progress] | None = None
        self._timings: Mapping[str, float] = {}
        self._metrics = metrics.MetricsAccumulator()
        self._error: BaseException | None = None
        self._finished = threading.Event()
        # The lock keeps a request (DRAINING, CANCELLING) from overwriting a final state that was just reached (DONE).
        self._state_lock = threading.Lock()
        self._stop = threading.Event()
        self._drain = threading.Event()
        self._requested = ""
        self._cancel_job: Callable[[], None] = lambda: None
        self._thread: threading.Thread | None = None
        self._streaming = False

    # For users.

    def wait_until_finish(self, duration: int | None = None) -> str | None:
        """Wait at most `duration` milliseconds (None: no limit); return the final state, None if it still runs.

        Ctrl-C in this time stops a stream after its current epoch, and cancels a batch. Ctrl-C again cancels both.

        Raises:
            the error of a FAILED pipeline. A user's exception has the worker's traceback as a note.
            KeyboardInterrupt: Ctrl-C; the pipeline has ended.
        """
        with interrupts_raised():
            try:
                if not self._finished.wait(None if duration is None else duration / 1000):
                    return None
            except KeyboardInterrupt:
                raise self._end_interrupted() from None
        if self._error is not None:
            raise self._error
        return str(self.state)

    def stop(self) -> None:
        """Request a stop after the commit of the current epoch; the checkpoint can be resumed."""
        self._stop.set()

    def drain(self) -> None:
        """Request a drain: read bounded sources to their end, close windows, publish everything."""
        with self._state_lock:
            if not self._finished.is_set() and not self.cancelling:
                self._state = PipelineState.DRAINING
        self._drain.set()

    @property
    def requested(self) -> str:
        """``stop`` or ``drain`` if a request in the checkpoint folder asked for it, otherwise empty."""
        return self._requested

    def cancel(self) -> str:
        """Stop at once. The running epoch is discarded, the checkpoint does not change."""
        with self._state_lock:
            if self._finished.is_set():
                return str(self.state)
            self._state = PipelineState.CANCELLING
        self._stop.set()
        for _ in range(60):
            self._cancel_job()  # repeated, because the next job may be about to start
            if self._finished.wait(1):
                break
        return str(self.state)

    def metrics(self) -> Metrics:
        """Return users' metrics as of the last commit."""
        record = self._record
        return Metrics(metrics.deserialized(record.state.metrics if record else ()))

    def monitoring_metrics(self) -> Metrics:
        """Return Beam's metrics too: element counts, sizes and times of the epochs that this driver committed."""
        return Metrics(self._metrics.merged(), users_only=False)

    @property
    def watermarks(self) -> Mapping[str, int]:
        """Output watermark of each step that reads and of each grouping, in µs, as of the last commit."""
        watermarks = self._record.state.watermarks if self._record else {}
        return {key.step: us for key, us in watermarks.items() if key.kind is WatermarkKind.OUTPUT}

    def residuals(self) -> tuple[ResidualView, ...]:
        """Return the residuals of the last commit: the work that remains to be read."""
        if self._record is None or self._residuals is None:
            return ()
        return self._residuals.views(self._record.state.residuals)

    def progress(self) -> Progress:
        """Return the progress at the last commit."""
        record, known = self._record, self._progress
        if record is None:
            return Progress(0, 0, 0, None, None, (), 0)
        # A program that shows the progress asks several times a second, and the residuals are decoded each time.
        if known is None or known[0] is not record:
            known = self._progress = record, self._progress_at(record)
        return known[1]

    def _progress_at(self, record: CommitRecord) -> Progress:
        return Progress(
            epoch=record.number,
            generation=record.generation,
            epochs=record.epochs,
            committed_us=record.committed_us,
            watermark_us=min(self.watermarks.values(), default=None),
            residuals=self.residuals(),
            publications=len(record.state.publications),
            epoch_seconds=self._timings,
            # After a rescaling two entries may name one file.
            state_bytes=sum({run.name: run.size for run in record.state.state_runs}.values()),
            complete_us=complete_until_us(record.state),
            parked=tuple(each.table for each in record.state.parked),
        )

    # For the runner.

    def run_in_background(
        self, work: Callable[[], str], cancel_job: Callable[[], None], *, streaming: bool = False
    ) -> None:
        """Run `work` in a thread; its return value is the final state. If the program ends first, cancel it."""
        self._cancel_job, self._streaming = cancel_job, streaming
        # A thread that ran on would report that Spark, which ends with the program, fails its epochs.
        atexit.register(self.cancel)
        self._state = PipelineState.RUNNING
        self._thread = threading.Thread(target=self._run, args=(work,), name="penstock-driver", daemon=True)
        self._thread.start()

    def committed(
        self,
        record: CommitRecord,
        measured: Iterable[bytes] = (),
        timings: Mapping[str, float] | None = None,
    ) -> None:
        """Store the last record, and the metrics and timings of its epoch."""
        self._timings = timings or {}
        self._record = record
        self._metrics.add(measured)

    def note_answers(self, at: float, values: Sequence[Mapping[str, Any]]) -> None:
        """Leave a note of what services have answered at a time, in seconds since 1970, for those who read the folder.

        `values` can be written as JSON. A pipeline without a checkpoint leaves none, and a note that fails is a
        message of the log.
        """
        with self._noting:
            self._answers = Answers(at, tuple(values))
            if self._leave is not None:
                self._leave(self._answers)

    def leave_answers(self, leave: Callable[[Answers], None]) -> None:
        """Give the notes their place, which is known after the take-over: the first answers may be there before."""
        with self._noting:
            self._leave = leave
            if self._answers is not None:
                leave(self._answers)

    def obey(self, requests: Collection[str]) -> None:
        """Stop or drain as requests in the checkpoint folder ask. A stop wins: it can be followed by a drain."""
        if not requests:
            return
        self._requested = "stop" if "stop" in requests else "drain"
        (self.stop if self._requested == "stop" else self.drain)()

    @property
    def stopping(self) -> bool:
        """Whether a stop was requested."""
        return self._stop.is_set()

    @property
    def cancelling(self) -> bool:
        """Whether a cancel was requested."""
        return bool(self._state == PipelineState.CANCELLING)

    @property
    def draining(self) -> bool:
        """Whether a drain was requested."""
        return self._drain.is_set()

    def _end_interrupted(self) -> KeyboardInterrupt:
        """End the pipeline after Ctrl-C, and return the exception that says how it ended."""
        if self._streaming:
            logger.warning(
                "interrupted: the stream stops after its current epoch; to cancel it, press Ctrl-C again"
            )
            self.stop()
            try:
                self._finished.wait()
            except KeyboardInterrupt:
                self.cancel()
        else:
            self.cancel()
        ended = {
            PipelineState.STOPPED: "stopped with a checkpoint",
            PipelineState.CANCELLED: "cancelled",
        }.get(self.state, f"in the state {self.state}")
        return interrupted(f"interrupted; the pipeline is {ended}")

    def _run(self, work: Callable[[], str]) -> None:
        error: BaseException | None = None
        try:
            state = work()
        # Also SystemExit and KeyboardInterrupt: otherwise `wait_until_finish` would never return.
        except BaseException as failure:
            state, error = PipelineState.FAILED, failure
        with self._state_lock:
            # A cancel ends the Spark job, which fails the epoch. So this failure is not an error of the pipeline.
            if self.cancelling and state in (PipelineState.STOPPED, PipelineState.FAILED):
                state, error = PipelineState.CANCELLED, None
            self._state, self._error = state, error
            self._finished.set()
        atexit.unregister(self.cancel)
