"""The runner's options as parameters, with the same rules and messages as a template's parameters.

The command line never imports the runner. It names the runner, as users of other runners do, and Beam imports it when a
pipeline is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TypeAlias

from penstock.templates.parameter import Parameter, Value, show

Values: TypeAlias = Mapping[str, Value | tuple[Value, ...] | Mapping[str, Value]]
"""Values by name; a repeated parameter has a tuple, a mapping has its values by name."""

RUNNER_PACKAGE = "penstock.runner"
RUNNER_NAME = f"{RUNNER_PACKAGE}.PySparkRunner"

ONE_SHOT_OPTIONS = frozenset({"fresh", "drop_state", "take_over"})
"""Options that are valid for one start only. Flags can set them; job files and the environment cannot."""

RUNNER: Mapping[str, Parameter] = {
    "checkpoint_dir": Parameter(
        help="Folder of the pipeline's position and state: a path, or a URL of an object store. A pipeline that is "
        "started again with it continues there.",
        example="/data/checkpoints/orders",
        pattern=".+",
        pattern_help="a path or a URL",
    ),
    "fresh": Parameter(
        type="boolean",
        default=False,
        help="Start from the beginning. Refused if the checkpoint folder is not empty.",
    ),
    "take_over": Parameter(
        type="boolean",
        default=False,
        help="Take over from a driver that still runs the pipeline; that driver stops. Without it the "
        "start is refused.",
    ),
    "drop_state": Parameter(
        repeated=True,
        help="Name of a step that was removed from the pipeline; its state is deleted.",
    ),
    "accept_warnings": Parameter(
        repeated=True,
        example="max_slot_wal_keep_size",
        help="Name of a warning before the start that is not to be repeated; the warning has its name.",
    ),
    "master": Parameter(
        help="Spark master. Default: local[*,4], or the master of spark-submit.", example="local[4,4]"
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
        help="Number of tasks that run at the same time. Default: the number of Spark's task slots.",
    ),
    "epoch_seconds": Parameter(
        type="number",
        minimum=0.01,
        help="Seconds that an epoch reads before it commits. Default: 0.5.",
    ),
    "epoch_max_records": Parameter(
        type="integer",
        minimum=1,
        help="Records that one task reads in an epoch at most. Default: 200000.",
    ),
    "epoch_max_bytes": Parameter(
        type="integer",
        minimum=1,
        help="Bytes that one task reads in an epoch at most. Default: 64 MiB.",
    ),
    "epoch_retries": Parameter(
        type="integer",
        minimum=0,
        help="Times that a failed epoch is repeated before the pipeline fails. Default: 3.",
    ),
    "openlineage": Parameter(
        help="Report each run to OpenLineage, as a run of the job with this name. Where events are sent is the "
        "configuration of OpenLineage's own client, for example OPENLINEAGE_URL.",
        example="orders-to-lake",
        pattern=".+",
        pattern_help="a name",
    ),
    "openlineage_seconds": Parameter(
        type="number",
        minimum=1,
        help="The least seconds between two reports of a running pipeline. Default: 60.",
    ),
}

_FLAGS = {"master": "spark_master", "conf": "spark_conf", "parallelism": "spark_parallelism"}
"""Options with another name in Beam, where the options of all pipelines and runners share one namespace."""


def flags_of_beam() -> dict[str, str]:
    """Return the command's flag for each option of the runner as Beam names it, both without dashes."""
    return {_FLAGS.get(name, name): name.replace("_", "-") for name in RUNNER}


def runner_arguments(values: Values) -> list[str]:
    """Return `values` as arguments for Beam's `PipelineOptions`, the runner's name first.

    A boolean is a flag that is present or absent. A repeated option is present once for each value.
    """
    arguments = [f"--runner={RUNNER_NAME}"]
    for name, value in values.items():
        flag = f"--{_FLAGS.get(name, name)}"
        if value is True:
            arguments.append(flag)
        elif value is not False and not isinstance(value, Mapping):  # the runner has no mappings
            arguments += [f"{flag}={show(one)}" for one in (value if isinstance(value, tuple) else (value,))]
    return arguments


def begin_session(values: Values, imports: Sequence[str]) -> None:
    """Let the runner start Spark in the background, before Beam is imported. The pipeline will use that session.

    `imports` are modules that its workers need. If no pipeline uses the session, it ends with this process.
    """
    settings = values.get("conf", ())
    assert isinstance(settings, tuple)
    conf = dict(str(setting).split("=", 1) for setting in settings)
    master = values.get("master")
    import_module(RUNNER_PACKAGE).begin_session(None if master is None else str(master), conf, imports)
