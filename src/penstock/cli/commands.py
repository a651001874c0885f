"""The commands of `penstock`.

    penstock list
    penstock describe spanner-to-files
    penstock validate job.yaml --set heartbeat_seconds=2
    penstock run job.yaml --checkpoint-dir /data/checkpoints/orders

Values come from flags, `--set`, the environment (PENSTOCK_<NAME>), the job file and defaults; the first wins.
Exit codes: see `penstock.launch.run`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click
from click.shell_completion import get_completion_class

from penstock import __version__
from penstock.cli import flex, jobs
from penstock.cli.checks import ask_services, try_to_build
from penstock.cli.common import (
    build,
    complete_template,
    configuration_options,
    progress_options,
    refuse,
    words_of,
)
from penstock.cli.configuration import Configuration, ConfigurationError
from penstock.cli.dead_letters import dead_letters
from penstock.cli.describe import as_text, job_file
from penstock.cli.emulator import emulator
from penstock.cli.inputs import Problem, from_flags
from penstock.cli.json_schema import json_schema as job_schema
from penstock.cli.package import package
from penstock.cli.plan import plan
from penstock.cli.preview import run_preview
from penstock.cli.quickstart import quickstart
from penstock.cli.redaction import redacted, resume_command, secret_names, shown_value
from penstock.cli.resolve import resolve
from penstock.cli.rewind import rewind
from penstock.cli.runner_options import begin_session
from penstock.cli.snapshot import snapshot
from penstock.cli.span import Span
from penstock.cli.tables import tables
from penstock.cli.ui import ui
from penstock.cli.verify import verify
from penstock.cli.wait import wait
from penstock.errors import UsageError
from penstock.launch.reporter import ignore_import_warnings, standard_error_reporter
from penstock.launch.run import Continuation, ExitCode, run_pipeline
from penstock.suggestions import did_you_mean
from penstock.telemetry.export import Export, exporters
from penstock.templates.template import Template, UnknownTemplateError, template_named, templates
from penstock.timeline import trace


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="penstock")
def cli() -> None:
    """Change data capture with Apache Beam pipelines that run on Spark."""


@cli.command("list")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def list_(json_: bool) -> None:
    """List the templates."""
    by_name = templates()
    if json_:
        click.echo(
            json.dumps([{"name": name, "summary": by_name.summary(name)} for name in by_name], indent=2)
        )
        return
    width = max(map(len, by_name))
    for name in by_name:
        click.echo(f"{name:<{width}}  {by_name.summary(name)}")


@cli.command()
@click.argument("name", shell_complete=complete_template)
@click.option("--json", "json_", is_flag=True, help="Print the whole specification as JSON.")
@click.option("--flex-metadata", is_flag=True, help="Print the metadata of a Google flex template.")
@click.option("--json-schema", is_flag=True, help="Print a JSON schema of the job file, for editors.")
@click.option("--example", is_flag=True, help="Print a job file to fill in.")
def describe(name: str, json_: bool, flex_metadata: bool, json_schema: bool, example: bool) -> None:
    """Show what a template does, promises and takes."""
    template = _template(name)
    if flex_metadata:
        click.echo(json.dumps(flex.flex_metadata(template), indent=2))
    elif json_schema:
        click.echo(json.dumps(job_schema(template), indent=2))
    elif json_:
        click.echo(json.dumps(template.model_dump(mode="json", exclude_none=True), indent=2))
    else:
        click.echo(job_file(template) if example else as_text(template), nl=False)


@cli.command()
@click.argument("name", shell_complete=complete_template)
@click.option(
    "--set", "sets", multiple=True, metavar="NAME=VALUE", help="Value of a parameter; repeat it for more."
)
@click.option(
    "--checkpoint-dir",
    metavar="FOLDER|URL",
    help="Folder of the pipeline's position and state: a path or a URL.",
)
@click.option(
    "--output",
    "-o",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write. Default: print.",
)
def init(name: str, sets: Sequence[str], checkpoint_dir: str | None, file: Path | None) -> None:
    """Write a job file for a template.

    It has the given values, examples for the other required ones, and all others as comments.
    """
    template = _template(name)
    values, problems = from_flags(sets)
    unknown = [each for each in values if each not in template.parameters and "." not in each]
    problems += [
        Problem(f"--set {each}", f"parameter {each!r} is unknown{did_you_mean(each, template.parameters)}")
        for each in unknown
    ]
    if problems:
        refuse(ConfigurationError(problems))
    texts = {each: raw.texts for each, raw in values.items()}
    text = job_file(template, texts, {"checkpoint_dir": checkpoint_dir} if checkpoint_dir else {})
    if file is None:
        click.echo(text, nl=False)
        return
    try:
        with file.open("x", encoding="utf-8") as new:
            new.write(text)
    except FileExistsError:
        refuse(f"{file} exists already: give --output another name")
    except OSError as error:
        refuse(f"{file} cannot be written: {error.strerror}")
    click.echo(f"wrote {file}; check it with: penstock validate {file} --online", err=True)


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    Use it with: eval "$(penstock completion bash)"
    """
    completion_class = get_completion_class(shell)
    assert completion_class is not None  # click has all three
    click.echo(completion_class(cli, {}, "penstock", "_PENSTOCK_COMPLETE").source())


