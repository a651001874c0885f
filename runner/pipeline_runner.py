"""`PySparkRunner`: a Beam `PipelineRunner` that runs pipelines as Spark jobs."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import uuid
from collections.abc import Collection
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions, TypeOptions
from apache_beam.options.value_provider import RuntimeValueProvider
from apache_beam.portability.api import beam_runner_api_pb2 as api
from apache_beam.runners.pipeline_utils import group_by_key_input_visitor
from apache_beam.runners.runner import PipelineRunner, PipelineState
from apache_beam.transforms import environments

from penstock.attempt import Attempt
from penstock.runner.driver.cleanup import clean_ups
from penstock.runner.driver.compatibility import check_compatibility
from penstock.runner.driver.driver import Driver
from penstock.runner.driver.residuals import Residuals
from penstock.runner.harness.bundle import KNOWN_BEAM, PlanContext
from penstock.runner.options import PySparkOptions, problems
from penstock.runner.planning import graph
from penstock.runner.planning.checks import refuse_unsupported
from penstock.runner.planning.plan import Plan
from penstock.runner.protocol.coordinator import Coordinator
from penstock.runner.protocol.errors import CheckpointError, EpochAbortedError, EpochFailedError
from penstock.runner.protocol.loop import run_epochs
from penstock.runner.protocol.record import CommitRecord, EpochState
from penstock.runner.result import PySparkPipelineResult
from penstock.runner.spark.session import context, context_of, slots
from penstock.runner.store.keys import KEY_GROUPS
from penstock.runner.tasks.epoch import EpochLimits

logger = logging.getLogger(__name__)


class PySparkRunner(PipelineRunner):
    """Runs Beam pipelines on Spark.

    `PySparkRunner()` uses the active Spark context, else it starts one of its own from `--spark_master` and
    `--spark_conf`; `PySparkRunner(spark=…)` uses the `SparkSession` or `SparkContext` that it is given and
    leaves it as it is. Batch pipelines run to their end; a pipeline with an unbounded PCollection (or
    `--streaming`) runs in epochs and needs `--checkpoint_dir`. Any other pipeline that is given one runs in
    epochs too: it can be stopped or killed, and goes on where it was.
    """

    def __init__(self, spark: Any = None) -> None:
        super().__init__()
        self._spark = spark

    def is_fnapi_compatible(self) -> bool:
        """Pipelines come as portable protos."""
        return True

    def default_environment(self, options: PipelineOptions) -> environments.Environment:
        """Workers run in Spark's own Python processes."""
        return environments.EmbeddedPythonEnvironment.default()

    def run_pipeline(self, pipeline: beam.Pipeline, options: PipelineOptions) -> PySparkPipelineResult:
        """Start a pipeline and return at once.

        Raises:
            ValueError: an option has a bad value; all of them are named.
            UnsupportedPipelineError: the pipeline uses what this runner does not run.
            CheckpointError: the checkpoint cannot be used as asked.
        """
        RuntimeValueProvider.set_runtime_options({})
        pipeline.visit(
            group_by_key_input_visitor(not options.view_as(TypeOptions).allow_non_deterministic_key_coders)
        )
        proto = pipeline.to_runner_api(default_environment=self.default_environment(options))
        return self.run_proto(proto, options)

    def resumes(self, options: PipelineOptions) -> bool:
        """Return whether a pipeline with these options would continue from a checkpoint. Nothing is created.

        The first epoch of a pipeline fixes where its sources start, so a checkpoint without one does not count.

        Raises:
            CheckpointError: the folder is not empty and holds no checkpoint, or its last record cannot be read.
        """
        settings = options.view_as(PySparkOptions)
        folder = os.path.abspath(settings.checkpoint_dir or "")
        if not settings.checkpoint_dir or not os.path.isdir(folder) or not os.listdir(folder):
            return False
        record = opened_checkpoint(settings).last_record()
        return record is not None and record.epochs > 0

    def run_proto(self, proto: api.Pipeline, options: PipelineOptions) -> PySparkPipelineResult:
        """Start a pipeline given as a proto; see `run_pipeline`."""
        _check_beam()
        settings = options.view_as(PySparkOptions)
        if wrong := problems(settings):
            raise ValueError("; ".join(wrong))
        asked = settings.checkpoint_dir or options.view_as(StandardOptions).streaming
        streaming = bool(asked) or graph.is_streaming(proto)
        refuse_unsupported(proto, streaming=streaming)
        plan = graph.build_plan(proto, streaming=streaming)
        if not streaming:
            return self._start_batch(plan, settings)
        if plan.script and not settings.checkpoint_dir:
            return self._start_script(plan, settings)
        return self._start_stream(plan, settings)

    def _start_batch(self, plan: Plan, settings: PySparkOptions) -> PySparkPipelineResult:
        spark = self._context(settings)
        result = PySparkPipelineResult()
        work = _Work(spark, plan, settings, result)
        result.run_in_background(work.batch, work.cancel)
        return result

    def _start_script(self, plan: Plan, settings: PySparkOptions) -> PySparkPipelineResult:
        result = PySparkPipelineResult(Residuals(PlanContext(plan)))
        work = _Work(self._context(settings), plan, settings, result)
        result.run_in_background(work.script, work.cancel)
        return result

    def _start_stream(self, plan: Plan, settings: PySparkOptions) -> PySparkPipelineResult:
        checkpoint = opened_checkpoint(settings)
        planned = PlanContext(plan)
        check_compatibility(checkpoint.last_record(), planned, settings.drop_state or ())
        spark = self._context(settings)
        result = PySparkPipelineResult(Residuals(planned))
        work = _Work(spark, plan, settings, result)
        result.run_in_background(lambda: work.stream(checkpoint), work.cancel)
        return result

    def _context(self, settings: PySparkOptions) -> Any:
        if self._spark is not None:
            return context_of(self._spark)
        conf = dict(setting.split("=", 1) for setting in settings.spark_conf or ())
        return context(settings.spark_master, conf)


