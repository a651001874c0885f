"""`penstock run --limit N --print`: the first changes as they would be written, on standard output."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from penstock.cli.common import refuse, words_of
from penstock.cli.configuration import Configuration, ConfigurationError
from penstock.cli.resolve import resolve
from penstock.launch.reporter import ignore_import_warnings, standard_error_reporter
from penstock.launch.run import Continuation, ExitCode, run_pipeline
from penstock.telemetry.status import PipelineStatus

MAX_SECONDS = 60.0
"""A preview ends after this time, counted from its first commit, also if the source has more changes."""


class _Shown(Protocol):
    @property
    def kind(self) -> str: ...
    @property
    def text(self) -> str: ...


class _Arrivals(Protocol):
    """A `penstock.pipelines.preview.Preview`, whose module imports Beam."""

    @property
    def limit(self) -> int: ...
    def take(self) -> list[Any]: ...


def run_preview(
    name_or_file: str,
    sets: Sequence[str],
    flags: Mapping[str, Any],
    limit: int,
    start: Callable[..., Any],
    *,
    until: str | None,
    progress: str,
    debug: bool,
) -> ExitCode:
    """Run a template or a job file until it has shown `limit` changes or the source has no more at hand.

    Nothing is written: `start` builds the pipeline with steps that show changes instead of its sinks, and its
    checkpoint is temporary. So it runs on this machine, also if the job names another master.
    """
    with TemporaryDirectory(prefix="penstock-preview-", ignore_cleanup_errors=True) as folder:
        try:
            configuration = resolve(
                name_or_file, sets, {**flags, "checkpoint_dir": folder}, os.environ, until
            )
        except ConfigurationError as error:
            refuse(error)
        ignore_import_warnings()
        from penstock.pipelines.preview import LETTER, Preview

        # It says where the checkpoint is, which would look as if one was made.
        logging.getLogger("penstock.runner.job").setLevel(logging.WARNING)
        preview = Preview(limit)
        with standard_error_reporter("none" if progress == "auto" else progress) as reporter:
            observer = PreviewObserver(preview, LETTER, _print, partial(reporter.message, "refused"))
            return run_pipeline(
                lambda: start(on_this_machine(configuration), preview=preview),
                reporter,
                Continuation("nothing was written; the same command shows the changes again"),
                debug=debug,
                words=words_of(configuration),
                observer=observer,
            )


def on_this_machine(configuration: Configuration) -> Configuration:
    """Return the configuration without a master that cannot reach a folder of this machine, and without reports."""
    local = str(configuration.runner.get("master", "local")).startswith("local")
    left_out = {"openlineage"} if local else {"openlineage", "master"}
    runner = {name: value for name, value in configuration.runner.items() if name not in left_out}
    return replace(configuration, runner=runner)


class PreviewObserver:
    """See `penstock.launch.run.Observer`. `show` prints a change and returns whether a reader is left."""

    def __init__(
        self,
        preview: _Arrivals,
        refused_kind: str,
        show: Callable[[str], bool],
        refuse: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._preview, self._refused_kind = preview, refused_kind
        self._show, self._refuse, self._clock = show, refuse, clock
        self._shown, self._ended, self._read = 0, "", True
        self._began = 0.0
        self._reached_at: int | None = None

    def look(self, status: PipelineStatus) -> str:
        """Print what has arrived. Return why the preview ends; "" if it goes on."""
        self._print_arrived()
        now = self._clock()
        if status.epochs and not self._began:
            self._began = now
        if self._shown >= self._preview.limit or not self._read:
            self._ended = "as asked"
        elif self._is_level(status):
            self._ended = "no more at hand"
        elif self._began and now - self._began >= MAX_SECONDS:
            self._ended = f"no more within {MAX_SECONDS:g} s"
        return self._ended

    def finish(self, status: PipelineStatus, *, interrupted: bool) -> str:
        """Print the rest, and return the summary."""
        self._print_arrived()
        why = "interrupted" if interrupted else self._ended or "no more at hand"
        if self._shown:
            return f"{_changes(self._shown)}; {why}; nothing was written"
        if status.changes:
            return (
                f"0 changes of {status.changes:,} that were read pass the filters; {why}; nothing was written"
            )
        return (
            f"0 changes; {why}: the source has none from the start of the read. Set snapshot=initial or an earlier "
            "start, if the source has these parameters, or change a row. Nothing was written"
        )

    def _is_level(self, status: PipelineStatus) -> bool:
        """Whether everything that was committed before the first commit of the preview has been read and shown."""
        if self._reached_at is not None:
            # The texts of a commit arrive during the epoch after it.
            return status.epochs > self._reached_at
        if self._began and status.watermark is not None and status.watermark >= self._began:
            self._reached_at = status.epochs
        return False

    def _print_arrived(self) -> None:
        for each in self._preview.take():
            if each.kind == self._refused_kind:
                self._refuse(f"dead letter: {each.text}")
            elif self._shown < self._preview.limit and self._read:
                self._read = self._show(each.text)
                self._shown += 1


def _changes(count: int) -> str:
    return f"{count} change{'s' * (count != 1)}"


def _print(text: str) -> bool:
    """Print a line; return False if standard output has no reader any more (`| head -n 1`)."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # Otherwise Python tries again at its end, and complains.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True
