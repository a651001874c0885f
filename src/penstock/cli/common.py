"""Shared by several commands: the argument NAME|JOB.YAML, the argument JOB, and how a command refuses."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from penstock.cli.configuration import Configuration, ConfigurationError, runner_flag
from penstock.cli.inputs import JOB_SUFFIXES, MAX_JOB_CHARACTERS, read_job
from penstock.cli.resolve import resolve
from penstock.cli.runner_options import RUNNER, RUNNER_PACKAGE, Values, flags_of_beam
from penstock.errors import PenstockError, UsageError
from penstock.launch.run import ExitCode
from penstock.launch.words import Words, command_words
from penstock.pipelines.event_options import SECRETS
from penstock.secrets import read_shown_references, with_stand_ins
from penstock.templates.template import templates

Command = TypeVar("Command", bound=Callable[..., Any])


_METAVARS = {
    "checkpoint_dir": "FOLDER|URL",
    "master": "MASTER",
    "openlineage": "JOB",
    "conf": "NAME=VALUE",
    "drop_state": "STEP",
    "accept_warnings": "NAME",
}


def configuration_options(command: Command) -> Command:
    """Add the argument NAME|JOB.YAML, and the options of `value_options`."""
    argument = click.argument(
        "name_or_file", metavar="NAME|JOB.YAML", shell_complete=complete_template_or_file
    )
    return argument(value_options(command))


def value_options(command: Command) -> Command:
    """Add `--set`, and a flag for each option of the runner."""
    for name, parameter in reversed(list(RUNNER.items())):  # click lists the option that was added last first
        if parameter.type == "boolean":
            # The default must be None: otherwise an absent flag would look like an explicit false and win over the job
            # file.
            option = click.option(runner_flag(name), name, is_flag=True, default=None, help=parameter.help)
        else:
            metavar = _METAVARS.get(name, parameter.type.upper())
            option = click.option(
                runner_flag(name), name, multiple=parameter.repeated, metavar=metavar, help=parameter.help
            )
        command = option(command)
    sets = click.option(
        "--set",
        "sets",
        multiple=True,
        metavar="NAME=VALUE",
        help="Set a parameter of the template. Repeat it for a list; commas do not separate values.",
    )
    return sets(command)


def complete_template(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the name of a template."""
    return [CompletionItem(name) for name in templates() if name.startswith(incomplete)]


