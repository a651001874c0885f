"""Runs one pipeline in the driver thread, from the take-over to the final state."""

from __future__ import annotations

import contextlib
import logging
import tempfile
import uuid
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from apache_beam.runners.runner import PipelineState

from penstock.attempt import Attempt, offering_staging
from penstock.failures import describe_failure
from penstock.parked import TableRequest
from penstock.publish import ClaimsOutput
from penstock.runner.driver.claims import OutputClaims
from penstock.runner.driver.cleanup import clean_ups
from penstock.runner.driver.compatibility import state_for_plan
from penstock.runner.driver.complete_marks import CompleteMarks
from penstock.runner.driver.driver import Driver
from penstock.runner.driver.post_commit import post_commit_fns
from penstock.runner.driver.publish_early import EarlyPublisher
from penstock.runner.driver.read_on import read_on
from penstock.runner.driver.residuals import Residuals
from penstock.runner.harness.bundle import PlanContext
from penstock.runner.openlineage.run_reporter import NoReports, Reports
from penstock.runner.options import PySparkOptions
from penstock.runner.planning.plan import Plan
from penstock.runner.protocol.coordinator import Coordinator
from penstock.runner.protocol.errors import EpochAbortedError, EpochFailedError
from penstock.runner.protocol.loop import run_epochs
from penstock.runner.protocol.record import CommitRecord, EpochState
from penstock.runner.result import PySparkPipelineResult
from penstock.runner.spark.engine import SparkEngine
from penstock.runner.spark.scratch import make_private_folder
from penstock.runner.spark.session import task_slots
from penstock.runner.store.checkpoint import Checkpoint
from penstock.runner.store.drivers import DriverNotes, Ended, Pipeline, Process, Started
from penstock.runner.store.keys import KEY_GROUPS
from penstock.runner.store.requests import RequestWatch
from penstock.runner.store.rewind_note import RewindNote
from penstock.runner.store.table_requests import TableRequestWatch
from penstock.runner.tasks.epoch import EpochLimits
from penstock.timeline import trace

logger = logging.getLogger(__name__)


