"""A pipeline's build function as a program: its keyword arguments become flags, all other flags go to Beam.

    --project=p --output=/data --checkpoint_dir=/checkpoints --epoch_seconds=1

The runner is `PySparkRunner` unless `--runner` says otherwise.
"""

from __future__ import annotations

import argparse
import inspect
import logging
import signal
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from penstock.pipelines.preflight import preflight

DEFAULT_RUNNER = "penstock.runner.PySparkRunner"


def run_program(build: Callable[..., Any], arguments: Sequence[str] | None = None) -> int:
    """Build a pipeline from command-line arguments (None: those of this process), run it, wait until it ends.

    SIGINT and SIGTERM stop it with a checkpoint where the runner can, and cancel it elsewhere. Returns the
    exit code 0; every failure raises.
    """
    logging.basicConfig(level=logging.WARNING)
    logging.getLogger("penstock").setLevel(logging.INFO)
    given, beam_arguments = _parser(build).parse_known_args(arguments)
    pipeline = beam.Pipeline(options=PipelineOptions(with_runner(beam_arguments)))
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
