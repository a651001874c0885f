"""`PySparkRunner`: a Beam `PipelineRunner` that runs pipelines as Spark jobs."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import (
    GoogleCloudOptions,
    PipelineOptions,
    SetupOptions,
    StandardOptions,
    TypeOptions,
)
from apache_beam.options.value_provider import RuntimeValueProvider
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2 as api
from apache_beam.runners.pipeline_utils import group_by_key_input_visitor
from apache_beam.runners.runner import PipelineRunner
from apache_beam.transforms import environments

from penstock.compat import StrEnum
from penstock.errors import UsageError
from penstock.runner.driver.compatibility import check_compatibility, state_for_plan
from penstock.runner.driver.other_driver import (
    refuse_another_pipeline,
    refuse_while_another_runs,
    warn_of_another_pipeline,
)
from penstock.runner.driver.read_on import read_on
from penstock.runner.driver.residuals import Residuals
from penstock.runner.harness.bundle import KNOWN_BEAM, PlanContext, dofn_specs_cached
from penstock.runner.job import Job
from penstock.runner.openlineage.client import identity_of, new_run_id, open_client, reporter_of
from penstock.runner.openlineage.pipeline_datasets import PipelineDatasets
from penstock.runner.openlineage.run_reporter import NoReports, Reports
from penstock.runner.options import PySparkOptions, problems
from penstock.runner.packages import Packages
from penstock.runner.planning import graph
from penstock.runner.planning.checks import refuse_unsupported
from penstock.runner.planning.plan import Plan
from penstock.runner.planning.worker_logging import worker_logging
from penstock.runner.protocol.errors import CheckpointError
from penstock.runner.protocol.record import CommitRecord
from penstock.runner.result import PySparkPipelineResult
from penstock.runner.spark.executor_check import check_executors
from penstock.runner.spark.session import begin_session, context_of
from penstock.runner.store.checkpoint import Checkpoint
from penstock.runner.store.drivers import Pipeline
from penstock.runner.store.keys import KEY_GROUPS
from penstock.runner.store.rewind_note import RewindNote
from penstock.timeline import trace

logger = logging.getLogger(__name__)

_INTERACTIVE_CACHE = "WriteCache_"
"""Part of the names of the transforms that Beam's interactive runner adds (`caching/reify.py`, read in Beam 2.77)."""


class Start(StrEnum):
    """The effect of the start of a pipeline."""

    BEGINS = "begins"
    CONTINUES = "continues"
    READS_ON = "reads on"
    """It has read to its end, and the end was moved or removed since."""
    HAS_ENDED = "has ended"
    """It has read to its end, so a start reads nothing."""