class _Work:
    """What the driver thread of one pipeline does."""

    def __init__(
        self, spark: Any, plan: Plan, settings: PySparkOptions, result: PySparkPipelineResult
    ) -> None:
        from penstock.runner.spark.engine import SparkEngine

        self._spark = spark
        self._plan = plan
        self._settings = settings
        self._result = result
        self._engine = SparkEngine(spark, plan)
        self._job = ""

    def cancel(self) -> None:
        """Cancel the Spark job that runs."""
        self._spark.cancelJobGroup(f"penstock-{self._job}")

    def batch(self) -> str:
        """Run to the end; return the final state."""
        self._job = "batch-" + uuid.uuid4().hex[:12]
        driver = self._driver(Residuals(PlanContext(self._plan)), folder="")
        record = _in_memory(1, EpochState())
        with contextlib.closing(self._engine):
            while not record.state.done and not self._result.stopping:
                state = self._tried(driver, record)
                if state is not None:
                    record = _in_memory(record.number + 1, state)
                    self._result.committed(record, driver.measured(record.number))
        return str(PipelineState.DONE if record.state.done else PipelineState.CANCELLED)

    def script(self) -> str:
        """Run a TestStream, which ends by itself: its checkpoint goes with it, and what fails, fails as in batch."""
        from penstock.runner.store.checkpoint import Checkpoint

        with tempfile.TemporaryDirectory(prefix="penstock-", ignore_cleanup_errors=True) as folder:
            checkpoint = Checkpoint.open(f"{folder}/checkpoint", fresh=True, key_groups=KEY_GROUPS)
            try:
                return self.stream(checkpoint, retries=0)
            except EpochFailedError as error:
                raise error.__cause__ or error from None

    def stream(self, checkpoint: Any, retries: int | None = None) -> str:
        """Run epochs until the pipeline is done, stopped or superseded; return the final state."""
        self._job = checkpoint.job
        coordinator = Coordinator(checkpoint)
        record = coordinator.take_over()
        logger.info("took over %s with record %d", checkpoint.folder, record.number)
        self._result.committed(record)
        if record.state.done:
            logger.warning(
                "the pipeline of %s has ended before, so there is nothing to do; to read more, give "
                "--checkpoint_dir another folder",
                checkpoint.folder,
            )
        driver = self._driver(
            Residuals(PlanContext(self._plan)),
            folder=checkpoint.state_folder,
            dropped=self._settings.drop_state or (),
        )
        with contextlib.closing(self._engine):
            record = run_epochs(
                coordinator,
                driver,
                retries=self._settings.epoch_retries if retries is None else retries,
                stop=lambda last: self._result.stopping,
                on_commit=lambda last: self._result.committed(last, driver.measured(last.number)),
                on_sweep=lambda last, swept: self._clean_up(last),
                on_failure=lambda last, failures, error: self._give_up(error),
            )
        if not record.state.done:
            return str(PipelineState.STOPPED)
        return str(PipelineState.DRAINED if record.state.draining else PipelineState.DONE)

    def _give_up(self, error: Exception) -> None:
        """Let an epoch be tried again, unless it failed because it was cancelled."""
        if self._result.cancelling:
            raise error

    def _driver(self, residuals: Residuals, folder: str, dropped: Collection[str] = ()) -> Driver:
        settings = self._settings
        return Driver(
            self._plan,
            self._engine,
            residuals,
            partitions=min(settings.spark_parallelism or slots(self._spark), KEY_GROUPS),
            limits=EpochLimits(settings.epoch_seconds, settings.epoch_max_records, settings.epoch_max_bytes),
            state_folder=folder,
            name="penstock",
            dropped=dropped,
            draining=lambda: self._result.draining,
        )

    def _tried(self, driver: Driver, record: CommitRecord) -> EpochState | None:
        """One epoch of a batch pipeline; only what Spark mixed up is tried again, a user's error is final."""
        for tried in range(self._settings.epoch_retries + 1):
            attempt = Attempt(self._job, 1, record.number + 1, uuid.uuid4().hex[:12])
            try:
                return driver(record, attempt)
            except EpochAbortedError as error:
                aborted = error
                logger.warning("try %d was aborted: %s", tried + 1, error)
        raise EpochFailedError(f"aborted {self._settings.epoch_retries + 1} times") from aborted

    def _clean_up(self, record: CommitRecord) -> None:
        """Let sinks delete what failed epochs staged; only called after a commit of our own."""
        for clean in clean_ups(self._plan, record):
            clean(self._job)


def _in_memory(number: int, state: EpochState) -> CommitRecord:
    return CommitRecord(number, 1, "batch", None, 0, "epoch", number - 1, state)


def opened_checkpoint(settings: PySparkOptions) -> Any:
    """Return the checkpoint by its absolute path: workers may run in other folders than the driver.

    Raises:
        CheckpointError: there is none, or it cannot be used as asked.
    """
    from penstock.runner.store.checkpoint import Checkpoint

    if not settings.checkpoint_dir:
        raise CheckpointError(
            "a streaming pipeline needs --checkpoint_dir: a folder that outlives the driver, for example "
            "--checkpoint_dir=/var/lib/penstock/orders"
        )
    folder = os.path.abspath(settings.checkpoint_dir)
    return Checkpoint.open(folder, fresh=settings.fresh, key_groups=KEY_GROUPS)


def _check_beam() -> None:
    if not beam.__version__.startswith(KNOWN_BEAM):
        raise RuntimeError(
            f"this version of penstock runs with apache-beam {', '.join(v + 'x' for v in KNOWN_BEAM)}, "
            f"not {beam.__version__}: it uses Beam's worker internals. Install a matching version."
        )
