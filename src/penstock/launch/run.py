"""Starts a pipeline and waits for its end: progress, signals, messages, and one exit code.

| code | meaning |
|---|---|
| 0 | done |
| 2 | usage or configuration: a given value cannot work |
| 3 | refused before anything was read: no access, no such stream, a checkpoint folder that does not fit |
| 4 | the pipeline failed while it ran |
| 5 | another driver runs the pipeline: the start was refused, or the other driver has taken over |
| 130 | interrupted; committed work is safe, and the message says how to continue |
"""

from __future__ import annotations

import gc
import logging
import os
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

from penstock.errors import AnotherDriverError, PenstockError, UsageError
from penstock.failures import describe_failure
from penstock.launch.commit_exporter import CommitExporter, committed_counters
from penstock.launch.reporter import Reporter
from penstock.launch.signals import StopSignals
from penstock.launch.words import Words, program_words
from penstock.telemetry.export import Export
from penstock.telemetry.status import PipelineStatus, pipeline_status
from penstock.timeline import trace

POLL_MS = 250
"""How long one wait for the pipeline takes, and so how soon a signal is answered."""

FINAL_STATES = frozenset({"DONE", "FAILED", "CANCELLED", "DRAINED", "STOPPED"})
"""Beam's states in which a pipeline no longer runs, and the runner's STOPPED: stopped with a checkpoint."""

_LOGGER = logging.getLogger(__name__)


class ExitCode(IntEnum):
    """Exit codes; see the module's table."""

    DONE = 0
    CONFIGURATION = 2
    PREFLIGHT = 3
    FAILED = 4
    ANOTHER_DRIVER = 5
    INTERRUPTED = 130


_PREFIXES = {
    ExitCode.CONFIGURATION: "configuration",
    ExitCode.PREFLIGHT: "not started",
    ExitCode.FAILED: "failed",
    ExitCode.ANOTHER_DRIVER: "another driver runs the pipeline",
}


@dataclass(frozen=True, slots=True)
class Continuation:
    """Tells the user how to continue the pipeline: a sentence, and the shell command if it is known."""

    text: str
    command: str | None = None


class Observer(Protocol):
    """Looks at a pipeline while it runs, and may end it. Each method returns a sentence about the end, or ""."""

    def look(self, status: PipelineStatus) -> str:
        """Return why the pipeline is to end now; "" if it is not."""

    def finish(self, status: PipelineStatus, *, interrupted: bool) -> str:
        """Return the last message; the pipeline has ended. `interrupted`: by a signal."""


def run_pipeline(
    build: Callable[[], Any],
    reporter: Reporter,
    continuation: Continuation,
    *,
    debug: bool = False,
    drain_after_seconds: float | None = None,
    export: Export | None = None,
    words: Words = program_words,
    observer: Observer | None = None,
) -> ExitCode:
    """Build a Beam pipeline, run it until it ends or is interrupted, and return how it ended.

    Every failure becomes one message. With `debug` its traceback is shown too, which may contain values of rows.
    `drain_after_seconds` after the start the pipeline is drained. `export` gets the measurements of each commit, and
    again when services have answered (`service_watch`).
    `words` says messages in the words of the user's surface. `observer` may end the pipeline, which is then done.
    """
    session = _Session(
        reporter,
        continuation,
        debug,
        drain_after_seconds=drain_after_seconds,
        export=export,
        words=words,
        observer=observer,
    )
    with StopSignals(session.abort).installed() as signals:
        try:
            result = _start(build, session, signals)
        except KeyboardInterrupt:  # from our handler, or from the one that a new Spark context installs
            return session.interrupted_while_starting()
        if isinstance(result, ExitCode):
            return result
        signals.install()
        with session.asking_services(result):
            return session.watch(result, signals)


def refuse_without_docstrings(docstring: str | None = __doc__) -> None:
    """Raise a UsageError if Python removed docstrings: Google's Spanner client formats its own at import."""
    if docstring is None:
        raise UsageError(
            "Python was started with -OO (or PYTHONOPTIMIZE=2), which removes docstrings, and Google's client "
            "libraries need theirs. Start it without, or with -O"
        )


