"""Run an epoch's levels as one Spark job, or as two after a quiet epoch (`tasks/quiet_levels.py`).

The engine needs two operations of Spark: to run tasks and to exchange blocks. A level is a `mapPartitionsWithIndex`,
an exchange is a shuffle of (target, frame) pairs by target. `SparkJvm` names the stages for Spark's UI and deletes the
files of an exchange after its epoch.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError

from penstock.runner.planning.plan import Plan
from penstock.runner.protocol.errors import EpochAbortedError
from penstock.runner.protocol.frames import Frame
from penstock.runner.protocol.pins import BlockReceipt, TaskResult, pin_attempts
from penstock.runner.spark.diagnosis import job_failure, jvm_lost, session_ended
from penstock.runner.spark.errors import SparkError
from penstock.runner.spark.exchange import exchange
from penstock.runner.spark.freeze_imports import freeze_imports
from penstock.runner.spark.jvm import SparkJvm, has_broken_worker_factory, use_new_worker_factory
from penstock.runner.spark.session import jvm_of
from penstock.runner.tasks.epoch import EpochInput, TaskReport
from penstock.runner.tasks.outbox import Packet
from penstock.runner.tasks.quiet_levels import QuietLevels, frames_by_target
from penstock.runner.tasks.shared_inputs import check_inputs

MAX_DESCRIPTION = 200
"""Characters of a level's step names in Spark's UI."""


class SparkEngine:
    """Runs the epochs of one plan on a Spark context."""

    def __init__(self, spark_context: Any, plan: Plan) -> None:
        self._context = spark_context
        self._plan = plan
        # Broadcast the plan once. As a part of the tasks' closure, the plan with the user's pickled DoFns would be sent
        # with every task of every epoch.
        self._plan_broadcast = self._context.broadcast(plan)
        self._empty_rdds: dict[int, Any] = {}
        self._jvm = SparkJvm(spark_context)
        self._quiet_levels = QuietLevels(plan)
        self._descriptions = [_description(plan, level) for level in range(plan.depth)]

    def run(self, epoch: EpochInput, description: str, group: str) -> list[TaskReport]:
        """Run one epoch; return the reports of all its tasks.

        Raises:
            EpochAbortedError: the tasks did not all work on the same attempts of each other, or not on each input.
            SparkError: Spark failed; the message says why and what to do.
        """
        try:
            return self._run(epoch, description, group)
        except Py4JJavaError as error:
            if not has_broken_worker_factory(str(error)):
                raise self._explain(error) from error
            # Repeat the job once, immediately, and do not count it as a failed epoch: the tasks have not started, and
            # the cause is now removed.
            use_new_worker_factory(self._context)
        except (Py4JError, OSError) as error:
            # Exceptions of user code come back in reports, so these are of Spark, its JVM or the connection to it.
            raise self._explain(error) from error
        try:
            return self._run(epoch, description, group)
        except (Py4JError, OSError) as error:
            raise self._explain(error) from error

    def _run(self, epoch: EpochInput, description: str, group: str) -> list[TaskReport]:
        self._context.setJobGroup(group, description, interruptOnCancel=True)

        def collect(levels: range, packets: Sequence[Packet]) -> list[Packet]:
            return self._collect(levels, packets, epoch, description)

        if epoch.limits.is_quiet and self._plan.depth > 1:
            packets = self._quiet_levels.run(epoch, collect)
        else:
            packets = collect(range(self._plan.depth), [])
        # The last level sends control records only.
        frames = [Frame.unpack(data) for _, data in packets]
        return check_reports(frames, [epoch.partitions] * self._plan.depth)

    def _collect(
        self, levels: range, packets: Sequence[Packet], epoch: EpochInput, description: str
    ) -> list[Packet]:
        """Run neighbouring levels as one job, with the packets of the level above; return the last level's packets."""
        n = epoch.partitions
        exchanges = []
        with self._jvm.naming() as name:
            rdd = self._rdd_of(packets, n) if levels.start else self._task_rdd(n)
            try:
                for level in levels:
                    if level > levels.start:
                        name(f"{description}, {self._descriptions[level - 1]}")
                        # One job for all levels: Spark starts a stage of tasks only when the level above has ended,
                        # and needs no round trip to this driver between them.
                        rdd = exchange(rdd, n, self._jvm.serializer_of_blocks)
                        exchanges.append(rdd)
                    rdd = rdd.mapPartitionsWithIndex(
                        _level_function(self._plan_broadcast, level, self._input_of_level(level, epoch))
                    )
                name(f"{description}, {self._descriptions[levels[-1]]}")
                # The result is small: no data reaches the driver, except the elements that the record must store, and
                # what the first epoch after quiet ones has read.
                return list(rdd.collect())
            finally:
                self._jvm.delete_shuffles(exchanges)

    def _explain(self, error: Exception) -> SparkError:
        """Return the error that explains a failure of Spark, for an error of py4j or of a socket."""
        # A `Py4JJavaError` is an exception in the JVM. Any other error of py4j means that the JVM did not answer.
        jvm_failed = isinstance(error, Py4JJavaError) and not session_ended(str(error))
        jvm = jvm_of(self._context)
        # A JVM that is ending may still answer, and closes its connections before it has ended.
        exit_code = jvm.exit_code(wait_seconds=0.5 if jvm_failed else 5.0) if jvm else None
        if jvm_failed and exit_code is None:
            return job_failure(str(error), self._jvm.stage_name)
        return jvm_lost(exit_code, jvm.log if jvm else "", jvm.heap if jvm else "not known")

    def _input_of_level(self, level: int, epoch: EpochInput) -> EpochInput:
        """Return the epoch with the input of this level's steps only."""
        steps = self._plan.steps_at(level)
        return replace(epoch, inputs=tuple(task.for_steps(steps) for task in epoch.inputs))

    def _task_rdd(self, n: int) -> Any:
        """Return an RDD of `n` partitions, from which level 0 gets its tasks. Its elements are not used."""
        if n not in self._empty_rdds:
            self._empty_rdds[n] = self._context.parallelize(range(n), n)
        return self._empty_rdds[n]

    def _rdd_of(self, packets: Sequence[Packet], n: int) -> Any:
        """Return an RDD of `n` partitions with the packets for each of them."""
        frames = frames_by_target(packets, n)
        return self._context.parallelize(list(enumerate(frames)), n).flatMap(_packets)

    def finalize(self, epoch: int, nonces: frozenset[str], partitions: int, group: str) -> frozenset[str]:
        """Run the bundle finalizers of these task attempts. Return the attempts whose processes were reached."""
        self._context.setJobGroup(group, "bundle finalizers", interruptOnCancel=True)
        found = (
            self._task_rdd(partitions)
            .mapPartitions(_finalizer_function(self._plan_broadcast, epoch, nonces))
            .collect()
        )
        return frozenset(found)

    def close(self) -> None:
        """Delete the broadcast plan in Spark. If the session has ended, there is nothing to delete."""
        with contextlib.suppress(Exception):
            self._plan_broadcast.destroy()


