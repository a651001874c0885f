"""How a run ends: what is said, and with which exit code. The pipeline is a fake that does as it is told."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from penstock.cli import launch as launch_module
from penstock.cli.configuration import Configuration
from penstock.cli.console import Reporter, Style
from penstock.cli.launch import Exit, launch, running_message
from penstock.templates.template import Template

RESUME = "penstock run t --checkpoint-dir /c"
TEMPLATE = Template(
    name="t",
    summary="For this test.",
    description="",
    pipeline="a:b",
    streaming=True,
    guarantees=(),
    parameters={},
)


class FakeMetrics:
    def query(self) -> dict[str, list[Any]]:
        return {"counters": []}


@dataclass
class FakeProgress:
    epochs: int = 1
    committed_us: int | None = None
    watermark_us: int | None = None
    residuals: tuple[()] = ()


@dataclass
class FakeResult:
    """Plays `script`: each wait takes one step of it; a step returns the next state or raises."""

    script: list[Callable[[], str]]
    state: str = "RUNNING"
    calls: list[str] = field(default_factory=list)

    def wait_until_finish(self, duration: int | None = None) -> str:
        if self.script:
            self.state = self.script.pop(0)()
        return self.state

    def stop(self) -> None:
        self.calls.append("stop")
        self.script = [lambda: "STOPPED"]

    def progress(self) -> FakeProgress:
        return FakeProgress()

    def metrics(self) -> FakeMetrics:
        return FakeMetrics()


@dataclass
class FakePipeline:
    result: FakeResult | BaseException
    refused: Exception | None = None

    def visit(self, visitor: object) -> None:
        if self.refused:
            raise self.refused

    def run(self) -> FakeResult:
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result


@dataclass
class Ended:
    code: Exit
    events: list[dict[str, Any]]

    def said(self) -> list[str]:
        return [event["event"] for event in self.events if event["event"] != "progress"]

    def message(self, event: str) -> str:
        return next(each["message"] for each in self.events if each["event"] == event)


Run = Callable[..., Ended]


class OurError(RuntimeError):
    """Stands for an error that Penstock raises."""


OurError.__module__ = "penstock.somewhere"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Launch a fake pipeline, or what raises when it is built."""

    def run_(pipeline: FakePipeline | Exception, debug: bool = False) -> Ended:
        def build(configuration: Configuration) -> FakePipeline:
            if isinstance(pipeline, Exception):
                raise pipeline
            return pipeline

        monkeypatch.setattr(launch_module, "build", build)
        stream = io.StringIO()
        code = launch(Configuration(TEMPLATE, {}, {}), Reporter(Style.JSON, stream), RESUME, debug=debug)
        return Ended(code, [json.loads(line) for line in stream.getvalue().splitlines()])

    return run_


def step(state: str) -> Callable[[], str]:
    return lambda: state


def failing(error: BaseException) -> Callable[[], str]:
    def fail() -> str:
        raise error

    return fail


def interrupting(number: signal.Signals) -> Callable[[], str]:
    def interrupt() -> str:
        os.kill(os.getpid(), number)
        return "RUNNING"

    return interrupt


def test_a_pipeline_that_is_done_ends_with_0(run: Run) -> None:
    ended = run(FakePipeline(FakeResult([step("RUNNING"), step("DONE")])))
    assert ended.code == Exit.DONE == 0
    assert ended.said() == ["done"]


def test_a_drained_pipeline_is_done(run: Run) -> None:
    assert run(FakePipeline(FakeResult([step("DRAINED")]))).code == Exit.DONE


def test_progress_is_shown_at_the_end_even_of_the_shortest_run(run: Run) -> None:
    ended = run(FakePipeline(FakeResult([step("DONE")])))
    assert "progress" in [event["event"] for event in ended.events]


@pytest.mark.parametrize("error", [ValueError("start lies before retention"), TypeError("no such argument")])
def test_what_a_transform_refuses_to_take_is_a_configuration_error(run: Run, error: Exception) -> None:
    ended = run(error)
    assert ended.code == Exit.CONFIGURATION == 2
    assert ended.message("error") == f"configuration: {error}"


def test_what_cannot_be_reached_while_building_is_a_preflight_error(run: Run) -> None:
    assert run(OSError("output cannot be written")).code == Exit.PREFLIGHT == 3


def test_what_is_refused_before_anything_starts_is_a_preflight_error(run: Run) -> None:
    ended = run(FakePipeline(RuntimeError("the checkpoint folder is not empty")))
    assert ended.code == Exit.PREFLIGHT
    assert ended.message("error") == "not started: the checkpoint folder is not empty"


def test_what_a_transform_finds_missing_outside_is_a_preflight_error(run: Run) -> None:
    ended = run(FakePipeline(FakeResult([step("DONE")]), refused=RuntimeError("there is no such stream")))
    assert ended.code == Exit.PREFLIGHT
    assert ended.message("error") == "not started: there is no such stream"


