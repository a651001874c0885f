"""Asks the driver of a job that runs elsewhere to stop or to drain, and waits for its answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from penstock.launch.run import ExitCode
from penstock.telemetry.status import span

LOOK_SECONDS = 1.0
"""Time between two looks at the checkpoint folder."""


def ask(
    job: Any,
    what: str,
    wait_seconds: float,
    say: Callable[[str], None],
    clock: Callable[[], float] = time.time,
    pause: Callable[[float], None] = time.sleep,
) -> ExitCode:
    """Ask the driver of a `RemoteJob` to ``stop`` or to ``drain``, and wait until it has ended.

    If the pipeline is started again in this time, the new driver is asked. Without an answer in time the request stays.
    """
    record = job.last()
    if record is None:
        say("the pipeline has not begun: its checkpoint has no record")
        return ExitCode.FAILED
    if record.state.done:
        say(f"the pipeline has already ended, with record {record.number}")
        return ExitCode.DONE
    generation, began = record.generation, clock()
    if job.ended(generation) is not None:
        return _ended(what, record.number, say)
    job.request(what, generation)
    age = span(max(0.0, began - record.committed_us / 1e6))
    say(f"asked {record.writer} to {what}; its last commit was {age} ago")
    while clock() - began < wait_seconds:
        pause(LOOK_SECONDS)
        record = job.last() or record
        if record.state.done:
            say(f"{'drained' if record.state.draining else 'ended'}, with record {record.number}")
            return ExitCode.DONE
        if record.generation > generation:  # the request was for a driver that is gone
            generation = record.generation
            job.request(what, generation)
        elif what not in job.requested(generation):
            return _ended(what, record.number, say)
    if not wait_seconds:
        return ExitCode.DONE
    say(
        f"no answer in {span(wait_seconds)}. A driver that runs answers when its epoch has ended; the request stays. "
        "If no driver runs, the pipeline is stopped already, and the request has no effect on its next start"
    )
    return ExitCode.FAILED


def _ended(what: str, number: int, say: Callable[[str], None]) -> ExitCode:
    if what == "stop":
        say(f"stopped, with record {number}; the same command that started the pipeline continues it")
        return ExitCode.DONE
    say(
        f"the driver ended before the pipeline was drained, with record {number}: start it again, and drain it"
    )
    return ExitCode.FAILED
