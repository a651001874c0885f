"""How a run ends: its messages and its exit code. The pipeline is a fake that follows a script."""

from __future__ import annotations

import gc
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from penstock.errors import AnotherDriverError, ServiceError
from penstock.launch import run as run_module
from penstock.launch.reporter import Reporter, Style
from penstock.launch.run import Continuation, ExitCode, run_pipeline

WITHOUT_DOCSTRINGS = """
import io
from penstock.launch.reporter import Reporter, Style
from penstock.launch.run import Continuation, run_pipeline

stream = io.StringIO()
code = run_pipeline(lambda: None.format, Reporter(Style.LINE, stream), Continuation(""))
print(int(code), stream.getvalue())
"""
COMMAND = "penstock run t --checkpoint-dir /c"
CONTINUATION = Continuation(f"to continue, run:\n  {COMMAND}", COMMAND)


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
    code: ExitCode
    events: list[dict[str, Any]]

    def events_shown(self) -> list[str]:
        return [event["event"] for event in self.events if event["event"] != "progress"]

    def message(self, event: str) -> str:
        return next(each["message"] for each in self.events if each["event"] == event)


Run = Callable[..., Ended]


class OurError(RuntimeError):
    """Stands for an error that Penstock raises."""


OurError.__module__ = "penstock.somewhere"


@pytest.fixture
def run() -> Run:
    """Runs a fake pipeline, or one whose build function raises."""

    def run_(
        pipeline: FakePipeline | Exception,
        debug: bool = False,
        style: Style = Style.JSON,
        observer: Any = None,
    ) -> Ended:
        def build() -> FakePipeline:
            if isinstance(pipeline, Exception):
                raise pipeline
            return pipeline

        stream = io.StringIO()
        code = run_pipeline(build, Reporter(style, stream), CONTINUATION, debug=debug, observer=observer)
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
    assert ended.code == ExitCode.DONE == 0
    assert ended.events_shown() == ["done"]


def test_a_drained_pipeline_is_done(run: Run) -> None:
    assert run(FakePipeline(FakeResult([step("DRAINED")]))).code == ExitCode.DONE


def test_progress_is_shown_at_the_end_even_of_the_shortest_run(run: Run) -> None:
    ended = run(FakePipeline(FakeResult([step("DONE")])))
    assert "progress" in [event["event"] for event in ended.events]


@pytest.mark.parametrize("error", [ValueError("start lies before retention"), TypeError("no such argument")])
def test_a_value_that_a_transform_refuses_is_a_configuration_error(run: Run, error: Exception) -> None:
    ended = run(error)
    assert ended.code == ExitCode.CONFIGURATION == 2
    assert ended.message("error") == f"configuration: {error}"


def test_an_error_of_the_system_while_building_is_a_preflight_error(run: Run) -> None:
    assert run(OSError("output cannot be written")).code == ExitCode.PREFLIGHT == 3


def test_a_start_that_the_runner_refuses_is_a_preflight_error(run: Run) -> None:
    ended = run(FakePipeline(RuntimeError("the checkpoint folder is not empty")))
    assert ended.code == ExitCode.PREFLIGHT
    assert ended.message("error") == "not started: the checkpoint folder is not empty"


def test_a_start_that_may_succeed_the_next_time_has_the_exit_code_of_a_failure(run: Run) -> None:
    ended = run(FakePipeline(ServiceError("Spark's JVM was ended by SIGKILL before it was ready")))
    assert ended.code == ExitCode.FAILED
    assert ended.message("error") == "failed: Spark's JVM was ended by SIGKILL before it was ready"


def test_an_error_of_a_check_is_a_preflight_error(run: Run) -> None:
    ended = run(FakePipeline(FakeResult([step("DONE")]), refused=RuntimeError("there is no such stream")))
    assert ended.code == ExitCode.PREFLIGHT
    assert ended.message("error") == "not started: there is no such stream"


