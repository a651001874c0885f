"""The state of a cancelled pipeline, for cancellations at different times."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from penstock.runner.result import PySparkPipelineResult
from penstock.runner.store.drivers import Answers


def test_a_stream_that_is_cancelled_between_two_epochs_is_cancelled_not_stopped() -> None:
    result = PySparkPipelineResult()
    asked = threading.Event()

    def wait_for_an_epoch() -> str:
        asked.wait(10)
        return "STOPPED"

    result.run_in_background(wait_for_an_epoch, asked.set)
    assert result.cancel() == "CANCELLED"
    assert result.wait_until_finish() == "CANCELLED"


def test_a_stream_that_is_stopped_is_not_cancelled() -> None:
    result = PySparkPipelineResult()
    result.run_in_background(lambda: "STOPPED", lambda: None)
    assert result.wait_until_finish() == "STOPPED"
    assert result.cancel() == "STOPPED"


def test_a_job_that_starts_after_the_first_try_to_cancel_it_is_cancelled_too() -> None:
    result = PySparkPipelineResult()
    tries: list[int] = []
    cancelled = threading.Event()

    def cancel_job() -> None:
        tries.append(1)
        if len(tries) == 2:
            cancelled.set()

    def job() -> str:
        if cancelled.wait(30):
            raise RuntimeError("the job was cancelled")
        return "DONE"

    result.run_in_background(job, cancel_job)
    assert result.cancel() == "CANCELLED"


def test_an_error_before_a_cancellation_is_raised() -> None:
    result = PySparkPipelineResult()

    def fail() -> str:
        raise OSError("no space")

    result.run_in_background(fail, lambda: None)
    with pytest.raises(OSError, match="no space"):
        result.wait_until_finish()
    assert result.state == "FAILED"


def test_a_pipeline_that_is_being_cancelled_cannot_be_drained() -> None:
    result = PySparkPipelineResult()

    def job() -> str:
        assert asked.wait(30)
        raise RuntimeError("the job was cancelled")

    def drain_too() -> None:
        result.drain()
        asked.set()

    asked = threading.Event()
    result.run_in_background(job, drain_too)
    assert result.cancel() == "CANCELLED"
    assert result.wait_until_finish() == "CANCELLED"


PROGRAM = """
import os, signal, sys, threading, time
from penstock.runner.result import PySparkPipelineResult

result, cancelled = PySparkPipelineResult(), threading.Event()
interrupt = lambda: os.kill(os.getpid(), signal.SIGINT)

def cancel_all_jobs(number, frame):
    cancelled.set()
    raise KeyboardInterrupt

cancel_all_jobs.__module__ = "pyspark.core.context"  # which sets a handler with each context
signal.signal(signal.SIGINT, cancel_all_jobs)

def epochs():
    while not result.stopping and not cancelled.is_set():
        time.sleep(0.001)
    if "twice" in sys.argv:
        interrupt()
        assert cancelled.wait(60)
    if "ends" in sys.argv:
        print("cancelled" if result.cancelling else "left alone")
    if cancelled.is_set():
        raise OSError("the job was cancelled, with a row of 4711")
    return "STOPPED"

result.run_in_background(epochs, cancelled.set, streaming="batch" not in sys.argv)
if "ends" in sys.argv:
    sys.exit(0)
threading.Timer(0.1, interrupt).start()
try:
    result.wait_until_finish()
finally:
    print("the program sees it:", type(sys.exc_info()[1]).__name__)
"""


@pytest.mark.long(seconds=5)
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "interrupted; the pipeline is stopped with a checkpoint"),
        (["batch"], "interrupted; the pipeline is cancelled"),
        pytest.param(["twice"], "interrupted; the pipeline is cancelled", marks=pytest.mark.long(seconds=5)),
    ],
)
def test_ctrl_c_in_a_program_that_waits_ends_the_pipeline_in_order_and_without_a_traceback(
    arguments: list[str], told: str
) -> None:
    done = program(*arguments)
    assert done.returncode == -signal.SIGINT
    assert done.stdout == "the program sees it: KeyboardInterrupt\n"
    lines = done.stderr.splitlines()
    assert lines[-1] == told, done.stderr
    assert [line for line in lines[:-1] if not line.startswith("interrupted: the stream stops")] == []


@pytest.mark.long(seconds=5)
def test_a_program_that_ends_before_its_pipeline_cancels_it() -> None:
    """Else its thread would log failures of an epoch whose Spark has ended with the program."""
    done = program("ends")
    assert (done.returncode, done.stdout, done.stderr) == (0, "cancelled\n", "")


def program(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_answers_of_services_before_the_take_over_are_left_after_it() -> None:
    result, left = PySparkPipelineResult(), []
    result.note_answers(1.0, [{"name": "penstock_slot_lost"}])
    result.leave_answers(left.append)
    result.note_answers(2.0, [])
    assert left == [Answers(1.0, ({"name": "penstock_slot_lost"},)), Answers(2.0)]
