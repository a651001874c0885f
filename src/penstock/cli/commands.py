"""The commands of `penstock`.

    penstock list
    penstock describe spanner-to-files
    penstock validate job.yaml --set heartbeat_seconds=2
    penstock run job.yaml --checkpoint-dir /data/checkpoints/orders

Values come from flags, `--set`, the environment (PENSTOCK_<NAME>), the job file and defaults; the first wins.
Exit codes are those of `penstock.launch.run`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from penstock import __version__
from penstock.cli.bundle import ARCHIVE, Submission, as_shell, executor_python, spark_submit
from penstock.cli.configuration import Configuration, ConfigurationError, runner_flag
from penstock.cli.describe import as_text, job_file
from penstock.cli.inputs import Problem
from penstock.cli.package import base_python, current_environment, pack_environment, write_program
from penstock.cli.redaction import redacted, resume_command, secret_names
from penstock.cli.resolve import resolve
from penstock.cli.runner_options import RUNNER, begin_session
from penstock.errors import UsageError
from penstock.extras import MissingExtraError, extra_packages
from penstock.launch.reporter import ignore_import_warnings, standard_error_reporter
from penstock.launch.run import Continuation, ExitCode, run_pipeline
from penstock.launch.signals import restore_defaults
from penstock.templates.template import Template, UnknownTemplateError, template_named, templates

Command = TypeVar("Command", bound=Callable[..., Any])


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="penstock")
def cli() -> None:
    """Change data capture with Apache Beam pipelines that run on Spark."""


@cli.command("list")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def list_(json_: bool) -> None:
    """List the templates."""
    found = templates().values()
    if json_:
        click.echo(json.dumps([{"name": each.name, "summary": each.summary} for each in found], indent=2))
        return
    width = max(len(each.name) for each in found)
    for each in found:
        click.echo(f"{each.name:<{width}}  {each.summary}")


@cli.command()
@click.argument("name")
@click.option("--json", "json_", is_flag=True, help="Print the whole specification as JSON.")
@click.option("--example", is_flag=True, help="Print a job file to fill in.")
def describe(name: str, json_: bool, example: bool) -> None:
    """Show what the template NAME does, its guarantees and its parameters."""
    template = _template(name)
    if json_:
        click.echo(json.dumps(template.model_dump(mode="json", exclude_none=True), indent=2))
    else:
        click.echo(job_file(template) if example else as_text(template), nl=False)


def _configuration_options(command: Command) -> Command:
    """Add the argument NAME|JOB.YAML, `--set`, and a flag for each option of the runner."""
    for name, parameter in reversed(list(RUNNER.items())):  # click lists the option that was added last first
        if parameter.type == "boolean":
            # Without the default None, an absent flag would look like an explicit false and win over the job file.
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


@cli.command()
@_configuration_options
@click.option("--json", "json_", is_flag=True, help="Print the problems, or the configuration, as JSON.")
def validate(name_or_file: str, sets: Sequence[str], json_: bool, **flags: Any) -> None:
    """Check a configuration and report every problem. Nothing is started or created."""
    try:
        configuration = resolve(name_or_file, sets, flags, os.environ)
        _try_to_build(configuration)
    except ConfigurationError as error:
        if not json_:
            _refuse(error)
        problems = [{"where": problem.where, "problem": problem.text} for problem in error.problems]
        click.echo(json.dumps({"valid": False, "problems": problems}, indent=2))
        sys.exit(ExitCode.CONFIGURATION)
    shown = redacted(configuration)
    if json_:
        click.echo(json.dumps({"valid": True, **shown}, indent=2))
        return
    click.echo(f"valid: {configuration.template.name}")
    for values in shown.values():
        for name, value in values.items():
            click.echo(f"  {name}: {value}")


@cli.command()
@_configuration_options
@click.option(
    "--progress",
    type=click.Choice(["auto", "live", "line", "json", "none"]),
    default="auto",
    show_default=True,
    help="How to show progress. auto: a live line on a terminal, JSON lines elsewhere.",
)
@click.option(
    "--debug", is_flag=True, help="Also show the traceback of an error. It may contain values of rows."
)
def run(name_or_file: str, sets: Sequence[str], progress: str, debug: bool, **flags: Any) -> None:
    """Run a template or a job file on Spark until it is done, fails, or is interrupted.

    Ctrl-C stops the pipeline with a checkpoint and prints the command that continues it. Ctrl-C again, a second or
    more later, aborts at once.
    """
    try:
        configuration = resolve(name_or_file, sets, flags, os.environ)
    except ConfigurationError as error:
        _refuse(error)
    ignore_import_warnings()
    secrets = secret_names(configuration.template.parameters)
    command = resume_command(sys.argv, secrets)
    continuation = Continuation(f"to continue, run:\n  {command}", command)
    with standard_error_reporter(progress) as reporter:
        code = run_pipeline(lambda: start(configuration), reporter, continuation, debug=debug)
    sys.exit(code)


@cli.command()
@click.argument(
    "source", metavar="JOB.YAML|PROGRAM.PY", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--into", "folder", default="bundle", show_default=True, type=click.Path(file_okay=False, path_type=Path)
)
@click.option("--master", default="yarn", show_default=True, help="Spark master of the printed command.")
@click.option("--deploy-mode", type=click.Choice(["client", "cluster"]), default="client", show_default=True)
@click.option(
    "--conf", "settings", multiple=True, metavar="KEY=VALUE", help="A Spark setting; may be repeated."
)
@click.option(
    "--environment",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Virtual environment to pack. Default: the one of this command.",
)
@click.option("--archive", default="", help="An archive of an environment, packed before: a path or a URL.")
@click.option("--python", default="", help="A Python that every machine has; no environment is packed.")
@click.option("--python-prefix", help="Where the executors have the base Python, for example /usr.")
def package(
    source: Path,
    arguments: Sequence[str],
    folder: Path,
    master: str,
    deploy_mode: str,
    settings: Sequence[str],
    environment: Path | None,
    archive: str,
    python: str,
    python_prefix: str | None,
) -> None:
    """Write a bundle for spark-submit and print the command that starts it.

    The bundle has the entry program, the job file and a packed environment without Spark. ARGUMENTS after `--` are
    passed to the program.
    """
    chosen = (environment or current_environment()).resolve()
    try:
        if source.suffix != ".py":
            resolve(str(source), (), {}, os.environ)
        program, files = write_program(source, folder.resolve())
        if not archive and not python:
            archive = str(program.parent / ARCHIVE)
            click.echo(f"packing {chosen}", err=True)
            pack_environment(chosen, Path(archive), python_prefix)
            click.echo(
                f"every executor needs the base Python in {python_prefix or base_python(chosen)}", err=True
            )
    except UsageError as error:
        _refuse(error)
    submission = Submission(
        program=str(program),
        master=master,
        deploy_mode=deploy_mode,
        driver_python=python or sys.executable,
        executor_python=python or executor_python(archive),
        archive=archive,
        files=tuple(map(str, files)),
        settings=dict(each.partition("=")[::2] for each in settings),
        arguments=arguments,
    )
    command = as_shell(spark_submit(submission))
    (program.parent / "submit.sh").write_text(f"#!/bin/sh\nexec {command}\n")
    click.echo(command)


@cli.group()
def emulator() -> None:
    """Start a local service with change streams, for development and tests."""


_UNKNOWN_OPTIONS = {"ignore_unknown_options": True, "allow_extra_args": True}
"""An emulator's own command reads the options: only that command imports gRPC."""