@contextmanager
def without_collections() -> Iterator[None]:
    """Import and build without the garbage collector, and keep what exists then out of later collections.

    Beam and the clients make half a million objects that live as long as the process. The collector looks at all of
    them again and again while they are made, which takes a sixth of the time of the imports.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.freeze()
            gc.enable()


def _start(build: Callable[[], Any], session: _Session, signals: StopSignals) -> Any:
    """Return the result of the pipeline, which is running, or the exit code if it could not start."""
    signals.nothing_runs = True
    try:
        refuse_without_docstrings()
        with without_collections():
            pipeline = build()
    except (ValueError, TypeError) as error:  # the way in which transforms refuse their arguments
        return session.fail(ExitCode.CONFIGURATION, error)
    except Exception as error:
        return session.fail(ExitCode.PREFLIGHT, error)
    try:
        with without_collections():
            _preflight(pipeline, session.words)
        trace("asked the services")
        if session.exporter is not None:
            session.exporter.services.ask_of(pipeline)
    except Exception as error:
        return session.fail(ExitCode.PREFLIGHT, error)
    # From here on a KeyboardInterrupt could leave a JVM and workers behind, so a signal waits for the result.
    signals.nothing_runs = False
    try:
        return pipeline.run()
    except Exception as error:
        if signals.requested:  # a signal to the whole process group also ends the JVM that is starting
            return session.interrupted_while_starting()
        # Spark's JVM was killed, or the store of the checkpoint does not answer: another start may succeed.
        transient = isinstance(error, PenstockError) and error.retryable
        return session.fail(ExitCode.FAILED if transient else ExitCode.PREFLIGHT, error)


def _preflight(pipeline: Any, words: Words) -> None:
    # Imported here because it imports Beam, which takes a second that `penstock list` need not spend.
    from penstock.preflight import preflight

    for warning in preflight(pipeline):
        _LOGGER.warning("%s", words(warning))


class _Session:
    """One run of a pipeline, as the user sees it."""

    def __init__(
        self,
        reporter: Reporter,
        continuation: Continuation,
        debug: bool,
        clock: Callable[[], float] = time.time,
        drain_after_seconds: float | None = None,
        export: Export | None = None,
        words: Words = program_words,
        observer: Observer | None = None,
    ) -> None:
        self.words, self._observer = words, observer
        self.exporter = None if export is None else CommitExporter(export, clock)
        self._drain_after_seconds = drain_after_seconds
        self._reporter = reporter
        self._continuation = continuation
        self._debug = debug
        self._clock = clock

    def watch(self, result: Any, signals: StopSignals) -> ExitCode:
        """Show progress until the pipeline has ended; ask it to stop when a signal requests that."""
        stop = result.stop if hasattr(result, "stop") else result.cancel  # other runners can only cancel
        stopping, drain_at, observed = False, None, ""
        if self._drain_after_seconds is not None:
            drain_at = self._clock() + self._drain_after_seconds
        try:
            while result.state not in FINAL_STATES:
                _wait(result)
                if signals.requested and not stopping:
                    stopping = True
                    text = "stopping at the next checkpoint; to abort, press Ctrl-C again after a second"
                    self._reporter.message("stopping", text)
                    stop()
                if drain_at is not None and self._clock() >= drain_at:
                    drain_at = None
                    self._reporter.message("draining", "draining, as asked by --drain-after")
                    result.drain()
                self._export(result)
                if self._observer is not None and not observed:
                    observed = self._observer.look(self._status(result))
                    if observed:
                        stop()
                if self._reporter.due():
                    self._reporter.show(self._status(result))
            result.wait_until_finish()
            self._export(result)
        except Exception as error:
            return self.fail(ExitCode.FAILED, error)
        if self._reporter.shows_progress:
            self._reporter.show(self._status(result))
        if self._observer is not None:
            text = self._observer.finish(self._status(result), interrupted=stopping)
            self._reporter.message("stopped" if stopping else "done", text)
            return ExitCode.INTERRUPTED if stopping else ExitCode.DONE
        return self._end(result.state, stopping, getattr(result, "requested", ""))

    def asking_services(self, result: Any) -> AbstractContextManager[Any]:
        """Ask the services of the pipeline for measurements while the context is open, if they are exported.

        The result leaves a note of them for `penstock ui`; other runners leave none.
        """
        if self.exporter is None:
            return nullcontext()
        self.exporter.services.note = getattr(result, "note_answers", None)
        return self.exporter.services

    def fail(self, code: ExitCode, error: BaseException) -> ExitCode:
        """Show in one message what failed and, if the error says so, what to do. Returns the exit code.

        It is `code`, unless another driver runs the pipeline: then this one should not be continued.
        """
        if isinstance(error, AnotherDriverError):
            code = ExitCode.ANOTHER_DRIVER
        prefix = _PREFIXES[code]
        text = describe_failure(error) if code is ExitCode.FAILED else str(error) or type(error).__name__
        text = self.words(text)
        self._reporter.message("error", f"{prefix}: {text}", kind=prefix, exit_code=int(code))
        if self._debug:
            self._reporter.message("traceback", "".join(traceback.format_exception(error)).rstrip())
        if code is ExitCode.FAILED:
            self._show_continuation()
        return code

    def interrupted_while_starting(self) -> ExitCode:
        """Report an interrupt that came before the pipeline ran."""
        self._reporter.message("stopped", "interrupted while starting")
        self._show_continuation()
        return ExitCode.INTERRUPTED

    def abort(self) -> None:
        """End this process at once, as a crash would. A commit is atomic, so it is never cut in half.

        Runs in a signal handler. The JVM ends when it sees that its driver is gone.
        """
        text = f"aborted; everything up to the last checkpoint is safe; {self._continuation.text}"
        fields = {"command": self._continuation.command} if self._continuation.command else {}
        self._reporter.message_from_signal_handler("aborted", text, **fields)
        os._exit(ExitCode.INTERRUPTED)

    def _end(self, state: str, stopping: bool, requested: str) -> ExitCode:
        # Runners that cannot stop with a checkpoint are cancelled by a signal, so CANCELLED is what was asked for.
        if state in ("DONE", "DRAINED"):
            self._reporter.message("done", "drained" if state == "DRAINED" else "done")
            return ExitCode.DONE
        if state == "STOPPED" and requested == "stop":
            self._reporter.message("stopped", "stopped with a checkpoint, as requested by `penstock stop`")
            self._show_continuation()
            return ExitCode.DONE
        if state in ("STOPPED", "CANCELLED") and stopping:
            self._reporter.message("stopped", "stopped with a checkpoint")
            self._show_continuation()
            return ExitCode.INTERRUPTED
        text = f"the pipeline ended in state {state}"
        self._reporter.message("error", text, kind="failed", exit_code=int(ExitCode.FAILED))
        self._show_continuation()
        return ExitCode.FAILED

    def _show_continuation(self) -> None:
        fields = {"command": self._continuation.command} if self._continuation.command else {}
        self._reporter.message("resume", self._continuation.text, **fields)

    def _export(self, result: Any) -> None:
        progress = getattr(result, "progress", lambda: None)()
        if self.exporter is not None and progress is not None:
            self.exporter.export(progress, result.metrics)

    def _status(self, result: Any) -> PipelineStatus:
        return pipeline_status(self._clock(), result.progress(), committed_counters(result.metrics()))


def _wait(result: Any) -> None:
    """Wait for the pipeline's end, at most `POLL_MS`."""
    try:
        result.wait_until_finish(duration=POLL_MS)
    except NotImplementedError:  # Beam's DirectRunner cannot wait for a limited time
        time.sleep(POLL_MS / 1000)