def complete_file(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Let the shell complete the name of a file or a folder."""
    return [CompletionItem(incomplete, type="file")]


def complete_template_or_file(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    # The shell can complete a file only if it gets nothing else to offer.
    templates_found = complete_template(context, parameter, incomplete)
    jobs = [
        CompletionItem(path.name)
        for path in sorted(Path().iterdir())
        if path.suffix in JOB_SUFFIXES and path.name.startswith(incomplete)
    ]
    return templates_found + jobs or complete_file(context, parameter, incomplete)


def refuse_options_of_one_job(*allowed: str) -> None:
    """Refuse a command for several jobs with options that are for one job; `allowed` are the names of the others."""
    context = click.get_current_context()
    given = [
        each.opts[0]
        for each in context.command.params
        if isinstance(each, click.Option)
        and each.name not in allowed
        and context.get_parameter_source(str(each.name)) is ParameterSource.COMMANDLINE
    ]
    if given:
        refuse(f"{', '.join(given)}: only for one job. Give one job file, or leave the option out")


def progress_options(command: Command) -> Command:
    """Add `--progress` and `--debug`, for a command that runs a pipeline."""
    progress = click.option(
        "--progress",
        type=click.Choice(["auto", "live", "line", "json", "none"]),
        default="auto",
        show_default=True,
        help="How to show progress. auto: a live line on a terminal, JSON lines elsewhere.",
    )
    debug = click.option(
        "--debug", is_flag=True, help="Also show the traceback of an error. It may contain values of rows."
    )
    return progress(debug(command))


job_argument = click.argument("job", metavar="JOB.YAML|CHECKPOINT", shell_complete=complete_file)
"""A job file, or the checkpoint folder of a job: a path or a URL."""


def is_job_file(job: str) -> bool:
    """Return whether the argument JOB names a job file."""
    return Path(job).suffix in JOB_SUFFIXES


def checkpoint_of(job: str) -> str:
    """Return the checkpoint folder of a job.

    A job file may lack parameters that its `run` gets from flags, so only its checkpoint folder is looked at.

    Raises:
        UsageError: the job file cannot be read, or names no checkpoint folder.
    """
    if not is_job_file(job):
        return job
    try:
        with Path(job).open(encoding="utf-8") as file:
            content = read_job(file.read(MAX_JOB_CHARACTERS + 1), job)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise UsageError(f"{job} cannot be read: {reason}") from None
    found = content.runner.get("checkpoint_dir")
    folder = found.texts[0] if found else os.environ.get("PENSTOCK_CHECKPOINT_DIR")
    if not folder and content.problems:
        raise UsageError("; ".join(map(str, content.problems)))
    if not folder:
        raise UsageError(f"{job} names no checkpoint_dir: pass the checkpoint folder instead of the job file")
    try:
        return read_shown_references(folder)
    except UsageError as error:
        raise UsageError(f"{job}: checkpoint_dir: {error}") from None


def configuration_of(job: str, sets: Sequence[str] = ()) -> Configuration | None:
    """Return the configuration of a job file; None for a checkpoint folder and for an incomplete file."""
    if not is_job_file(job):
        return None
    try:
        return resolve(job, sets, {}, os.environ)
    except ConfigurationError:
        return None


def remote_job(job: str, otherwise: str = "") -> Any:
    """Open the checkpoint of the argument JOB as a `RemoteJob`; refuse what is none, and say what to do `otherwise`.

    By name: the command line does not import the runner.
    """
    try:
        return import_module(RUNNER_PACKAGE).RemoteJob.open(checkpoint_of(job))
    except PenstockError as error:
        refuse(f"{error}{otherwise}")


def build(configuration: Configuration, *, to_run: bool = True, **more: Any) -> Any:
    """Return the template's Beam pipeline with the runner's options. Nothing is started or created.

    A pipeline that is not `to_run` needs no secrets: a text stands in for each that is not on this machine. `more`
    are arguments of the build function that are no parameters, such as `replay`.
    """
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    from penstock.pipelines import source_to_sink

    template = configuration.template
    # Beam's option for the name of a job: the runner notes it in the checkpoint folder.
    name = f"--job_name={template.name}"
    pipeline = beam.Pipeline(options=PipelineOptions([*configuration.runner_arguments(), name]))
    parameters = configuration.parameters if to_run else _parameters_without_secrets(configuration)
    source_to_sink.build(pipeline, template.source, template.sink, parameters, **more)
    os.rmdir(pipeline.local_tempdir)  # for transforms of other languages; Beam removes it after a run only
    return pipeline


def words_of(configuration: Configuration) -> Words:
    """Return a function that says a message of a pipeline in the words of the command."""
    known = configuration.template.parameters
    names = {
        entry: f"{name}.{entry}" for name, parameter in known.items() for entry in parameter.entries or {}
    }
    return command_words({**names, **{name: name for name in known}}, flags_of_beam())


def _parameters_without_secrets(configuration: Configuration) -> Values:
    """Return the parameters, with a stand-in for each secret that has no variable or file here."""
    values = dict(configuration.parameters)
    for name, parameter in configuration.template.parameters.items():
        # The pipeline's own check reads the secrets of formats, which are always references.
        if not parameter.secret or name not in values or name in SECRETS:
            continue
        value = values[name]
        if isinstance(value, Mapping):
            values[name] = {entry: with_stand_ins(str(text)) for entry, text in value.items()}
        else:
            values[name] = with_stand_ins(str(value))
    return values


def write_file(file: Path, text: str) -> None:
    """Write a file that an option names, or refuse."""
    try:
        file.write_text(text, "utf-8")
    except OSError as error:
        refuse(f"{file} cannot be written: {error.strerror}")


def refuse(error: object) -> NoReturn:
    """Show an error of usage or configuration, and exit."""
    click.echo(f"Error: {error}", err=True)
    sys.exit(ExitCode.CONFIGURATION)
