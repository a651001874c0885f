"""Run one of Beam's suites under one runner, in one process with one Spark context.

    python -m tools.beam_suites.run SUITE [--runner penstock|one-process|beam] [--only TEXT] [--into FILE]

Prints each test that did not pass, and writes the outcome of every collected test. The runner is named
in the options of TestPipeline, as Beam's `--test-pipeline-options` does, and is the default runner of pipelines that
name none; no code of Beam is patched.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest
from apache_beam.options.pipeline_options import StandardOptions
from apache_beam.testing.test_pipeline import TestPipeline

from penstock.runner.spark import session
from tools.beam_suites.runners import OURS, started
from tools.beam_suites.suites import WHEEL, Suite, suites

ROOT = Path(__file__).resolve().parent.parent.parent
TEST_SECONDS = 120
OUTCOMES = ("passed", "skipped", "failed")


class TimeLimitError(BaseException):
    """A test took too long. Not an `Exception`, so that a test that expects one does not catch it."""


@dataclass(slots=True)
class Outcomes:
    """The outcomes of the tests, by id.

    `reasons` has the last line of each that was not passed; `absent` why a module could not be collected; `here`
    the tests that ran a pipeline on our runner.
    """

    suite: str
    runner: str
    tests: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    here: list[str] = field(default_factory=list)

    def named(self, outcome: str) -> list[str]:
        """Return the ids of the tests with this outcome."""
        return sorted(test for test, came_out in self.tests.items() if came_out == outcome)


class Watch:
    """The pytest plugin that records outcomes and ends a test that hangs."""

    def __init__(self, outcomes: Outcomes) -> None:
        self.outcomes = outcomes

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Iterator[Any]:
        report = yield
        if not report.passed:
            self.outcomes.absent[_module(collector.path)] = _last_line(report)
        return report

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.outcomes.tests = {_id(item): "not run" for item in session.items}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        before = len(started)
        signal.signal(signal.SIGALRM, _out_of_time)
        signal.alarm(TEST_SECONDS)
        try:
            return (yield)
        finally:
            signal.alarm(0)
            mine = started[before:]
            if mine:
                self.outcomes.here.append(_id(item))
            for result in mine:
                result.cancel()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[Any]:
        report = yield
        self._note(_id(item), report)
        return report

    def _note(self, test: str, report: pytest.TestReport) -> None:
        """Keep the worst outcome of set-up, test, subtests and tear-down."""
        had = self.outcomes.tests[test]
        if had == "not run" or OUTCOMES.index(report.outcome) > OUTCOMES.index(had):
            self.outcomes.tests[test] = report.outcome
            if not report.passed:
                self.outcomes.reasons[test] = _last_line(report)
            if report.failed:
                print(f"\nfailed  {test}: {self.outcomes.reasons[test]}", flush=True)


def run(suite: Suite, runner: str, only: str = "") -> Outcomes:
    """Run a suite and return the outcomes."""
    outcomes = Outcomes(suite.name, runner)
    named = OURS.get(runner, suite.runner)
    if named:
        TestPipeline.pytest_test_pipeline_options = f"--runner={named}"
        StandardOptions.DEFAULT_RUNNER = named
    # Pipelines without options read the command line.
    sys.argv = ["pytest"]
    if runner == "penstock":
        session.context("local[2,4]", {})
    pytest.main(
        [
            *(
                "-c",
                os.devnull,
                f"--rootdir={ROOT}",
                "--import-mode=importlib",
                "--noconftest",
                "-p",
                "no:cacheprovider",
            ),
            *(
                "-o",
                "consider_namespace_packages=true",
                "-q",
                "--tb=short",
                "--continue-on-collection-errors",
                "--disable-warnings",
            ),
            *(("-m", suite.marked) if suite.marked else ()),
            *(("-k", only) if only else ()),
            *("--pyargs", *suite.modules),
        ],
        plugins=[Watch(outcomes)],
    )
    return outcomes


def _out_of_time(*_: Any) -> None:
    raise TimeLimitError(f"not done after {TEST_SECONDS} s")


def _id(item: pytest.Item) -> str:
    """Return `module::Class::test`, independent of the path of the wheel."""
    module = item.getparent(pytest.Module).obj.__name__
    return "::".join([module, *item.nodeid.split("::")[1:]])


def _module(path: Path) -> str:
    """Return the name of a module of the wheel."""
    return ".".join(path.relative_to(WHEEL.parent).with_suffix("").parts)


def _last_line(report: Any) -> str:
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = str(crash.message if crash else report.longrepr).strip().splitlines()
    return (lines[0] if crash else lines[-1].removeprefix("E ").strip())[:300] if lines else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suite", choices=[suite.name for suite in suites()])
    parser.add_argument("--runner", choices=(*OURS, "beam"), default="penstock")
    parser.add_argument("--only", default="", help="a pytest -k expression, to look into one test")
    parser.add_argument("--into", type=Path, help="where the outcomes go, as JSON")
    given = parser.parse_args()
    (suite,) = (suite for suite in suites() if suite.name == given.suite)
    outcomes = run(suite, given.runner, given.only)
    print(f"{suite.name} on {given.runner}: {len(outcomes.tests)} collected,", end=" ")
    print(", ".join(f"{len(outcomes.named(outcome))} {outcome}" for outcome in OUTCOMES))
    print(f"{len(outcomes.here)} ran a pipeline on our runner; not collected: {outcomes.absent or 'nothing'}")
    if given.into:
        given.into.write_text(json.dumps(asdict(outcomes), indent=1))
    # Threads of a runner that hangs must not keep the process.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
