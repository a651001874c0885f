"""A pipeline's build function as a program: its keyword arguments become flags, all other flags go to Beam.

    --project=p --output=/data --checkpoint_dir=/checkpoints --epoch_seconds=1

The runner is `PySparkRunner` unless `--runner` says otherwise. A flag that neither knows is refused: Beam would go on
without it.
"""

from __future__ import annotations

import argparse
import difflib
import inspect
import logging
import signal
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from penstock.preflight import preflight

DEFAULT_RUNNER = "penstock.runner.PySparkRunner"


def run_program(build: Callable[..., Any], arguments: Sequence[str] | None = None) -> int:
    """Build a pipeline from command-line arguments (None: those of this process), run it, wait until it ends.

    SIGINT and SIGTERM stop it with a checkpoint where the runner can, and cancel it elsewhere. Returns the
    exit code 0; every failure raises, and what argparse refuses exits with 2.
    """
    logging.basicConfig(level=logging.WARNING)
    logging.getLogger("penstock").setLevel(logging.INFO)
    parser = _parser(build)
    given, rest = parser.parse_known_args(arguments)
    beam_arguments = with_runner(rest)
    pipeline = beam.Pipeline(options=PipelineOptions(beam_arguments))  # and with it the runner's own options
    if unknown := _unknown(parser, beam_arguments):
        parser.error("; ".join(unknown))
    build(pipeline, **{name: value for name, value in vars(given).items() if value is not None})
    preflight(pipeline)
    result = pipeline.run()
    _stop_on_signals(getattr(result, "stop", result.cancel))
    result.wait_until_finish()
    return 0


def _stop_on_signals(stop: Callable[[], object]) -> None:
    """Call `stop` on SIGINT and SIGTERM; Spark's own handler would cancel an epoch that can be committed."""

    def received(number: int, frame: FrameType | None) -> None:
        stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, received)


def with_runner(arguments: Sequence[str]) -> list[str]:
    """Return Beam's arguments with our runner in front, where they name none."""
    named = any(each == "--runner" or each.startswith("--runner=") for each in arguments)
    return list(arguments) if named else [f"--runner={DEFAULT_RUNNER}", *arguments]


def _parser(build: Callable[..., Any]) -> argparse.ArgumentParser:
    """Return a parser for the keyword arguments of `build`; one without a default is required.

    A flag is never abbreviated: Beam has hundreds, and `--s` must not become one of ours.
    """
    summary = (inspect.getdoc(build) or "").partition("\n")[0]
    parser = argparse.ArgumentParser(description=summary, allow_abbrev=False)
    for name, parameter in inspect.signature(build).parameters.items():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            required = parameter.default is inspect.Parameter.empty
            parser.add_argument(f"--{name}", required=required, **_reading(parameter))
    return parser


def _unknown(ours: argparse.ArgumentParser, arguments: Sequence[str]) -> list[str]:
    """Return a sentence for each of Beam's arguments that no options class knows; their values are not abbreviate."""
    found: list[str] = []

    def look(beams: argparse.ArgumentParser) -> None:
        flags = [
            flag for parser in (ours, beams) for action in parser._actions for flag in action.option_strings
        ]
        for argument in beams.parse_known_args(arguments)[1]:
            if argument.startswith("-"):
                name = argument.partition("=")[0]
                near = difflib.get_close_matches(name, flags, 1)
                found.append(f"there is no flag {name}" + (f"; did you mean {near[0]}?" if near else ""))

    # Only Beam knows all its options; asked to keep what is unknown, it does not warn of it as well.
    PipelineOptions(list(arguments)).get_all_options(add_extra_args_fn=look, retain_unknown_options=True)
    return found


def _reading(parameter: inspect.Parameter) -> dict[str, Any]:
    """Return how a flag is read, by the parameter's annotation (which is text: it is lazy)."""
    ways: dict[str, dict[str, Any]] = {
        "int": {"type": int},
        "float": {"type": float},
        "bool": {"type": _truth, "metavar": "true|false"},
        "Sequence[str]": {"action": "append"},
    }
    return ways.get(str(parameter.annotation).removesuffix(" | None"), {})


def _truth(text: str) -> bool:
    known = {"true": True, "false": False}
    if text.lower() not in known:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return known[text.lower()]
