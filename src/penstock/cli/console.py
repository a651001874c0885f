"""What a running pipeline says, and how: a live line on a terminal, JSON lines for programs, or plain lines.

Everything goes to standard error. Log records of `penstock.*` show from INFO on, those of all other
libraries from ERROR on: Beam and the Google clients warn about their own set-up on every import.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from enum import StrEnum
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from penstock.telemetry.snapshot import Snapshot, as_json, as_line


class Style(StrEnum):
    """How progress is shown."""

    LIVE = "live"
    LINE = "line"
    JSON = "json"
    NONE = "none"


RATE_SECONDS = 5.0
SECONDS_BETWEEN = {Style.LIVE: 0.5, Style.LINE: 2.0, Style.JSON: 5.0}


def style_for(stream: TextIO, asked: str) -> Style:
    """Return the style that was asked for; for `auto` a live line on a terminal, else JSON lines."""
    if asked != "auto":
        return Style(asked)
    return Style.LIVE if stream.isatty() else Style.JSON


class Reporter(AbstractContextManager["Reporter"]):
    """Shows snapshots in one style, as often as its readers can use them; a context manager.

    The rate in a line is that of the last `RATE_SECONDS`: shorter, it would show the beat of the epochs.
    """

    def __init__(
        self, style: Style, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._style = style
        self._stream = stream or sys.stderr
        self._clock = clock
        self._recent: deque[Snapshot] = deque()
        self._shown_at = float("-inf")
        self._console = Console(file=self._stream)
        self._live: Live | None = None

    def __enter__(self) -> Reporter:
        if self._style is Style.LIVE:
            self._live = Live(Text("starting"), console=self._console, auto_refresh=False, transient=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()
            self._live = None

    def due(self) -> bool:
        """Return whether a new snapshot would be shown now."""
        seconds = SECONDS_BETWEEN.get(self._style)
        return seconds is not None and self._clock() - self._shown_at >= seconds

    def show(self, now: Snapshot) -> None:
        """Show `now`, whether due or not."""
        before = self._before(now)
        if self._live:
            self._live.update(Text(as_line(before, now), no_wrap=True, overflow="ellipsis"), refresh=True)
        elif self._style is Style.LINE:
            self._write(as_line(before, now))
        elif self._style is Style.JSON:
            self._write(as_json(before, now))
        self._shown_at = self._clock()

    def say(self, event: str, text: str, **fields: Any) -> None:
        """Say one thing that matters, in any style; programs get it as the event of that name."""
        if self._style is Style.JSON:
            self._write(json.dumps({"time": _now(), "event": event, "message": text, **fields}))
        elif self._live:
            self._console.print(Text(text))
        else:
            self._write(text)

    def log_handler(self) -> logging.Handler:
        """Return a handler that shows log records between the progress lines, in the same style."""
        return _SayHandler(self)

    def _before(self, now: Snapshot) -> Snapshot:
        """Return the oldest look of the last `RATE_SECONDS`, or the last one if that is older."""
        while len(self._recent) > 1 and now.at - self._recent[1].at >= RATE_SECONDS:
            self._recent.popleft()
        self._recent.append(now)
        return self._recent[0]

    def _write(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()


class _SayHandler(logging.Handler):
    def __init__(self, reporter: Reporter) -> None:
        super().__init__()
        self._reporter = reporter

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = f"{record.levelname.lower()}: {record.getMessage()}"
            self._reporter.say("log", text, level=record.levelname, logger=record.name)
        except Exception:
            self.handleError(record)


def send_logs_to(reporter: Reporter) -> None:
    """Make `reporter` the only place where this process logs."""
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
    root.addHandler(reporter.log_handler())
    root.setLevel(logging.ERROR)
    logging.getLogger("penstock").setLevel(logging.INFO)
    logging.captureWarnings(True)
    logging.getLogger("py.warnings").setLevel(logging.ERROR)


def ignore_import_warnings() -> None:
    """Quieten what Beam and the Google clients say about Python and their optional parts while imported."""
    warnings.simplefilter("ignore", FutureWarning)
    warnings.simplefilter("ignore", DeprecationWarning)
    logging.getLogger("apache_beam").setLevel(logging.ERROR)
    logging.getLogger().addFilter(lambda record: "apitools not found" not in record.getMessage())


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
