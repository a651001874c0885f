"""The runner's options as parameters of their own: the same rules, help and messages as a template's.

`PySparkRunner` is named here and nowhere imported: Beam loads it by its name when a pipeline is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from penstock.templates.parameter import Parameter, Value, show

Values: TypeAlias = Mapping[str, Value | tuple[Value, ...]]

RUNNER_NAME = "penstock.runner.PySparkRunner"

ONCE = frozenset({"fresh", "drop_state"})
"""Options that are right for one start only: given as flags, never by a file or the environment."""

RUNNER: Mapping[str, Parameter] = {
    "checkpoint_dir": Parameter(
        help="Folder of the pipeline's progress and state; started again with it, the pipeline goes on.",
        example="/data/checkpoints/orders",
        pattern="(?!.*://).+",
        pattern_help="a folder of a file system (a URL is none)",
    ),
    "fresh": Parameter(
        type="boolean",
        default=False,
        help="Start anew; refused if the checkpoint folder already holds something.",
    ),
    "drop_state": Parameter(
        repeated=True,
        help="Name of a step that is gone from the pipeline and whose state may be dropped.",
    ),
    "master": Parameter(
        help="Spark master. Left out: local[*,4], or what spark-submit says.", example="local[4,4]"
    ),
    "conf": Parameter(
        repeated=True,
        pattern=r"[\w.-]+=.*",
        pattern_help="a Spark setting, name=value",
        example="spark.executor.memory=4g",
        help="Setting of the Spark session.",
    ),
    "parallelism": Parameter(
        type="integer",
        minimum=1,
        maximum=128,
        help="Tasks that work side by side. Left out: as many as Spark has slots.",
    ),
    "epoch_seconds": Parameter(
        type="number",
        minimum=0.01,
        help="How long an epoch reads, in seconds, before it commits. Left out: 0.5.",
    ),
    "epoch_max_records": Parameter(
        type="integer",
        minimum=1,
        help="How many records one task reads in an epoch before it commits. Left out: 200000.",
    ),
    "epoch_max_bytes": Parameter(
        type="integer",
        minimum=1,
        help="How many bytes one task reads in an epoch before it commits. Left out: 64 MiB.",
    ),
    "epoch_retries": Parameter(
        type="integer",
        minimum=0,
        help="How often a failed epoch is repeated before the pipeline fails. Left out: 3.",
    ),
}

_FLAGS = {"master": "spark_master", "conf": "spark_conf", "parallelism": "spark_parallelism"}
"""Options whose name in Beam differs: there, every pipeline's options share one space of names."""


def runner_arguments(values: Values) -> list[str]:
    """Return `values` as arguments for Beam's `PipelineOptions`, the runner's name first.

    A boolean is a flag that stands there or not; a repeated option stands there once for each value.
    """
    arguments = [f"--runner={RUNNER_NAME}"]
    for name, value in values.items():
        flag = f"--{_FLAGS.get(name, name)}"
        if value is True:
            arguments.append(flag)
        elif value is not False:
            arguments += [f"{flag}={show(one)}" for one in (value if isinstance(value, tuple) else (value,))]
    return arguments