def test_a_failing_pipeline_is_one_message_and_how_to_go_on(run: Run) -> None:
    ended = run(FakePipeline(FakeResult([step("RUNNING"), failing(OurError("epoch 7 failed"))])))
    assert ended.code == Exit.FAILED == 4
    assert ended.said() == ["error", "resume"]
    assert ended.message("error") == "failed: epoch 7 failed"


def test_a_pipeline_that_ends_as_failed_without_an_error_has_failed_too(run: Run) -> None:
    assert run(FakePipeline(FakeResult([step("FAILED")]))).code == Exit.FAILED


def test_an_error_that_is_not_ours_is_named_but_does_not_speak(run: Run) -> None:
    secret = ValueError("row 17 has the value hunter2")
    message = run(FakePipeline(FakeResult([failing(secret)]))).message("error")
    assert message.startswith(f"failed: ValueError in {__file__}:")
    assert "hunter2" not in message
    assert "--debug" in message


def test_with_debug_the_traceback_is_shown_too(run: Run) -> None:
    ended = run(FakePipeline(FakeResult([failing(ValueError("in the words of a user's code"))])), debug=True)
    assert "in the words of a user's code" in ended.message("traceback")


def test_our_errors_and_their_causes_are_told_in_order() -> None:
    error = OurError("epoch 7 failed")
    error.__cause__ = OurError("step Read: the stream was dropped")
    assert running_message(error) == "epoch 7 failed; caused by step Read: the stream was dropped"


def test_an_error_without_words_is_named_by_its_type(run: Run) -> None:
    assert run(FakePipeline(RuntimeError())).message("error") == "not started: RuntimeError"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_stops_with_a_checkpoint_and_says_how_to_go_on(run: Run, number: signal.Signals) -> None:
    result = FakeResult([step("RUNNING"), interrupting(number), step("RUNNING"), step("RUNNING")])
    ended = run(FakePipeline(result))
    assert ended.code == Exit.INTERRUPTED == 130
    assert result.calls == ["stop"]
    assert ended.said() == ["stopping", "stopped", "resume"]
    assert RESUME in ended.message("resume")


def test_a_pipeline_that_is_stopped_by_somebody_else_did_not_do_as_asked(run: Run) -> None:
    assert run(FakePipeline(FakeResult([step("CANCELLED")]))).code == Exit.FAILED


def test_a_pipeline_that_fails_while_stopping_has_failed(run: Run) -> None:
    result = FakeResult([interrupting(signal.SIGINT)])
    result.stop = lambda: result.script.append(failing(RuntimeError("disk full")))  # type: ignore[method-assign]
    assert run(FakePipeline(result)).code == Exit.FAILED


def test_an_interrupt_of_the_start_itself_is_an_interrupt(run: Run) -> None:
    ended = run(FakePipeline(KeyboardInterrupt()))
    assert ended.code == Exit.INTERRUPTED
    assert ended.said() == ["stopped", "resume"]


def test_a_start_that_fails_because_the_same_signal_ended_spark_is_an_interrupt(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(pipeline: FakePipeline) -> FakeResult:
        os.kill(os.getpid(), signal.SIGTERM)
        raise RuntimeError("Java gateway process exited")

    monkeypatch.setattr(FakePipeline, "run", start)
    ended = run(FakePipeline(FakeResult([])))
    assert ended.code == Exit.INTERRUPTED
    assert ended.said() == ["stopped", "resume"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_a_service_is_waited_for_ends_the_waiting(
    run: Run, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = FakeResult([step("DONE")])
    monkeypatch.setattr(launch_module, "_preflight", lambda pipeline: interrupting(number)())
    ended = run(FakePipeline(result))
    assert ended.code == Exit.INTERRUPTED
    assert ended.said() == ["stopped", "resume"]
    assert result.script, "nothing was started"


def test_signal_handlers_are_as_before_afterwards(run: Run) -> None:
    before = signal.getsignal(signal.SIGINT)
    run(FakePipeline(FakeResult([step("DONE")])))
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_interrupt_ends_the_process_at_once_and_says_how_to_go_on() -> None:
    program = textwrap.dedent(
        """
        import os, signal, sys
        from penstock.cli.console import Reporter, Style
        from penstock.cli.launch import Interrupts, _Session
        session = _Session(Reporter(Style.LINE), "penstock run t", debug=False)
        with Interrupts(session.abort).installed():
            os.kill(os.getpid(), signal.SIGINT)
            print("still here", flush=True)
            os.kill(os.getpid(), signal.SIGINT)
            print("too far", flush=True)
        """
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert done.stdout == "still here\n"
    assert "go on with:\n  penstock run t" in done.stderr
