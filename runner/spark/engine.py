"""Run an epoch's levels as one Spark job.

Two primitives, *run tasks* and *exchange blocks*, are all that is asked of Spark: a level is a
`mapPartitionsWithIndex`, an exchange is a shuffle of (target, frame) pairs by target. What else there is to tell
Spark, words for its UI and which files it may delete, is `SparkKeeper`'s.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from penstock.runner.planning.plan import Plan
from penstock.runner.protocol.errors import EpochAbortedError
from penstock.runner.protocol.frames import Frame
from penstock.runner.protocol.pins import BlockReceipt, TaskResult, pinned
from penstock.runner.spark.freeze import settle
from penstock.runner.spark.jvm import SparkKeeper
from penstock.runner.tasks.epoch import EpochInput, TaskReport

WORDS = 200
"""How many characters of a level's steps are told to whoever watches Spark."""


class SparkEngine:
    """Runs the epochs of one plan on a Spark context."""

    def __init__(self, spark_context: Any, plan: Plan) -> None:
        self._context = spark_context
        self._plan = plan
        self._shipped = self._context.broadcast(plan)
        self._bare: dict[int, Any] = {}
        self._keeper = SparkKeeper(spark_context)
        self._words = [_words(plan, level) for level in range(plan.depth)]

    def run(self, epoch: EpochInput, description: str, group: str) -> list[TaskReport]:
        """Run one epoch; return the reports of all its tasks.

        Raises:
            EpochAbortedError: the tasks did not all work on the same attempts of each other.
            py4j errors: Spark failed.
        """
        self._context.setJobGroup(group, description, interruptOnCancel=True)
        n, depth = epoch.partitions, self._plan.depth
        exchanges = []
        with self._keeper.naming() as name:
            rdd = self._slots(n).mapPartitionsWithIndex(_level(self._shipped, 0, self._at(0, epoch)))
            try:
                for level in range(1, depth):
                    name(f"{description}, {self._words[level - 1]}")
                    rdd = rdd.partitionBy(n, _as_is)
                    exchanges.append(rdd)
                    rdd = rdd.mapPartitionsWithIndex(_level(self._shipped, level, self._at(level, epoch)))
                name(f"{description}, {self._words[-1]}")
                frames = [Frame.unpack(data) for _, data in rdd.collect()]
            finally:
                self._keeper.forget(exchanges)
        return checked(frames, [n] * depth)

    def _at(self, level: int, epoch: EpochInput) -> EpochInput:
        """The epoch as a level sees it, with what the steps of that level start from."""
        steps = self._plan.steps_at(level)
        return replace(epoch, inputs=tuple(task.for_steps(steps) for task in epoch.inputs))

    def _slots(self, n: int) -> Any:
        """An RDD of `n` partitions that hold nothing to speak of: what every epoch begins with."""
        if n not in self._bare:
            self._bare[n] = self._context.parallelize(range(n), n)
        return self._bare[n]

    def finalize(self, epoch: int, nonces: frozenset[str], partitions: int, group: str) -> frozenset[str]:
        """Run the bundle finalizers of these task attempts, as far as the tasks reach their processes."""
        self._context.setJobGroup(group, "bundle finalizers", interruptOnCancel=True)
        found = self._slots(partitions).mapPartitions(_finalizers(self._shipped, epoch, nonces)).collect()
        return frozenset(found)

    def close(self) -> None:
        """Free what the plan holds in Spark; if Spark has gone (somebody ended it too), there is nothing to free."""
        with contextlib.suppress(Exception):
            self._shipped.destroy()


def _words(plan: Plan, level: int) -> str:
    """The steps of a level, for people."""
    steps = "; ".join(stage.label for stage in plan.at(level))
    short = steps if len(steps) <= WORDS else steps[: WORDS - 1] + "…"
    return f"level {level + 1} of {plan.depth}: {short or 'reports'}"


def checked(frames: Iterable[Frame], shape: list[int]) -> list[TaskReport]:
    """The reports in control frames, if they all belong to one consistent run of the epoch.

    A report of a failure is handed on whatever else is missing: below a failed task nothing is complete.

    Raises:
        EpochAbortedError: see `pinned`; or a task says that its input did not fit together.
    """
    controls = [TaskResult(f.level, f.partition, f.nonce, pickle.loads(f.payload)) for f in frames]
    failed = [c.payload for c in controls if c.payload.failure is not None]
    if failed:
        return failed
    taken = [
        BlockReceipt(producer.level, producer.partition, producer.nonce, by=control.nonce)
        for control in controls
        for producer in control.payload.inputs
    ]
    pins = pinned(controls, taken, shape)
    reports: list[TaskReport] = [control.payload for control in pins.values()]
    refuse_problems(reports)
    return reports


def refuse_problems(reports: Iterable[TaskReport]) -> None:
    """Abort the epoch if a task's input did not fit together."""
    for report in reports:
        if report.problem:
            raise EpochAbortedError(report.problem)


def _as_is(target: int) -> int:
    return target


def _finalizers(shipped: Any, epoch: int, nonces: frozenset[str]) -> Any:
    """The function of the tasks that run bundle finalizers."""

    def run(_: Iterator[Any]) -> Iterator[str]:
        from penstock.runner.tasks.finalize import finalize_bundles

        yield from finalize_bundles(shipped.value, epoch, nonces)

    return run


def _level(shipped: Any, level: int, epoch: EpochInput) -> Any:
    """The function of one level's tasks."""

    def run(partition: int, packets: Iterator[Any]) -> Iterator[tuple[int, bytes]]:
        from penstock.runner.tasks.task import run_level

        frames = () if level == 0 else (data for _, data in packets)
        yield from run_level(shipped.value, level, partition, epoch, frames)
        settle()

    return run
