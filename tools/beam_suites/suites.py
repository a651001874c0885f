"""The suites: sets of test modules of the installed wheel. Beam decides which tests a module has; none is left out.

`FnApiRunnerSplitTest` is not included: it controls the splits of an FnApiRunner object, so it cannot test another
runner.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import apache_beam

WHEEL = Path(apache_beam.__file__).parent


@dataclass(frozen=True, slots=True)
class Suite:
    """Test modules, and of these the tests with the marker `marked`, or all.

    `runner` is the runner with which Beam runs the suite; None: the default runner of a pipeline.
    """

    name: str
    what: str
    modules: tuple[str, ...]
    marked: str = ""
    runner: str | None = None


def suites() -> tuple[Suite, ...]:
    """All suites, the quick ones first."""
    core = [module for folder in ("transforms", "typehints") for module in _modules(f"{folder}/*_test.py")]
    triggers = "apache_beam.transforms.trigger_test"
    return (
        Suite(
            "fn-api-runner", "`FnApiRunnerTest`", ("tools.beam_suites.fn_api_runner",), runner="FnApiRunner"
        ),
        Suite(
            "metrics",
            "`FnApiRunnerMetricsTest`",
            ("tools.beam_suites.fn_api_runner_metrics",),
            runner="FnApiRunner",
        ),
        Suite("test-stream", "`testing/test_stream_test.py`", ("apache_beam.testing.test_stream_test",)),
        Suite("triggers", "`transforms/trigger_test.py`", (triggers,)),
        Suite(
            "validates-runner",
            "every test marked `it_validatesrunner`",
            tuple(module for module in _modules("**/*_test.py") if "it_validatesrunner" in _source(module)),
            marked="it_validatesrunner",
        ),
        Suite(
            "core",
            "the other modules of `transforms` and `typehints` that make a pipeline",
            tuple(module for module in core if module != triggers and "Pipeline(" in _source(module)),
        ),
    )


def _modules(pattern: str) -> Iterator[str]:
    for path in sorted(WHEEL.glob(pattern)):
        yield ".".join(path.relative_to(WHEEL.parent).with_suffix("").parts)


def _source(module: str) -> str:
    return (WHEEL.parent / Path(*module.split("."))).with_suffix(".py").read_text("utf-8")
