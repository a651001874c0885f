"""A build function as a program: which flags it gets, and what goes to Beam."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest

from penstock.launch.run import ExitCode
from penstock.pipelines.parameters import parameters_of
from penstock.pipelines.program import run_program, with_runner
from penstock.templates.template import Template, templates

ON_BEAM = "--runner=apache_beam.runners.direct.DirectRunner"


class Seen:
    """The arguments of a call of a build function."""

    arguments: dict[str, Any]


def build(
    pipeline: beam.Pipeline, *, name: str, count: int = 3, ratio: float = 1, start: str | None = None
) -> None:
    """Build a pipeline that does nothing."""
    Seen.arguments = {"name": name, "count": count, "ratio": ratio, "start": start}
    pipeline | beam.Create([1])


@pytest.fixture(autouse=True)
def _process_settings() -> Any:
    """`run_program` changes signal handlers, logging and sys.stderr of its process."""
    root, stderr = logging.getLogger(), sys.stderr
    handlers, level = list(root.handlers), root.level
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    root.handlers[:], root.level, sys.stderr = handlers, level, stderr
    logging.captureWarnings(False)


def test_keyword_arguments_become_flags_of_their_types() -> None:
    assert run_program(build, ["--name=a,b", "--count", "5", "--ratio=0.5", ON_BEAM]) == 0
    assert Seen.arguments == {"name": "a,b", "count": 5, "ratio": 0.5, "start": None}


def test_a_missing_flag_keeps_the_default_of_the_function() -> None:
    run_program(build, ["--name=x", ON_BEAM])
    assert (Seen.arguments["count"], Seen.arguments["ratio"]) == (3, 1)


def test_an_argument_without_a_default_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run_program(build, [ON_BEAM])
    assert caught.value.code == 2
    assert "--name" in capsys.readouterr().err


def test_flags_are_never_abbreviated() -> None:
    with pytest.raises(SystemExit):
        run_program(build, ["--nam=x", ON_BEAM])


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("--coun=5", "--count"), ("--checkpont_dir=/secret", "--checkpoint_dir"), ("--zzz", None)],
)
def test_a_flag_that_neither_the_pipeline_nor_beam_knows_is_refused(
    wrong: str, right: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    import penstock.runner.options  # noqa: F401  (Beam knows them once they are imported)

    with pytest.raises(SystemExit) as caught:
        run_program(build, ["--name=x", wrong, ON_BEAM])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert f"there is no flag {wrong.partition('=')[0]}" in said
    assert right is None or f"did you mean '{right}'?" in said
    assert "/secret" not in said


@pytest.mark.parametrize("template", templates().values(), ids=lambda each: each.name)
def test_the_pipeline_of_each_template_has_flags(
    template: Template, capsys: pytest.CaptureFixture[str]
) -> None:
    known = parameters_of(template.source, template.sink).every
    with pytest.raises(SystemExit) as caught:
        run_program(build, ["--help"], known)
    assert caught.value.code == 0
    flags = capsys.readouterr().out
    assert all(f"--{name}" in flags for name in template.parameters)


def test_our_runner_is_the_default_and_any_other_can_be_named() -> None:
    assert with_runner(["--x=1"]) == ["--runner=penstock.runner.PySparkRunner", "--x=1"]
    assert with_runner(["--runner", "DirectRunner"]) == ["--runner", "DirectRunner"]


@pytest.mark.slow
def test_a_signal_stops_the_pipeline_with_a_checkpoint(tmp_path: Path) -> None:
    """Uses a separate process with a fake runner, whose pipeline runs until it is stopped."""
    program = textwrap.dedent(
        """
        import json, os, signal, sys, threading
        import apache_beam as beam
        from apache_beam.runners.runner import PipelineResult, PipelineRunner
        from penstock.pipelines.program import run_program

        class Result(PipelineResult):
            def __init__(self):
                super().__init__("RUNNING")
                self.stopped = threading.Event()
            def stop(self):
                self.stopped.set()
            def wait_until_finish(self, duration=None):
                print("running", flush=True)
                if self.stopped.wait(duration and duration / 1000):
                    self._state = "STOPPED"

        class Runner(PipelineRunner):
            def run_pipeline(self, pipeline, options):
                return Result()

        sys.modules["fake_runners"] = sys.modules["__main__"]

        def build(pipeline):
            pipeline | beam.Create([1])

        sys.exit(run_program(build, ["--runner=fake_runners.Runner"]))
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    os.kill(process.pid, signal.SIGTERM)
    _, messages = process.communicate(timeout=60)
    assert process.returncode == ExitCode.INTERRUPTED
    assert "stopped with a checkpoint" in messages
    assert "to continue, start the same program" in messages


def test_a_failure_is_one_message_and_the_exit_code_of_the_command(capfd: pytest.CaptureFixture[str]) -> None:
    def refuse(pipeline: beam.Pipeline, *, name: str) -> None:
        """Refuse every name."""
        raise ValueError(f"name {name!r} is not known; pass another")

    assert run_program(refuse, ["--name=x", ON_BEAM]) == ExitCode.CONFIGURATION
    assert capfd.readouterr().err == "configuration: name 'x' is not known; pass another\n"


def test_an_output_inside_the_checkpoint_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    def write(pipeline: beam.Pipeline, *, output: str) -> None:
        """Write somewhere."""

    with pytest.raises(SystemExit) as caught:
        run_program(write, ["--output=/data/c/out", "--checkpoint_dir=/data/c"])
    assert caught.value.code == ExitCode.CONFIGURATION
    assert "output /data/c/out is inside checkpoint_dir /data/c" in capsys.readouterr().err
