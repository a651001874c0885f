"""The `penstock` command.

    penstock list
    penstock describe spanner-to-files
    penstock validate job.yaml --set heartbeat_seconds=2
    penstock run job.yaml --checkpoint-dir /data/checkpoints/orders

Values come from flags, `--set`, the environment (PENSTOCK_<NAME>), the job file and defaults, in this order.
Exit codes are those of `penstock.cli.launch`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from penstock import __version__
from penstock.cli.configuration import Configuration, ConfigurationError, configure, runner_flag
from penstock.cli.console import Reporter, ignore_import_warnings, send_logs_to, style_for
from penstock.cli.describe import as_text, job_file
from penstock.cli.inputs import (
    MAX_JOB_CHARACTERS,
    Job,
    Problem,
    RawValue,
    from_environment,
    from_flags,
    read_job,
)
from penstock.cli.launch import Exit, build, launch
from penstock.cli.runner_options import ONCE, RUNNER
from penstock.templates.template import Template, UnknownTemplateError, template_named, templates

Command = TypeVar("Command", bound=Callable[..., Any])

_PAIRS = ("--set", "--conf")
"""Flags that take name=value."""
_SECRET_SETTING = re.compile("(?i)secret|password|token|access[.]?key")
"""Spark's own idea of what to hide: the default of spark.redaction.regex."""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="penstock")
def cli() -> None:
    """Change data capture on Apache Beam pipelines that run on Spark."""


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
    """Show what the template NAME does, guarantees, and can be told."""
    template = _template(name)
    if json_:
        click.echo(json.dumps(template.model_dump(mode="json", exclude_none=True), indent=2))
    else:
        click.echo(job_file(template) if example else as_text(template), nl=False)


def _runner_options(command: Command) -> Command:
    """Add a flag for each option of the runner, and those that say what is given."""
    for name, parameter in reversed(list(RUNNER.items())):
        if parameter.type == "boolean":
            option = click.option(runner_flag(name), name, is_flag=True, default=None, help=parameter.help)
        else:
            option = click.option(runner_flag(name), name, multiple=parameter.repeated, help=parameter.help)
        command = option(command)
    sets = click.option(
        "--set",
        "sets",
        multiple=True,
        metavar="NAME=VALUE",
        help="Give a parameter of the template; once for each value, commas mean nothing.",
    )
    return click.argument("what", metavar="NAME|JOB.YAML")(sets(command))


@cli.command()
@_runner_options
@click.option("--json", "json_", is_flag=True, help="Print the problems, or the configuration, as JSON.")
def validate(what: str, sets: Sequence[str], json_: bool, **flags: Any) -> None:
    """Check a configuration and report everything that is wrong with it; start nothing."""
    try:
        configuration = _configuration(what, sets, flags)
        _try_out(configuration)
    except ConfigurationError as error:
        if not json_:
            _refuse(error)
        problems = [{"where": problem.where, "problem": problem.text} for problem in error.problems]
        click.echo(json.dumps({"valid": False, "problems": problems}, indent=2))
        sys.exit(Exit.CONFIGURATION)
    if json_:
        click.echo(json.dumps({"valid": True, **_public(configuration)}, indent=2))
    else:
        click.echo(f"valid: {configuration.template.name}")
        for side in ("parameters", "runner"):
            for name, value in _public(configuration)[side].items():
                click.echo(f"  {name}: {value}")


