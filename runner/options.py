"""Options of the runner, as Beam `PipelineOptions`.

No option may have the name of another runner's option: Beam collects the options of all imported classes, and a
duplicate name (Flink's `--parallelism`) breaks every pipeline in the process.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions

from penstock.errors import UsageError
from penstock.object_stores.location import locate
from penstock.runner.store.keys import KEY_GROUPS


class PySparkOptions(PipelineOptions):
    """Options for running on Spark, and for the checkpoint of a stream."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--spark_master",
            default=None,
            help="Spark master, if the runner starts the session itself. Default local[*,4]: all cores, and a task "
            "that lost its worker is tried four times. With spark-submit, its --master is used instead.",
        )
        parser.add_argument(
            "--spark_conf",
            action="append",
            default=None,
            metavar="KEY=VALUE",
            help="A Spark setting, if the runner starts the session itself; may be repeated.",
        )
        parser.add_argument(
            "--spark_parallelism",
            type=int,
            default=None,
            help=f"Tasks per level, at most {KEY_GROUPS}. Default: the number of task slots of the session.",
        )
        parser.add_argument(
            "--checkpoint_dir",
            default=None,
            help="Folder of the checkpoint: a path, or a URL of an object store (s3://, gs://, az://). An existing "
            "checkpoint is resumed. Without it a stream on a local master has a temporary one and cannot be resumed; "
            "on a cluster a stream needs it. A bounded pipeline with a checkpoint runs in epochs and can be resumed.",
        )
        parser.add_argument(
            "--fresh",
            action="store_true",
            help="Start a new checkpoint; refuse a folder that is not empty.",
        )
        parser.add_argument(
            "--take_over",
            action="store_true",
            help="Take over the checkpoint from a driver that still runs; that driver stops. Without it, a start is "
            "refused while another driver runs the pipeline.",
        )
        parser.add_argument(
            "--accept_warnings",
            action="append",
            default=None,
            metavar="NAME",
            help="Do not repeat a warning before the start; the warning has its name. May be repeated.",
        )
        parser.add_argument(
            "--drop_state",
            action="append",
            default=None,
            metavar="NAME",
            help="Delete the state, residuals and publications of a step that the pipeline no longer has; "
            "may be repeated.",
        )
        parser.add_argument(
            "--epoch_seconds",
            type=float,
            default=0.5,
            help="How long an epoch reads, in seconds. Default 0.5.",
        )
        parser.add_argument(
            "--epoch_max_records",
            type=int,
            default=200_000,
            help="A reading task ends its part of the epoch after this many records. Default 200000.",
        )
        parser.add_argument(
            "--epoch_max_bytes",
            type=int,
            default=64 << 20,
            help="A reading task ends its part of the epoch after this many encoded bytes. Default 64 MiB.",
        )
        parser.add_argument(
            "--epoch_retries",
            type=int,
            default=3,
            help="How many times a failed epoch is tried again before the pipeline is FAILED. Default 3.",
        )
        parser.add_argument(
            "--openlineage",
            default=None,
            metavar="JOB",
            help="Report each run to OpenLineage, as a run of the job with this name. Where events are sent is the "
            "configuration of OpenLineage's own client, for example OPENLINEAGE_URL. Needs the extra openlineage.",
        )
        parser.add_argument(
            "--openlineage_seconds",
            type=float,
            default=60.0,
            help="The least time between two reports of a running pipeline, in seconds. Default 60.",
        )

    def validate(self, validator: Any) -> list[str]:
        """Return one sentence for each bad value."""
        return list(problems(self))


def problems(options: PySparkOptions) -> list[str]:
    """Return one sentence for each bad value, with its fix."""
    found = []
    # Written as one chain, so that NaN is refused too: each comparison with it is false.
    if not 0 < options.epoch_seconds < math.inf:
        found.append(f"--epoch_seconds={options.epoch_seconds} must be above 0 and finite, for example 0.5")
    for name in ("epoch_max_records", "epoch_max_bytes"):
        if getattr(options, name) < 1:
            found.append(f"--{name}={getattr(options, name)} must be at least 1")
    if options.checkpoint_dir == "":
        found.append(
            "--checkpoint_dir is empty: pass a folder, or leave the option out to run without a checkpoint"
        )
    elif options.checkpoint_dir is not None:
        try:
            locate(options.checkpoint_dir)
        except UsageError as error:
            found.append(f"--checkpoint_dir: {str(error).removesuffix('.')}")
    if options.epoch_retries < 0:
        found.append(f"--epoch_retries={options.epoch_retries} must be 0 or more")
    if options.openlineage == "":
        found.append("--openlineage is empty: pass the name of the job, or leave the option out")
    if not 1 <= options.openlineage_seconds < math.inf:
        found.append(f"--openlineage_seconds={options.openlineage_seconds} must be at least 1 and finite")
    if options.spark_parallelism is not None and not 1 <= options.spark_parallelism <= KEY_GROUPS:
        found.append(f"--spark_parallelism={options.spark_parallelism} must be between 1 and {KEY_GROUPS}")
    for setting in options.spark_conf or ():
        if "=" not in setting:
            found.append(f"--spark_conf={setting} must have the form key=value")
    return found