@emulator.command("spanner", add_help_option=False, context_settings=_UNKNOWN_OPTIONS)
@click.option("--simulated", is_flag=True)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def spanner_emulator(simulated: bool, options: Sequence[str]) -> None:
    """Google's Spanner emulator, or with --simulated a service that needs only Python; `--help` shows the options."""
    ignore_import_warnings()
    with _extra("spanner"):
        if simulated:
            from penstock.emulators.simulated_spanner.cli import main as start
        else:
            from penstock.emulators.spanner_command import main as start

    restore_defaults()  # the server handles signals itself
    start(options)


@emulator.command("ydb", add_help_option=False, context_settings=_UNKNOWN_OPTIONS)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def ydb_emulator(options: Sequence[str]) -> None:
    """A YDB test service with changefeeds; `--help` shows its options."""
    ignore_import_warnings()
    from penstock.emulators.ydb.cli import main as start

    restore_defaults()  # the service handles signals itself
    start(options)


@emulator.command("bigtable", add_help_option=False, context_settings=_UNKNOWN_OPTIONS)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def bigtable_emulator(options: Sequence[str]) -> None:
    """A Bigtable emulator with change streams; `--help` shows its options."""
    ignore_import_warnings()
    with _extra("bigtable"):
        from penstock.emulators.bigtable.cli import main as start

    restore_defaults()  # the emulator handles signals itself
    start(options)


@contextmanager
def _extra(name: str) -> Iterator[None]:
    try:
        with extra_packages(name):
            yield
    except MissingExtraError as error:
        _refuse(error)


def start(configuration: Configuration) -> Any:
    """Begin to start Spark, and build the pipeline while it starts: both take seconds."""
    begin_session(configuration.runner, [configuration.template.module])
    return build(configuration)


def build(configuration: Configuration) -> Any:
    """Return the template's Beam pipeline with the runner's options. Nothing is started or created."""
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    pipeline = beam.Pipeline(options=PipelineOptions(configuration.runner_arguments()))
    configuration.template.build_function()(pipeline, **configuration.parameters)
    return pipeline


def _try_to_build(configuration: Configuration) -> None:
    """Build the pipeline and drop it: some values are refused only by its transforms, such as an end before the start.

    Raises:
        ConfigurationError: a transform refused a value.
    """
    ignore_import_warnings()
    try:
        build(configuration)
    except Exception as error:  # `run` would not start either, whatever the error
        text = str(error) or type(error).__name__
        raise ConfigurationError([Problem(configuration.template.name, text)]) from error


def _template(name: str) -> Template:
    try:
        return template_named(name)
    except UnknownTemplateError as error:
        _refuse(error)


def _refuse(error: Exception) -> NoReturn:
    click.echo(f"Error: {error}", err=True)
    sys.exit(ExitCode.CONFIGURATION)
