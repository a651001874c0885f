"""Runs a pipeline's build function as a program: its parameters become flags, all other flags go to Beam.

    --project=p --output=/data --checkpoint_dir=/checkpoints --epoch_seconds=1

The runner is `PySparkRunner` unless `--runner` names another. Signals, messages and exit codes are the same as in the
`penstock` command, because both use `penstock.launch.run`.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, NoReturn, get_origin

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from penstock.errors import UsageError
from penstock.launch.folders import any_folder_conflict
from penstock.launch.reporter import standard_error_reporter
from penstock.launch.run import Continuation, run_pipeline
from penstock.launch.streams import open_missing_streams
from penstock.options import EMPTY, Argument, arguments_of
from penstock.suggestions import did_you_mean
from penstock.telemetry.export import exporters

DEFAULT_RUNNER = "penstock.runner.PySparkRunner"
_CONTINUATION = Continuation("to continue, start the same program with the same flags, without --fresh")


def run_program(
    build: Callable[..., Any],
    arguments: Sequence[str] | None = None,
    parameters: Mapping[str, Argument] | None = None,
) -> int:
    """Build a pipeline from command-line arguments (None: the arguments of this process), run it, wait for its end.

    `parameters` become flags; None: the keyword arguments of `build`.

    SIGINT, SIGTERM and SIGHUP stop it with a checkpoint if the runner can do that, otherwise they cancel it. Returns
    the exit code of `penstock.launch.run`. Wrong flags end the process with 2, as argparse does.
    """
    open_missing_streams()
    parser = _parser(build, keyword_arguments(build) if parameters is None else parameters)
    ours, rest = parser.parse_known_args(arguments)
    beam_arguments = with_runner(rest)
    options = PipelineOptions(beam_arguments)
    pipeline = beam.Pipeline(options=options)  # imports the runner, and its options with it
    if unknown := _unknown_flags(parser, beam_arguments):
        parser.error("; ".join(unknown))
    values = {name: value for name, value in vars(ours).items() if value is not None}
    debug, progress = values.pop("debug"), values.pop("progress")
    metrics = values.pop("metrics", ())
    checkpoint = {"checkpoint_dir": options.get_all_options().get("checkpoint_dir")}
    if conflict := any_folder_conflict({**values, **checkpoint}):
        parser.error(conflict)

    def built() -> beam.Pipeline:
        build(pipeline, **values)
        return pipeline

    try:
        with standard_error_reporter(progress) as reporter, exporters(metrics) as export:
            return int(run_pipeline(built, reporter, _CONTINUATION, debug=debug, export=export))
    except UsageError as error:  # of an exporter; errors of the pipeline are exit codes
        parser.error(str(error))


def run_script(module: str) -> NoReturn:
    """Run the `main` of a pipeline's module, imported by its name, and exit with the code that it returns."""
    sys.exit(import_module(module).main())


def with_runner(arguments: Sequence[str]) -> list[str]:
    """Return the arguments for Beam, with our runner first unless they name a runner."""
    named = any(each == "--runner" or each.startswith("--runner=") for each in arguments)
    return list(arguments) if named else [f"--runner={DEFAULT_RUNNER}", *arguments]


def keyword_arguments(build: Callable[..., Any]) -> dict[str, Argument]:
    """Return the arguments of a build function after the pipeline."""
    return dict(list(arguments_of(build).items())[1:])


def _parser(build: Callable[..., Any], parameters: Mapping[str, Argument]) -> argparse.ArgumentParser:
    """Return a parser for parameters. One without a default is required.

    Flags cannot be abbreviated: Beam has hundreds, and `--s` must not be read as a flag of the pipeline.
    """
    summary = (inspect.getdoc(build) or "").partition("\n")[0]
    parser = argparse.ArgumentParser(description=summary, allow_abbrev=False)
    for name, each in parameters.items():
        parser.add_argument(
            f"--{name}", required=each.default is EMPTY, help=each.help.replace("%", "%%"), **_flag_type(each)
        )
    styles = ["live", "line", "json", "none"]
    parser.add_argument(
        "--progress", choices=styles, default="none", help="How to show progress (default: none)."
    )
    parser.add_argument(
        "--metrics",
        action="append",
        metavar="prometheus[=HOST:PORT]|otlp",
        help="Export metrics of each commit; may be repeated. prometheus listens on 127.0.0.1:9464.",
    )
    debug = "Also show the traceback of an error. It may contain values of rows."
    parser.add_argument("--debug", action="store_true", help=debug)
    return parser


def _unknown_flags(ours: argparse.ArgumentParser, arguments: Sequence[str]) -> list[str]:
    """Return a sentence for each of `arguments` that no options class of Beam knows, without its value.

    Beam itself ignores unknown flags, so a misspelled option would silently have no effect.
    """
    problems: list[str] = []

    def check(beams: argparse.ArgumentParser) -> None:
        # argparse has no public list of a parser's flags.
        flags = [
            flag for parser in (ours, beams) for action in parser._actions for flag in action.option_strings
        ]
        for argument in beams.parse_known_args(arguments)[1]:
            if argument.startswith("-"):
                flag = argument.partition("=")[0]
                problems.append(f"there is no flag {flag}{did_you_mean(flag, flags)}")

    # Beam calls `check` with the one parser that has the options of all its classes. Without `retain_unknown_options`
    # it would also log a warning about the unknown ones.
    PipelineOptions(list(arguments)).get_all_options(add_extra_args_fn=check, retain_unknown_options=True)
    return problems


def _flag_type(parameter: Argument) -> dict[str, Any]:
    """Return the arguments for argparse that read a flag of this type."""
    origin = get_origin(parameter.type)
    if origin in (Iterable, Sequence):
        return {"action": "append"}
    if origin is Mapping:
        return {"action": _AddPair, "metavar": "NAME=VALUE"}
    if parameter.choices:
        return {"choices": parameter.choices}
    if parameter.type is bool:
        return {"type": _read_boolean, "metavar": "true|false"}
    return {"type": parameter.type} if parameter.type in (int, float) else {}


class _AddPair(argparse.Action):
    """Collects NAME=VALUE of a repeated flag in a dictionary."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        name, equals, value = values.partition("=")
        if not equals or not name:
            parser.error(f"{option_string} takes NAME=VALUE")
        setattr(namespace, self.dest, {**(getattr(namespace, self.dest) or {}), name: value})


def _read_boolean(text: str) -> bool:
    known = {"true": True, "false": False}
    if text.lower() not in known:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return known[text.lower()]