@pytest.mark.parametrize(("resumes", "checked"), [(True, ["check"]), (False, ["check_start", "check"])])
def test_the_start_is_checked_only_when_the_runner_does_not_resume(
    run: Run, resumes: bool, checked: list[str]
) -> None:
    calls: list[str] = []

    class Transform:
        def check(self) -> None:
            calls.append("check")

        def check_start(self) -> None:
            calls.append("check_start")

    @dataclass
    class Node:
        transform: Transform

    class Runner:
        def resumes(self, options: object) -> bool:
            return resumes

    class Pipeline(FakePipeline):
        runner = Runner()
        _options = None

        def visit(self, visitor: Any) -> None:
            visitor.visit_transform(Node(Transform()))

    assert run(Pipeline(FakeResult([step("DONE")]))).code == ExitCode.DONE
    assert calls == checked


@pytest.mark.parametrize("starts", [True, False])
def test_a_driver_that_another_one_keeps_from_running_is_not_to_be_started_again(
    run: Run, starts: bool
) -> None:
    """A supervisor knows it by the exit code. No message says how to take the checkpoint back."""
    error = AnotherDriverError("process 7 on host-a has taken over")
    ended = run(FakePipeline(FakeResult([step("RUNNING"), failing(error)]) if starts else error))
    assert ended.code == ExitCode.ANOTHER_DRIVER == 5
    assert ended.events_shown() == ["error"]
    assert ended.message("error") == "another driver runs the pipeline: process 7 on host-a has taken over"


def test_a_failing_pipeline_gives_one_message_and_how_to_continue(run: Run) -> None:
    ended = run(FakePipeline(FakeResult([step("RUNNING"), failing(OurError("epoch 7 failed"))])))
    assert ended.code == ExitCode.FAILED == 4
    assert ended.events_shown() == ["error", "resume"]
    assert ended.message("error") == "failed: epoch 7 failed"


def test_a_pipeline_that_ends_as_failed_without_an_error_has_failed_too(run: Run) -> None:
    assert run(FakePipeline(FakeResult([step("FAILED")]))).code == ExitCode.FAILED


def test_an_error_of_other_code_is_named_without_its_text(run: Run) -> None:
    secret = ValueError("row 17 has the value hunter2")
    message = run(FakePipeline(FakeResult([failing(secret)]))).message("error")
    assert message.startswith(f"failed: ValueError in {__file__}:")
    assert "hunter2" not in message
    assert "--debug" in message


def test_with_debug_the_traceback_is_shown_too(run: Run) -> None:
    ended = run(FakePipeline(FakeResult([failing(ValueError("in the words of a user's code"))])), debug=True)
    assert "in the words of a user's code" in ended.message("traceback")


def test_an_error_without_a_message_is_named_by_its_type(run: Run) -> None:
    assert run(FakePipeline(RuntimeError())).message("error") == "not started: RuntimeError"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_stops_with_a_checkpoint_and_says_how_to_continue(
    run: Run, number: signal.Signals
) -> None:
    result = FakeResult([step("RUNNING"), interrupting(number), step("RUNNING"), step("RUNNING")])
    ended = run(FakePipeline(result))
    assert ended.code == ExitCode.INTERRUPTED == 130
    assert result.calls == ["stop"]
    assert ended.events_shown() == ["stopping", "stopped", "resume"]
    assert COMMAND in ended.message("resume")


@dataclass
class FakeObserver:
    """Ends the pipeline at its second look."""

    looks: int = 0

    def look(self, status: Any) -> str:
        self.looks += 1
        return "enough" if self.looks == 2 else ""

    def finish(self, status: Any, *, interrupted: bool) -> str:
        return f"{self.looks} looks, {interrupted=}"


def test_an_observer_ends_the_pipeline_once_and_has_the_last_word(run: Run) -> None:
    result = FakeResult([step("RUNNING")] * 5)
    ended = run(FakePipeline(result), observer=FakeObserver())
    assert (ended.code, result.calls) == (ExitCode.DONE, ["stop"])
    assert ended.events_shown() == ["done"]
    assert ended.message("done") == "2 looks, interrupted=False"


