"""Start a configured pipeline and stay with it: progress, Ctrl-C, and one exit code for how it ended.

| code | meaning |
|---|---|
| 0 | done |
| 2 | usage or configuration: something given cannot work |
| 3 | preflight: refused before anything was read (access, a missing stream, a taken checkpoint folder) |
| 4 | the pipeline failed while it ran |
| 130 | interrupted; what is committed is safe, and the message says how to go on |
"""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from types import FrameType
from typing import Any

from penstock.cli.configuration import Configuration
from penstock.cli.console import Reporter
from penstock.telemetry.snapshot import Snapshot, look

POLL_MS = 250
"""How long one wait for the pipeline takes; the longest time until a Ctrl-C is noticed."""

ENDED = frozenset({"DONE", "FAILED", "CANCELLED", "DRAINED", "STOPPED"})
"""States in which nothing runs any more; STOPPED is a stop with a checkpoint."""


class Exit(IntEnum):
    """Exit codes; see the module's table."""

    DONE = 0
    CONFIGURATION = 2
    PREFLIGHT = 3
    FAILED = 4
    INTERRUPTED = 130


_KINDS = {Exit.CONFIGURATION: "configuration", Exit.PREFLIGHT: "not started", Exit.FAILED: "failed"}


class Interrupts:
    """Counts SIGINT and SIGTERM. The first asks for a stop with a checkpoint, the second ends the process.

    While `nothing_runs` there is nothing to stop: then the first one raises KeyboardInterrupt, so that nobody
    waits for a service that does not answer.

    `install` again after anything that may have set handlers of its own: a Spark context does.
    """

    def __init__(self, abort: Callable[[], None]) -> None:
        self.count = 0
        self.nothing_runs = False
        self._abort = abort

    def install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._received)

    def _received(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count > 1:
            self._abort()
        elif self.nothing_runs:
            raise KeyboardInterrupt

    @contextmanager
    def installed(self) -> Iterator[Interrupts]:
        """Count within a block; afterwards the handlers are those from before."""
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        self.install()
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def launch(configuration: Configuration, reporter: Reporter, resume: str, *, debug: bool = False) -> Exit:
    """Build the template's pipeline, run it on Spark until it ends or is interrupted; return how it ended.

    `resume` is the command that goes on after an interrupt. Every failure becomes one message; with `debug`
    its traceback is shown too, which may show values of rows.
    """
    session = _Session(reporter, resume, debug)
    with Interrupts(session.abort).installed() as interrupts:
        try:
            result = _start(configuration, session, interrupts)
        except KeyboardInterrupt:  # ours, or from the handler that a new Spark context has put in its place
            return session.interrupted_early()
        if isinstance(result, Exit):
            return result
        interrupts.install()
        return session.watch(result, interrupts)


def _start(configuration: Configuration, session: _Session, interrupts: Interrupts) -> Any:
    """Return the result of the pipeline, which runs now, or the code of what kept it from being started."""
    interrupts.nothing_runs = True
    try:
        pipeline = build(configuration)
    except (ValueError, TypeError) as error:
        return session.fail(Exit.CONFIGURATION, error)
    except Exception as error:
        return session.fail(Exit.PREFLIGHT, error)
    try:
        _preflight(pipeline)
        interrupts.nothing_runs = False
        return pipeline.run()
    except Exception as error:
        if interrupts.count:  # whoever ends a whole process group ends the JVM that is about to start
            return session.interrupted_early()
        return session.fail(Exit.PREFLIGHT, error)


def build(configuration: Configuration) -> Any:
    """Return the template's Beam pipeline with the runner's options; nothing is started."""
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    pipeline = beam.Pipeline(options=PipelineOptions(configuration.runner_arguments()))
    configuration.template.build_function()(pipeline, **configuration.parameters)
    return pipeline


def _preflight(pipeline: Any) -> None:
    # Imported late, as Beam is: it takes seconds that `penstock list` need not pay.
    from penstock.preflight import preflight

    preflight(pipeline)


class _Session:
    """One run, seen from the terminal."""

    def __init__(
        self, reporter: Reporter, resume: str, debug: bool, clock: Callable[[], float] = time.time
    ) -> None:
        self._reporter = reporter
        self._resume = resume
        self._debug = debug
        self._clock = clock

    def watch(self, result: Any, interrupts: Interrupts) -> Exit:
        """Show progress until the pipeline has ended; the first interrupt asks it to stop."""
        stopping = False
        try:
            while result.state not in ENDED:
                result.wait_until_finish(duration=POLL_MS)
                if interrupts.count and not stopping:
                    stopping = True
                    self._reporter.say("stopping", "stopping at the next checkpoint; Ctrl-C again aborts")
                    result.stop()
                if self._reporter.due():
                    self._reporter.show(self._look(result))
            result.wait_until_finish()
        except Exception as error:
            return self.fail(Exit.FAILED, error)
        self._reporter.show(self._look(result))
        return self._end(result.state, stopping)

    def fail(self, code: Exit, error: BaseException) -> Exit:
        """Say in one message what failed, with what to do where the error knows it; returns `code`."""
        kind = _KINDS[code]
        text = running_message(error) if code is Exit.FAILED else str(error) or type(error).__name__
        self._reporter.say("error", f"{kind}: {text}", kind=kind, exit_code=int(code))
        if self._debug:
            self._reporter.say("traceback", "".join(traceback.format_exception(error)).rstrip())
        if code is Exit.FAILED:
            self._say_how_to_go_on()
        return code

    def interrupted_early(self) -> Exit:
        """Say that the start itself was interrupted."""
        self._reporter.say("stopped", "interrupted while starting")
        self._say_how_to_go_on()
        return Exit.INTERRUPTED

    def abort(self) -> None:
        """End this process at once, as a crash would: no commit is cut, since a commit is one atomic step.

        Runs in a signal handler, which may have interrupted a write to the same stream, so it writes past the
        stream's buffer. The JVM ends when it sees its driver gone.
        """
        text = f"\naborted; everything up to the last checkpoint is safe; go on with:\n  {self._resume}\n"
        os.write(2, text.encode())
        os._exit(Exit.INTERRUPTED)

    def _end(self, state: str, stopping: bool) -> Exit:
        if state in ("DONE", "DRAINED"):
            self._reporter.say("done", "done")
            return Exit.DONE
        if state in ("STOPPED", "CANCELLED") and stopping:
            self._reporter.say("stopped", "stopped with a checkpoint")
            self._say_how_to_go_on()
            return Exit.INTERRUPTED
        self._reporter.say("error", f"the pipeline ended as {state}", exit_code=int(Exit.FAILED))
        self._say_how_to_go_on()
        return Exit.FAILED

    def _say_how_to_go_on(self) -> None:
        self._reporter.say("resume", f"go on with:\n  {self._resume}", command=self._resume)

    def _look(self, result: Any) -> Snapshot:
        return look(self._clock(), result.progress(), committed_counters(result.metrics()))


def committed_counters(metrics: Any) -> list[tuple[str, str, int]]:
    """Return (namespace, name, value) of each counter in Beam's MetricResults, as of the last commit."""
    found = metrics.query()["counters"]
    return [(each.key.metric.namespace, each.key.metric.name, each.committed or 0) for each in found]


def running_message(error: BaseException) -> str:
    """Return what failed while rows were on their way, and its causes.

    Only Penstock's own errors speak for themselves, since they never show a row's values. What any other
    error says is somebody's data, as far as we know: it is named by its type and the line that raised it.
    """
    chain = [error]
    while (cause := chain[-1].__cause__) is not None and cause not in chain:
        chain.append(cause)
    told = "; caused by ".join(_told(each) for each in chain)
    foreign = any(not _is_ours(each) for each in chain)
    return told + (". With --debug its message and traceback are shown too" if foreign else "")


def _told(error: BaseException) -> str:
    if _is_ours(error):
        return str(error) or type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    return type(error).__name__ + (f" in {frames[-1].filename}:{frames[-1].lineno}" if frames else "")


def _is_ours(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] == "penstock"