@cli.command()
@_runner_options
@click.option(
    "--progress",
    type=click.Choice(["auto", "live", "line", "json", "none"]),
    default="auto",
    show_default=True,
    help="How to show progress; auto is live on a terminal and JSON lines elsewhere.",
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error too; it may show values of rows.")
def run(what: str, sets: Sequence[str], progress: str, debug: bool, **flags: Any) -> None:
    """Run a template or a job file on Spark until it is done, fails, or is interrupted.

    Ctrl-C stops the pipeline with a checkpoint and prints the command that goes on; a second one aborts.
    """
    try:
        configuration = _configuration(what, sets, flags)
    except ConfigurationError as error:
        _refuse(error)
    ignore_import_warnings()
    with Reporter(style_for(sys.stderr, progress)) as reporter:
        send_logs_to(reporter)
        secrets = [name for name, known in configuration.template.parameters.items() if known.secret]
        code = launch(configuration, reporter, resume_command(sys.argv, secrets), debug=debug)
    sys.exit(code)


@cli.group()
def emulator() -> None:
    """Start a local service with change streams, to develop and test against."""


@emulator.command(
    "bigtable",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def bigtable_emulator(options: Sequence[str]) -> None:
    """A Bigtable emulator with change streams; `--help` shows its options."""
    ignore_import_warnings()
    from penstock.emulators.bigtable.cli import main as start  # imports Beam: only when it is asked for

    start(options)


def resume_command(arguments: Sequence[str], secrets: Collection[str] = ()) -> str:
    """Return the shell command that goes on where the command `arguments` stopped.

    It is the same command without what is right for one start only, and without the values of the parameters
    `secrets` and of Spark's secret settings: the command is logged.
    """
    program = arguments[0] if Path(arguments[0]).name == "penstock" else "penstock"
    once = {runner_flag(name): RUNNER[name].type for name in ONCE}
    kept = [program]
    rest = iter(arguments[1:])
    for argument in rest:
        flag, equals, value = argument.partition("=")
        if flag in _PAIRS and equals:
            kept.append(f"{flag}={_discreet(flag, value, secrets)}")
        elif flag in _PAIRS:
            kept += [flag, *(_discreet(flag, pair, secrets) for pair in islice(rest, 1))]
        elif flag not in once:
            kept.append(argument)
        elif not equals and once[flag] != "boolean":
            next(rest, None)
    return shlex.join(kept)


def _try_out(configuration: Configuration) -> None:
    """Build the pipeline and throw it away, for what only its transforms refuse, such as an end before the start.

    Raises:
        ConfigurationError: they refuse something.
    """
    ignore_import_warnings()
    try:
        build(configuration)
    except Exception as error:  # a wrong value, or an output that refuses: `run` would not start either
        text = str(error) or type(error).__name__
        raise ConfigurationError([Problem(configuration.template.name, text)]) from error


def _discreet(flag: str, pair: str, secrets: Collection[str] = ()) -> str:
    """Return the ``name=value`` of a flag as it may be shown."""
    name, equals, _ = pair.partition("=")
    secret = name in secrets if flag == "--set" else _SECRET_SETTING.search(name)
    return f"{name}=(hidden)" if equals and secret else pair


def _configuration(what: str, sets: Sequence[str], flags: Mapping[str, Any]) -> Configuration:
    """Settle everything that was given; raises ConfigurationError with everything that is wrong."""
    job = _job(what)
    given, problems = from_flags(sets)
    problems = [*job.problems, *problems, *_misplaced(job)]
    template = _named_by(job, problems)
    if template is None:
        raise ConfigurationError(problems)
    standing = {name: parameter for name, parameter in RUNNER.items() if name not in ONCE}
    return configure(
        template,
        [given, from_environment(os.environ, template.parameters), job.parameters],
        [
            _from_options(flags),
            from_environment(os.environ, standing),
            {name: value for name, value in job.runner.items() if name not in ONCE},
        ],
        problems,
    )


def _job(what: str) -> Job:
    """Return the job that WHAT stands for: a file where it looks like a path, else just a template."""
    path = Path(what)
    if path.suffix not in (".yaml", ".yml") and path.name == what:
        return Job(RawValue((what,), ""), {}, {}, ())
    try:
        with path.open(
            encoding="utf-8"
        ) as file:  # one character too many is enough to see that it is too long
            return read_job(file.read(MAX_JOB_CHARACTERS + 1), what)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        return Job(None, {}, {}, (Problem(what, f"cannot be read: {reason}"),))


def _named_by(job: Job, problems: list[Problem]) -> Template | None:
    if job.template is None:
        return None
    try:
        return template_named(job.template.texts[0])
    except UnknownTemplateError as error:
        problems.append(Problem(job.template.where, str(error)))
        return None


def _misplaced(job: Job) -> list[Problem]:
    text = "is right for one start only and has no place in a file; pass"
    return [
        Problem(given.where, f"{name!r} {text} {runner_flag(name)}")
        for name, given in job.runner.items()
        if name in ONCE
    ]


def _from_options(flags: Mapping[str, Any]) -> dict[str, RawValue]:
    """Return what the flags of `_runner_options` give, as texts like everything else."""
    given = {}
    for name, value in flags.items():
        if value is not None and value != ():
            texts = value if isinstance(value, tuple) else ("true" if value is True else value,)
            given[name] = RawValue(texts, runner_flag(name), len(texts) > 1)
    return given


def _public(configuration: Configuration) -> dict[str, dict[str, Any]]:
    """The configuration as it may be shown: secrets hidden."""
    known = configuration.template.parameters
    shown = {name: "(hidden)" if known[name].secret else v for name, v in configuration.parameters.items()}
    runner = dict(configuration.runner)
    if isinstance(conf := runner.get("conf"), tuple):
        runner["conf"] = tuple(_discreet("--conf", str(pair)) for pair in conf)
    return {"parameters": shown, "runner": runner}


def _template(name: str) -> Template:
    try:
        return template_named(name)
    except UnknownTemplateError as error:
        _refuse(error)


def _refuse(error: Exception) -> NoReturn:
    click.echo(f"Error: {error}", err=True)
    sys.exit(Exit.CONFIGURATION)


def main() -> None:
    """Run the command; usage errors exit with 2, as configuration errors do."""
    cli(prog_name="penstock")


if __name__ == "__main__":
    main()