def test_an_observed_pipeline_that_is_interrupted_is_not_done(run: Run) -> None:
    result = FakeResult([interrupting(signal.SIGINT), step("RUNNING")])
    ended = run(FakePipeline(result), observer=FakeObserver())
    assert ended.code == ExitCode.INTERRUPTED
    assert ended.message("stopped").endswith("interrupted=True")


def test_a_pipeline_that_was_cancelled_without_a_signal_has_failed(run: Run) -> None:
    assert run(FakePipeline(FakeResult([step("CANCELLED")]))).code == ExitCode.FAILED


def test_a_pipeline_that_fails_while_stopping_has_failed(run: Run) -> None:
    result = FakeResult([interrupting(signal.SIGINT)])
    result.stop = lambda: result.script.append(failing(RuntimeError("disk full")))  # type: ignore[method-assign]
    assert run(FakePipeline(result)).code == ExitCode.FAILED


def test_a_keyboard_interrupt_during_the_start_is_an_interrupt(run: Run) -> None:
    ended = run(FakePipeline(KeyboardInterrupt()))
    assert ended.code == ExitCode.INTERRUPTED
    assert ended.events_shown() == ["stopped", "resume"]


def test_a_start_that_fails_because_the_same_signal_ended_spark_is_an_interrupt(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(pipeline: FakePipeline) -> FakeResult:
        os.kill(os.getpid(), signal.SIGTERM)
        raise RuntimeError("Java gateway process exited")

    monkeypatch.setattr(FakePipeline, "run", start)
    ended = run(FakePipeline(FakeResult([])))
    assert ended.code == ExitCode.INTERRUPTED
    assert ended.events_shown() == ["stopped", "resume"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_ends_the_wait_for_a_service(
    run: Run, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = FakeResult([step("DONE")])
    monkeypatch.setattr(run_module, "_preflight", lambda pipeline, words: interrupting(number)())
    ended = run(FakePipeline(result))
    assert ended.code == ExitCode.INTERRUPTED
    assert ended.events_shown() == ["stopped", "resume"]
    assert result.script, "nothing was started"


def test_two_signals_at_one_moment_stop_with_a_checkpoint(run: Run) -> None:
    """GNU timeout sends SIGTERM to its child and then to the process group."""

    def interrupt_twice() -> str:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        return "RUNNING"

    result = FakeResult([step("RUNNING"), interrupt_twice, step("RUNNING")])
    assert run(FakePipeline(result)).code == ExitCode.INTERRUPTED
    assert result.calls == ["stop"]


def test_a_runner_without_stop_is_cancelled(run: Run) -> None:
    class CancelOnly(FakeResult):
        stop = None  # type: ignore[assignment]

        def cancel(self) -> None:
            self.calls.append("cancel")
            self.script = [lambda: "CANCELLED"]

    del CancelOnly.stop
    result = CancelOnly([interrupting(signal.SIGINT), step("RUNNING")])
    assert run(FakePipeline(result)).code == ExitCode.INTERRUPTED


def test_signal_handlers_are_restored_after_the_run(run: Run) -> None:
    before = signal.getsignal(signal.SIGINT)
    run(FakePipeline(FakeResult([step("DONE")])))
    assert signal.getsignal(signal.SIGINT) is before


def test_python_without_docstrings_is_refused_with_the_reason() -> None:
    command = [sys.executable, "-OO", "-c", WITHOUT_DOCSTRINGS]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("2 configuration: Python was started with -OO")


def test_the_collector_runs_again_after_a_start_that_failed() -> None:
    with pytest.raises(ValueError, match="refused"), run_module.without_collections():
        assert not gc.isenabled()
        raise ValueError("refused")
    assert gc.isenabled()