class PySparkRunner(PipelineRunner):
    """Runs Beam pipelines on Spark.

    `PySparkRunner()` uses the active Spark context; without one it starts its own from `--spark_master` and
    `--spark_conf`. `PySparkRunner(spark=…)` uses the given `SparkSession` or `SparkContext` and does not stop it.

    Batch pipelines run to their end. A pipeline with an unbounded PCollection (or with `--streaming`) runs in
    epochs and keeps its checkpoint in `--checkpoint_dir`. A bounded pipeline with `--checkpoint_dir` runs in epochs
    too: it can be stopped or killed, and continues from its checkpoint.
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
            UsageError: options have bad values (all are named), or cannot be used together.
            UnsupportedPipelineError: the pipeline uses what this runner does not run.
            CheckpointError: the checkpoint cannot be used as asked.
        """
        with self._session(options):
            proto = self._proto_of(pipeline, options)
            # `run_proto` finds the session that is starting, and shares it. Call this public method, because subclasses
            # may override it.
            datasets = PipelineDatasets.of(pipeline)
            return self.run_proto(proto, options, datasets)

    def _proto_of(self, pipeline: beam.Pipeline, options: PipelineOptions) -> api.Pipeline:
        RuntimeValueProvider.set_runtime_options({})
        # Beam's own runners do the same: it gives the input of each GroupByKey the type of a pair, and refuses keys
        # whose coder is not deterministic.
        pipeline.visit(
            group_by_key_input_visitor(not options.view_as(TypeOptions).allow_non_deterministic_key_coders)
        )
        with dofn_specs_cached():
            return pipeline.to_runner_api(default_environment=self.default_environment(options))

    def resumes(self, options: PipelineOptions) -> bool:
        """Return whether a pipeline with these options would continue from a checkpoint. Nothing is created.

        The first epoch of a pipeline fixes where its sources start, so a checkpoint without one does not count.

        Raises:
            CheckpointError: the folder is not empty and holds no checkpoint, or its last record cannot be read.
        """
        settings = options.view_as(PySparkOptions)
        if not settings.checkpoint_dir or Checkpoint.is_empty(settings.checkpoint_dir):
            return False
        record = open_checkpoint(settings).last_record()
        return record is not None and record.epochs > 0

    def check(self, pipeline: beam.Pipeline) -> Start:
        """Check what does not need Spark: the options, and whether the checkpoint fits. Nothing is created.

        Returns what a start would do. Another driver may run the pipeline at the same time.

        Raises:
            UsageError: options have bad values; all are named.
            CheckpointError: the checkpoint folder cannot be used, or belongs to another pipeline.
        """
        options = pipeline._options  # Beam's Pipeline has no public property for its options
        settings = options.view_as(PySparkOptions)
        if wrong := problems(settings):
            raise UsageError("; ".join(wrong))
        folder = settings.checkpoint_dir
        if folder and Checkpoint.is_empty(folder):
            Checkpoint.check_new(folder)
        elif folder:
            proto = self._proto_of(pipeline, options)
            plan = _plan(proto, settings, options)
            return _check_fit(open_checkpoint(settings), plan, settings, _described(proto, options))[1]
        return Start.BEGINS

    def run_proto(
        self, proto: api.Pipeline, options: PipelineOptions, datasets: PipelineDatasets | None = None
    ) -> PySparkPipelineResult:
        """Start a pipeline given as a proto; see `run_pipeline`. `datasets`: its datasets, for `--openlineage`."""
        with self._session(options) as session:
            return self._run_proto(proto, options, session, datasets or PipelineDatasets())

    def _run_proto(
        self,
        proto: api.Pipeline,
        options: PipelineOptions,
        session: Callable[[], Any],
        datasets: PipelineDatasets,
    ) -> PySparkPipelineResult:
        settings = options.view_as(PySparkOptions)
        # Everything that can be checked without Spark comes first, so that a mistake is reported at once.
        plan = _plan(proto, settings, options)
        described = _described(proto, options)
        checkpoint = _compatible_checkpoint(plan, settings, described)
        packages = Packages.of(options.view_as(SetupOptions))
        # Called only for its checks: before Spark runs, the master is not known, and it decides where the logs go.
        worker_logging(options, to_driver=False)
        client = open_client() if settings.openlineage else None
        trace("planned")
        spark = session()
        trace("got Spark")
        if plan.streaming and checkpoint is None and not plan.script:
            _check_temporary_checkpoint(spark)
        check_executors(spark)  # last, because it may wait for the cluster
        logs = worker_logging(options, to_driver=not str(spark.master).startswith("local"))
        plan = replace(plan, program=packages.ship(spark, plan.program), logging=logs)
        result = PySparkPipelineResult(Residuals(PlanContext(plan)))
        reports: Reports = NoReports()
        if client is not None:
            run = identity_of(settings.openlineage, new_run_id(), spark.version, streaming=plan.streaming)
            seconds = settings.openlineage_seconds
            reports = reporter_of(client, run, datasets, result.progress, seconds=seconds)
        job = Job(spark, plan, settings, result, described, reports)
        work = _run_method(job, plan, checkpoint)
        result.run_in_background(work, job.cancel, streaming=plan.streaming)
        if not plan.streaming and _is_interactive(proto):
            result.wait_until_finish()
        return result

    @contextlib.contextmanager
    def _session(self, options: PipelineOptions) -> Iterator[Callable[[], Any]]:
        """Start Spark while the pipeline is translated and planned; yield a function that waits for its context.

        If the pipeline is refused, a session that was started for it ends.
        """
        _check_beam()
        settings = options.view_as(PySparkOptions)
        if wrong := problems(settings):
            raise UsageError("; ".join(wrong))
        if self._spark is not None:
            yield lambda: context_of(self._spark)
            return
        conf = dict(setting.split("=", 1) for setting in settings.spark_conf or ())
        start = begin_session(settings.spark_master, conf)
        try:
            yield start.context
        except BaseException:
            start.release()
            raise


def _plan(proto: api.Pipeline, settings: PySparkOptions, options: PipelineOptions) -> Plan:
    """Return the plan of a pipeline; with a checkpoint folder also a bounded pipeline runs in epochs."""
    in_epochs = settings.checkpoint_dir or options.view_as(StandardOptions).streaming
    streaming = bool(in_epochs) or graph.is_streaming(proto)
    refuse_unsupported(proto, streaming=streaming)
    return graph.build_plan(proto, streaming=streaming)