@cli.command()
@configuration_options
@click.option("--json", "json_", is_flag=True, help="Print the problems, or the configuration, as JSON.")
@click.option("--online", is_flag=True, help="Also ask the services: names, rights, retention, registry.")
def validate(name_or_file: str, sets: Sequence[str], json_: bool, online: bool, **flags: Any) -> None:
    """Check a configuration and report every problem.

    Nothing is started or created. Secrets need not exist, except with --online.
    """
    try:
        configuration = resolve(name_or_file, sets, flags, os.environ)
        pipeline = try_to_build(configuration, to_run=online)
        warnings = ask_services(configuration, pipeline, json_) if online else []
    except ConfigurationError as error:
        if not json_:
            refuse(error)
        problems = [{"where": problem.where, "problem": problem.text} for problem in error.problems]
        click.echo(json.dumps({"valid": False, "problems": problems}, indent=2))
        sys.exit(ExitCode.CONFIGURATION)
    shown = redacted(configuration)
    if json_:
        click.echo(json.dumps({"valid": True, "warnings": warnings, **shown}, indent=2))
        return
    for warning in warnings:
        click.echo(f"Warning: {warning}", err=True)
    click.echo(f"valid: {configuration.template.name}")
    for values in shown.values():
        for name, value in values.items():
            click.echo(f"  {name}: {shown_value(value)}")


@cli.command()
@configuration_options
@progress_options
@click.option(
    "--until", metavar="TIME", help="Read up to this commit time (inclusive), then end; sets `end`."
)
@click.option(
    "--metrics",
    multiple=True,
    metavar="prometheus[=HOST:PORT]|otlp",
    help="Export metrics of each commit; may be repeated. prometheus listens on 127.0.0.1:9464.",
)
@click.option(
    "--drain-after", type=Span(), help="Drain the pipeline after this time, such as 90s, 10m or 2h."
)
@click.option(
    "--limit", type=click.IntRange(min=1), metavar="N", help="With --print: how many changes are shown."
)
@click.option(
    "--print",
    "print_",
    is_flag=True,
    help="With --limit: print the first N changes as they would be written, then end. Nothing is written.",
)
def run(
    name_or_file: str,
    sets: Sequence[str],
    progress: str,
    debug: bool,
    until: str | None,
    drain_after: float | None,
    metrics: Sequence[str],
    limit: int | None,
    print_: bool,
    **flags: Any,
) -> None:
    """Run a template or a job file on Spark.

    The command ends when the pipeline is done, fails, or is interrupted. Ctrl-C stops the pipeline with a checkpoint
    and prints the command that continues it. Ctrl-C again, a second or more later, aborts at once.

    With --limit and --print it shows the first changes and leaves no trace: no output, no checkpoint, and the position
    of the source does not move.
    """
    if print_ is not (limit is not None):
        refuse("--limit and --print belong together: --limit 10 --print shows ten changes and writes nothing")
    if limit is not None:
        sys.exit(
            run_preview(name_or_file, sets, flags, limit, start, until=until, progress=progress, debug=debug)
        )
    try:
        configuration = resolve(name_or_file, sets, flags, os.environ, until)
    except ConfigurationError as error:
        refuse(error)
    trace("read the configuration")
    ignore_import_warnings()
    secrets = secret_names(configuration.template.parameters)
    command = resume_command(sys.argv, secrets)
    continuation = Continuation(f"to continue, run:\n  {command}", command)
    with standard_error_reporter(progress) as reporter, _exporting(metrics) as export:
        code = run_pipeline(
            lambda: start(configuration),
            reporter,
            continuation,
            debug=debug,
            drain_after_seconds=drain_after,
            export=export,
            words=words_of(configuration),
        )
    sys.exit(code)


@contextmanager
def _exporting(wanted: Sequence[str]) -> Iterator[Export | None]:
    with ExitStack() as stack:
        try:
            export = stack.enter_context(exporters(wanted))
        except UsageError as error:
            refuse(error)
        yield export


for _command in (
    jobs.stop,
    jobs.drain,
    jobs.status,
    jobs.checkpoints,
    plan,
    dead_letters,
    snapshot,
    package,
    emulator,
    quickstart,
    ui,
    tables,
    rewind,
    verify,
    wait,
):
    cli.add_command(_command)


def start(configuration: Configuration, **more: Any) -> Any:
    """Begin to start Spark, and build the pipeline while it starts: both take seconds. `more`: see `build`."""
    begin_session(configuration.runner, configuration.template.modules)
    pipeline = build(configuration, **more)
    trace("built the pipeline")
    return pipeline


def _template(name: str) -> Template:
    try:
        return template_named(name)
    except UnknownTemplateError as error:
        refuse(error)
