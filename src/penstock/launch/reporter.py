"""Writes the progress and the messages of a running pipeline: a live line, plain lines, or JSON lines.

All output goes to standard error. Log records of `penstock.*` are shown from INFO on, and of other libraries from
ERROR on: Beam and the Google clients log warnings about their own set-up at every import.
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
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from penstock.compat import StrEnum
from penstock.extras import extra_packages
from penstock.launch.streams import MessageStream, message_stream, redirect_standard_error
from penstock.telemetry.status import PipelineStatus, as_json, as_line

if TYPE_CHECKING:
    from penstock.launch.live_line import LiveLine


class Style(StrEnum):
    """How progress is shown."""

    LIVE = "live"
    LINE = "line"
    JSON = "json"
    NONE = "none"


RATE_SECONDS = 5.0
"""Period over which the rate in a progress line is measured."""
PROGRESS_SECONDS = {Style.LIVE: 0.5, Style.LINE: 2.0, Style.JSON: 5.0}
"""Time between two progress lines."""

_SHOW_CURSOR = "\x1b[?25h"
_DIRECTIONS = (0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Characters that make a terminal show text in another order than it has."""
_CONTROL_CHARACTERS = {
    **{code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"},
    **{code: f"\\u{code:04x}" for code in _DIRECTIONS},
}


def choose_style(name: str, is_terminal: bool) -> Style:
    """Return the style called `name`; `auto` is the live line on a terminal and JSON lines elsewhere."""
    if name != "auto":
        return Style(name)
    return Style.LIVE if is_terminal else Style.JSON


class Reporter(AbstractContextManager["Reporter"]):
    """Shows the progress and the messages of a pipeline in one style; a context manager.

    The rate in a progress line covers the last `RATE_SECONDS`. A shorter time would show the rhythm of the epochs.
    """

    def __init__(self, style: Style, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._style = style
        self._stream = stream
        self._clock = clock
        self._recent: deque[PipelineStatus] = deque()
        self._shown_at = float("-inf")
        self._live: LiveLine | None = None

    def __enter__(self) -> Reporter:
        if self._style is Style.LIVE:
            # Rich is an extra, which pipelines on clusters do without.
            with extra_packages("cli"):
                from penstock.launch.live_line import LiveLine

            self._live = LiveLine(self._stream)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()
            self._live = None

    def due(self) -> bool:
        """Return whether it is time for the next progress line."""
        seconds = PROGRESS_SECONDS.get(self._style)
        return seconds is not None and self._clock() - self._shown_at >= seconds

    @property
    def shows_progress(self) -> bool:
        """False if progress is not shown at all."""
        return self._style is not Style.NONE

    def show(self, now: PipelineStatus) -> None:
        """Show `now`, whether it is due or not."""
        before = self._rate_start(now)
        if self._live:
            self._live.show(as_line(before, now))
        elif self._style is Style.LINE:
            self._write(as_line(before, now))
        elif self._style is Style.JSON:
            self._write(as_json(before, now))
        self._shown_at = self._clock()

    def message(self, event: str, text: str, **fields: Any) -> None:
        """Show a message in the reporter's style. In JSON it is an event of that name with `fields`."""
        if self._live:
            self._live.print_above(_printable(text))
        else:
            self._write(self._formatted(event, text, fields))

    def message_from_signal_handler(self, event: str, text: str, **fields: Any) -> None:
        """Show a message although the interrupted code may be in the middle of writing one.

        It uses no lock and no Rich. It shows the cursor again, which a live line hides, because the process ends next.
        """
        before = f"{_SHOW_CURSOR}\n" if self._live else ""
        line = f"{before}{self._formatted(event, text, fields)}\n"
        if isinstance(self._stream, MessageStream):
            self._stream.write_from_signal_handler(line)
        else:
            self._stream.write(line)

    def _formatted(self, event: str, text: str, fields: dict[str, Any]) -> str:
        if self._style is Style.JSON:
            return json.dumps({"time": _now(), "event": event, "message": text, **fields})
        return _printable(text)

    def _rate_start(self, now: PipelineStatus) -> PipelineStatus:
        """Return the oldest status of the last `RATE_SECONDS`, or the previous one if that is older."""
        while len(self._recent) > 1 and now.at - self._recent[1].at >= RATE_SECONDS:
            self._recent.popleft()
        self._recent.append(now)
        return self._recent[0]

    def _write(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()


class _MessageHandler(logging.Handler):
    """Shows log records as messages."""

    def __init__(self, reporter: Reporter) -> None:
        super().__init__()
        self._reporter = reporter

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = f"{record.levelname.lower()}: {record.getMessage()}"
            self._reporter.message("log", text, level=record.levelname, logger=record.name)
        except Exception:
            self.handleError(record)


def standard_error_reporter(style_name: str) -> Reporter:
    """Return a reporter on standard error and make it the only writer there.

    JSON lines and the live line have a form that other writers would break, so everything that C libraries, the JVM and
    Spark's workers write to standard error becomes a message. The other styles pass it through.
    """
    stream = message_stream()
    style = choose_style(style_name, stream.isatty())
    reporter = Reporter(style, stream)
    if style in (Style.JSON, Style.LIVE):
        redirect_standard_error(lambda line: reporter.message("log", line, level="ERROR", logger="stderr"))
    else:
        sys.stderr = stream  # Python code that prints there must not fail when the reader has gone
    send_logs_to(reporter)
    return reporter


def send_logs_to(reporter: Reporter) -> None:
    """Make `reporter` the only handler of this process's log records."""
    root = logging.getLogger()
    for handler in list(
        root.handlers
    ):  # Beam's import may have installed one, which would write each record twice
        root.removeHandler(handler)
    root.addHandler(_MessageHandler(reporter))
    root.setLevel(logging.ERROR)
    logging.getLogger("penstock").setLevel(logging.INFO)
    # Python's warnings go the same way. Users cannot act on warnings of libraries, and ours are log records.
    logging.captureWarnings(True)
    logging.getLogger("py.warnings").setLevel(logging.ERROR)


def ignore_import_warnings() -> None:
    """Hide what Beam and the Google clients log about Python versions and optional packages while imported."""
    warnings.simplefilter("ignore", FutureWarning)
    warnings.simplefilter("ignore", DeprecationWarning)
    logging.getLogger("apache_beam").setLevel(logging.ERROR)
    # Beam logs this one on the root logger, so no level of a Beam logger hides it.
    logging.getLogger().addFilter(lambda record: "apitools not found" not in record.getMessage())


def _printable(text: str) -> str:
    """Return `text` with control characters escaped: names of tables and keys may contain terminal commands."""
    return text.translate(_CONTROL_CHARACTERS)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