def _described(proto: api.Pipeline, options: PipelineOptions) -> Pipeline:
    """Return the pipeline in the words of its user: `--job_name`, and what its sources show as their identity."""
    payloads = (
        api.LabelledPayload.FromString(item.payload)
        for transform in proto.components.transforms.values()
        for item in transform.display_data
        if item.urn == common_urns.StandardDisplayData.DisplayData.LABELLED.urn
    )
    reads = sorted({each.string_value for each in payloads if each.key == "identity" and each.string_value})
    return Pipeline(options.view_as(GoogleCloudOptions).job_name or "", tuple(reads))


def _compatible_checkpoint(plan: Plan, settings: PySparkOptions, described: Pipeline) -> Checkpoint | None:
    """Open the checkpoint and check that the pipeline can continue from it; None without `--checkpoint_dir`.

    Raises:
        CheckpointError: it is the checkpoint of another pipeline, or does not fit.
        DriverRunsError: another driver runs the pipeline, and `--take_over` is not given.
    """
    if not settings.checkpoint_dir:
        return None
    checkpoint = open_checkpoint(settings)
    last, _ = _check_fit(checkpoint, plan, settings, described)
    if not settings.take_over:
        refuse_while_another_runs(checkpoint, last)
    return checkpoint


def _check_fit(
    checkpoint: Checkpoint, plan: Plan, settings: PySparkOptions, described: Pipeline
) -> tuple[CommitRecord | None, Start]:
    """Return the last record and what a start does, after the check that the pipeline can continue from it."""
    RewindNote(checkpoint).refuse()
    last, context = checkpoint.last_record(), PlanContext(plan)
    dropped = settings.drop_state or ()
    try:
        check_compatibility(last, context, dropped)
    except CheckpointError as error:
        refuse_another_pipeline(checkpoint, last, described, error)
        raise
    warn_of_another_pipeline(checkpoint, last, described)
    if last is None:
        return None, Start.BEGINS
    # Before anything runs, because it may refuse the pipeline. The job calls it again after the take-over.
    further = read_on(state_for_plan(last.state, plan, dropped), plan, Residuals(context))
    if last.state.done:
        return last, Start.HAS_ENDED if further is None else Start.READS_ON
    return last, Start.CONTINUES if last.epochs else Start.BEGINS


def _run_method(job: Job, plan: Plan, checkpoint: Checkpoint | None) -> Callable[[], str]:
    if checkpoint is not None:
        return lambda: job.run_stream(checkpoint)
    if not plan.streaming:
        return job.run_batch
    return job.run_test_stream if plan.script else job.run_stream_without_checkpoint_dir


def _is_interactive(proto: api.Pipeline) -> bool:
    """Whether Beam's interactive runner made this pipeline.

    `interactive_beam.collect` and `show` read the cache that the pipeline writes as soon as `run()` returns (they
    expect a runner that blocks, as Beam's local runner does). Without waiting they show an empty DataFrame.
    """
    return any(_INTERACTIVE_CACHE in each.unique_name for each in proto.components.transforms.values())


def _check_temporary_checkpoint(spark: Any) -> None:
    """Warn that the checkpoint is temporary; on a cluster refuse it.

    Raises:
        UsageError: workers on other machines would not find the state that the pipeline stores in the folder.
    """
    if not str(spark.master).startswith("local"):
        raise UsageError(
            f"a streaming pipeline on the Spark master {spark.master} needs --checkpoint_dir: a URL of an object store "
            "or a folder that the driver and all executors share, for example --checkpoint_dir=s3://bucket/checkpoints"
        )
    logger.warning(
        "no --checkpoint_dir is given, so the checkpoint is in a temporary folder: when this pipeline is stopped or "
        "fails, the next start begins from the start. To continue instead, give --checkpoint_dir a folder that "
        "outlives this process"
    )


def open_checkpoint(settings: PySparkOptions) -> Checkpoint:
    """Open the checkpoint in `--checkpoint_dir`.

    Raises:
        CheckpointError: the folder cannot be used as asked; the message says what to do.
    """
    return Checkpoint.open(settings.checkpoint_dir, fresh=settings.fresh, key_groups=KEY_GROUPS)


def _check_beam() -> None:
    if not beam.__version__.startswith(KNOWN_BEAM):
        raise RuntimeError(
            f"this version of penstock runs with apache-beam {', '.join(v + 'x' for v in KNOWN_BEAM)}, "
            f"not {beam.__version__}: it uses Beam's worker internals. Install a matching version."
        )