class Job:
    """One pipeline on one Spark context. Each `run_…` method runs it to its end and returns the final state.

    `pipeline` describes it in the notes that its driver leaves in the checkpoint folder. `reports` are told when
    the run starts, after each commit, and when it ends.
    """

    def __init__(
        self,
        spark: Any,
        plan: Plan,
        settings: PySparkOptions,
        result: PySparkPipelineResult,
        pipeline: Pipeline = Pipeline(),
        reports: Reports = NoReports(),
    ) -> None:
        self._pipeline, self._reports = pipeline, reports
        self._spark = spark
        self._plan = plan
        self._settings = settings
        self._result = result
        self._engine = SparkEngine(spark, plan)
        self._name = ""

    def cancel(self) -> None:
        """Cancel the Spark job that runs."""
        self._spark.cancelJobGroup(f"penstock-{self._name}")

    def run_batch(self) -> str:
        """Run a batch pipeline. Its records are kept in memory: a batch starts from its beginning."""
        self._name = "batch-" + uuid.uuid4().hex[:12]
        return self._reported(self._run_batch)

    def _run_batch(self) -> str:
        record = _in_memory(1, EpochState())
        with contextlib.closing(self._engine), self._batch_staging() as staging:
            driver = self._driver("", staging)
            while not record.state.done and not self._result.stopping:
                state = self._try_batch_epoch(driver, record)
                # None: nothing was due, and the driver has paused.
                if state is not None:
                    record = _in_memory(record.number + 1, state)
                    self._result.committed(record, driver.measured(record.number))
                    self._reports.committed()
        return str(PipelineState.DONE if record.state.done else PipelineState.CANCELLED)

    @contextlib.contextmanager
    def _batch_staging(self) -> Iterator[str | None]:
        """A temporary folder that sinks are offered; None on a cluster, whose workers would not see it."""
        if not str(self._spark.master).startswith("local"):
            yield None
            return
        with _temporary_folder() as folder:
            yield str(folder)

    def run_test_stream(self) -> str:
        """Run a TestStream without a checkpoint folder. It ends, so a failure is final, as in a batch."""
        with _temporary_checkpoint() as checkpoint:
            try:
                return self.run_stream(checkpoint, retries=0)
            except EpochFailedError as error:
                raise error.__cause__ or error from None

    def run_stream_without_checkpoint_dir(self) -> str:
        """Run a stream with a checkpoint in a temporary folder, which is deleted when the pipeline ends."""
        with _temporary_checkpoint() as checkpoint:
            return self.run_stream(checkpoint)

    def run_stream(self, checkpoint: Checkpoint, retries: int | None = None) -> str:
        """Run epochs until the pipeline is done, stopped or superseded; note the start and the end in the folder."""
        self._name = checkpoint.job
        coordinator = Coordinator(checkpoint)
        record = coordinator.take_over()
        # After the take-over, because no rewind can begin then. The start has looked before it, too.
        RewindNote(checkpoint).refuse()
        trace("took over")
        notes = DriverNotes(checkpoint)
        notes.note_start(record.generation, Started(Process.current(), self._pipeline))
        self._result.leave_answers(partial(notes.note_answers, record.generation))
        requests = RequestWatch(checkpoint, record.generation)

        def run() -> str:
            with requests.answering():
                return self._run_epochs(checkpoint, coordinator, record, requests, retries)

        def end(ended: Ended) -> None:
            # Before the requests: a ping that is gone and no note would mean that this driver runs.
            notes.note_end(record.generation, ended)
            if not ended.reason:
                # Not after an exception: a request that is deleted counts as obeyed.
                requests.delete()

        return self._reported(run, end)

    def _reported(self, run: Callable[[], str], end: Callable[[Ended], None] = lambda ended: None) -> str:
        """Run the pipeline and return its state. `end` and the reports are told how it ended, also by an exception."""
        self._reports.started()
        ended = Ended(str(PipelineState.FAILED))
        try:
            ended = Ended(run())
            return ended.state
        except BaseException as error:
            ended = replace(ended, reason=describe_failure(error))
            raise
        finally:
            # A cancel makes Spark's job fail. The error that `run` has raised is no failure then.
            if self._result.cancelling:
                ended = Ended(str(PipelineState.CANCELLED))
            end(ended)
            self._reports.ended(ended.state, ended.reason)

    def _run_epochs(
        self,
        checkpoint: Checkpoint,
        coordinator: Coordinator,
        record: CommitRecord,
        requests: RequestWatch,
        retries: int | None,
    ) -> str:
        """Run epochs after the take-over, which committed `record`."""
        dropped = self._settings.drop_state or ()
        if record.kind == "initial":
            logger.info("new checkpoint in %s", checkpoint.folder)
        else:
            logger.info("continuing from the checkpoint in %s, record %d", checkpoint.folder, record.number)
        state = state_for_plan(record.state, self._plan, dropped)
        # After the take-over: before it, another driver could still replace these runs and delete them.
        checkpoint.check_runs(state.state_runs)
        following = read_on(state, self._plan, Residuals(PlanContext(self._plan)))
        if following is not None:
            # A new record: the loop begins with the last record, and would end at once if that one is done.
            record = coordinator.commit(coordinator.begin(), following)
            state = following
            logger.info("the end was moved or removed: the pipeline reads on after the end that it had")
        self._result.committed(replace(record, state=state))
        if record.state.done:
            logger.warning(
                "the pipeline of %s has already ended, so there is nothing to do; to read more, move or remove the "
                "end of its source, or give --checkpoint_dir another folder",
                checkpoint.folder,
            )
        tables = TableRequestWatch(checkpoint)
        driver = self._driver(checkpoint.state_location, checkpoint.staging_location, dropped, tables.look)
        early = EarlyPublisher(self._plan)
        marks = CompleteMarks(self._plan, checkpoint.job, checkpoint.staging_location)
        fns = [each.fn for each in post_commit_fns(self._plan, PlanContext(self._plan))]
        claims = OutputClaims([fn for fn in fns if isinstance(fn, ClaimsOutput)], coordinator, checkpoint.job)
        # Before the first epoch, because that epoch publishes what the last record names.
        claims.claim()
        with contextlib.closing(self._engine), contextlib.closing(early), contextlib.closing(marks):
            record = run_epochs(
                coordinator,
                driver,
                retries=self._settings.epoch_retries if retries is None else retries,
                stop=lambda last: self._stopping(requests),
                on_commit=lambda last: self._committed(last, driver, early, marks, claims, tables),
                on_sweep=lambda last, swept: self._clean_up(last, checkpoint.staging_location),
                on_failure=lambda last, failures, error: self._no_retry_after_cancel(error),
            )
            # It runs more jobs on Spark, and a cancelled pipeline must end at once.
            if not self._result.cancelling:
                driver.finalize_bundles(record)
        # The loop ends only if the state is done or a stop was requested; all other ends are exceptions.
        if not record.state.done:
            return str(PipelineState.STOPPED)
        return str(PipelineState.DRAINED if record.state.draining else PipelineState.DONE)

    def _stopping(self, requests: RequestWatch) -> bool:
        self._result.obey(requests.look())
        return self._result.stopping

    def _committed(
        self,
        record: CommitRecord,
        driver: Driver,
        early: EarlyPublisher,
        marks: CompleteMarks,
        claims: OutputClaims,
        tables: TableRequestWatch,
    ) -> None:
        trace("committed", epoch=record.number)
        # Claim outputs before a sweep that follows this commit, because sinks delete files in it.
        claims.committed(record)
        early.committed(record)
        tables.committed()
        marks.committed(record)
        self._result.committed(record, driver.measured(record.number), driver.timings(record.number))
        self._reports.committed()

    def _no_retry_after_cancel(self, error: Exception) -> None:
        """Let the loop try an epoch again, unless it failed because it was cancelled."""
        if self._result.cancelling:
            raise error

    def _driver(
        self,
        state_folder: str,
        staging: str | None,
        dropped: Collection[str] = (),
        table_requests: Callable[[], Collection[TableRequest]] = lambda: (),
    ) -> Driver:
        settings = self._settings
        return Driver(
            self._plan,
            self._engine,
            Residuals(PlanContext(self._plan)),
            partitions=min(settings.spark_parallelism or task_slots(self._spark), KEY_GROUPS),
            task_slots=task_slots(self._spark),
            limits=EpochLimits(
                settings.epoch_seconds,
                settings.epoch_max_records,
                settings.epoch_max_bytes,
                # On an object store each epoch costs money and takes about 100 ms, so shorter epochs would not publish
                # sooner.
                may_end_early="://" not in state_folder,
            ),
            state_folder=state_folder,
            staging=staging,
            name="penstock",
            dropped=dropped,
            draining=lambda: self._result.draining,
            table_requests=table_requests,
        )

    def _try_batch_epoch(self, driver: Driver, record: CommitRecord) -> EpochState | None:
        """Run one epoch of a batch. It is repeated only if Spark mixed up attempts; a user's error is final."""
        tries = self._settings.epoch_retries + 1
        for tried in range(1, tries + 1):
            # Another nonce in each try: files that an aborted try has staged have other names.
            attempt = Attempt(self._name, 1, record.number + 1, uuid.uuid4().hex[:12])
            try:
                return driver(record, attempt)
            except EpochAbortedError as error:
                aborted = error
                logger.warning("try %d of %d was aborted: %s", tried, tries, error)
        raise EpochFailedError(
            f"the batch was aborted {tries} times, the last time because {aborted}"
        ) from aborted

    def _clean_up(self, record: CommitRecord, staging: str) -> None:
        """Let sinks delete what failed epochs staged. This driver has committed `record` itself."""
        with offering_staging(staging):
            for clean in clean_ups(self._plan, record):
                clean(self._name)


@contextlib.contextmanager
def _temporary_checkpoint() -> Iterator[Checkpoint]:
    with _temporary_folder() as folder:
        yield Checkpoint.open(f"{folder}/checkpoint", fresh=True, key_groups=KEY_GROUPS)


@contextlib.contextmanager
def _temporary_folder() -> Iterator[Path]:
    """A folder that only this user can read, because it contains rows. If it is left, the next driver deletes it."""
    private = make_private_folder(Path(tempfile.gettempdir()))
    try:
        yield private.path
    finally:
        private.remove()


def _in_memory(number: int, state: EpochState) -> CommitRecord:
    return CommitRecord(number, 1, "batch", None, 0, "epoch", number - 1, state)