def _description(plan: Plan, level: int) -> str:
    """Return the name of a level in Spark's UI."""
    steps = "; ".join(stage.label for stage in plan.at(level))
    short = steps if len(steps) <= MAX_DESCRIPTION else steps[: MAX_DESCRIPTION - 1] + "…"
    return f"level {level + 1} of {plan.depth}: {short or 'reports'}"


def _packets(frames_of_target: tuple[int, list[bytes]]) -> Iterator[Packet]:
    target, frames = frames_of_target
    return ((target, frame) for frame in frames)


def check_reports(frames: Iterable[Frame], shape: list[int]) -> list[TaskReport]:
    """Return the reports in control frames, if they all belong to one consistent run of the epoch.

    If a task failed, only the reports of failures are returned: the levels below it are not complete.

    Raises:
        EpochAbortedError: see `pin_attempts`; or the input of a task did not come from one consistent run.
    """
    controls = [TaskResult(f.level, f.partition, f.nonce, pickle.loads(f.payload)) for f in frames]
    # Look for failures before the attempts are compared: after a failure the levels below have taken no input, which
    # would look like a lost attempt.
    failed = [c.payload for c in controls if c.payload.failure is not None]
    if failed:
        return failed
    taken = [
        BlockReceipt(producer.level, producer.partition, producer.nonce, by=control.nonce)
        for control in controls
        for producer in control.payload.inputs
    ]
    pins = pin_attempts(controls, taken, shape)
    reports: list[TaskReport] = [control.payload for control in pins.values()]
    refuse_problems(reports)
    check_inputs((report.input_index for report in reports if report.level == 0), shape[0])
    # By input, so that the residuals of the next record have the order of this one, and their inputs the same indices.
    return sorted(reports, key=lambda report: (report.level, report.input_index))


def refuse_problems(reports: Iterable[TaskReport]) -> None:
    """Abort the epoch if the input of a task did not come from one consistent run."""
    for report in reports:
        if report.problem:
            raise EpochAbortedError(report.problem)


def _finalizer_function(plan_broadcast: Any, epoch: int, nonces: frozenset[str]) -> Any:
    """Return the function of the tasks that run bundle finalizers."""

    def run(_: Iterator[Any]) -> Iterator[str]:
        from penstock.runner.tasks.finalize import finalize_bundles

        yield from finalize_bundles(plan_broadcast.value, epoch, nonces)

    return run


def _level_function(plan_broadcast: Any, level: int, epoch: EpochInput) -> Any:
    """Return the function that runs one level's tasks. Spark pickles it, so it holds no engine."""

    def run(partition: int, packets: Iterator[Any]) -> Iterator[tuple[int, bytes]]:
        from penstock.runner.harness.idle_wait import NoOtherReaders
        from penstock.runner.spark.idle_tasks import IdleTasks
        from penstock.runner.spark.input_exchange import input_of, this_process
        from penstock.runner.spark.other_readers import other_readers
        from penstock.runner.tasks.help import NoHelp
        from penstock.runner.tasks.task import run_level
        from penstock.runner.tasks.worker_logs import apply_levels

        plan = plan_broadcast.value
        apply_levels(plan.logging)
        process = this_process()
        index = partition if level else input_of(partition, epoch, process)
        frames = () if level == 0 else (data for _, data in packets)
        others = NoOtherReaders() if level else other_readers(index, epoch)
        # `yield from` forwards `close`: Spark closes the iterator if it needs no more output of the task
        # (`handover.iterate`).
        help = NoHelp() if level else IdleTasks(index, epoch)
        yield from run_level(
            plan,
            level,
            partition,
            epoch,
            frames,
            input_index=index,
            process=process,
            others=others,
            help=help,
        )
        sys.stdout.flush()  # the daemon has made it line-buffered, and a worker ends without flushing
        freeze_imports()

    return run
