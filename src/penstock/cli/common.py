"""Shared by several commands: the argument NAME|JOB.YAML, the argument JOB, and how a command refuses."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from penstock.cli.configuration import Configuration, ConfigurationError, runner_flag
from penstock.cli.inputs import MAX_JOB_CHARACTERS, read_job
from penstock.cli.resolve import resolve
from penstock.cli.runner_options import RUNNER, RUNNER_PACKAGE
from penstock.errors import PenstockError
from penstock.launch.run import ExitCode

Command = TypeVar("Command", bound=Callable[..., Any])


def configuration_options(command: Command) -> Command:
    """Add the argument NAME|JOB.YAML, `--set`, and a flag for each option of the runner."""
    for name, parameter in reversed(list(RUNNER.items())):  # click lists the option that was added last first
        if parameter.type == "boolean":
            # The default must be None: otherwise an absent flag would look like an explicit false and win over the job
            # file.
            option = click.option(runner_flag(name), name, is_flag=True, default=None, help=parameter.help)
        else:
            option = click.option(runner_flag(name), name, multiple=parameter.repeated, help=parameter.help)
        command = option(command)
    sets = click.option(
        "--set",
        "sets",
        multiple=True,
        metavar="NAME=VALUE",
        help="Set a parameter of the template. Repeat it for a list; commas do not separate values.",
    )
    return click.argument("name_or_file", metavar="NAME|JOB.YAML")(sets(command))


job_argument = click.argument("job", metavar="JOB.YAML|CHECKPOINT")
"""A job file, or the checkpoint folder of a job: a path or a URL."""


def is_job_file(job: str) -> bool:
    """Return whether the argument JOB names a job file."""
    return Path(job).suffix in (".yaml", ".yml")


def checkpoint_of(job: str) -> str:
    """Return the checkpoint folder of a job.

    A job file may lack parameters that its `run` gets from flags, so only its checkpoint folder is looked at.
    """
    if not is_job_file(job):
        return job
    try:
        with Path(job).open(encoding="utf-8") as file:
            found = read_job(file.read(MAX_JOB_CHARACTERS + 1), job).runner.get("checkpoint_dir")
    except (OSError, UnicodeDecodeError) as error:
        refuse(f"{job} cannot be read: {getattr(error, 'strerror', None) or 'it is not UTF-8 text'}")
    folder = found.texts[0] if found else os.environ.get("PENSTOCK_CHECKPOINT_DIR")
    if not folder:
        refuse(f"{job} names no checkpoint_dir: pass the checkpoint folder in place of the job file")
    return folder


def configuration_of(job: str, sets: Sequence[str] = ()) -> Configuration | None:
    """Return the configuration of a job file; None for a checkpoint folder and for an incomplete file."""
    if not is_job_file(job):
        return None
    try:
        return resolve(job, sets, {}, os.environ)
    except ConfigurationError:
        return None


def remote_job(job: str) -> Any:
    """Open the checkpoint of the argument JOB as a `RemoteJob`; refuse what is none.

    By name: the command line does not import the runner.
    """
    try:
        return import_module(RUNNER_PACKAGE).RemoteJob.open(checkpoint_of(job))
    except PenstockError as error:
        refuse(error)


def build(configuration: Configuration, **more: Any) -> Any:
    """Return the template's Beam pipeline with the runner's options. Nothing is started or created.

    `more` are arguments of the build function that are no parameters, such as `replay`.
    """
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    pipeline = beam.Pipeline(options=PipelineOptions(configuration.runner_arguments()))
    configuration.template.build_function()(pipeline, **configuration.parameters, **more)
    return pipeline


def refuse(error: object) -> NoReturn:
    """Show an error of usage or configuration, and exit."""
    click.echo(f"Error: {error}", err=True)
    sys.exit(ExitCode.CONFIGURATION)
