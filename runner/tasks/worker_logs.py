"""Log records of a pipeline's code in a worker: their levels, and the records that the driver shows."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from penstock.runner.planning.worker_logging import WorkerLogging

FORMAT = "%(asctime)s worker %(levelname)s %(name)s: %(message)s"
MAX_RECORDS = 100
"""How many records of one task the driver shows at most. A DoFn may log an error for each of a million elements."""
MAX_TEXT = 4_000
"""How many characters of a record's text the driver shows."""


@dataclass(frozen=True, slots=True)
class WorkerLogRecord:
    """A warning or an error that a worker logged. `created` is in seconds since 1970."""

    name: str
    level: int
    text: str
    filename: str
    line: int
    created: float


_applied: WorkerLogging | None = None


def apply_levels(wanted: WorkerLogging) -> None:
    """Set the log levels of this worker process, and reset those that an earlier pipeline has set."""
    global _applied
    if wanted == _applied:
        return
    # Under our daemon logging is configured already, and this changes nothing. In the user's own session it is not.
    logging.basicConfig(stream=sys.stderr, format=FORMAT)
    for name in _applied.overrides if _applied else ():
        logging.getLogger(name).setLevel(logging.NOTSET)
    logging.getLogger().setLevel(wanted.level)
    for name, level in wanted.overrides.items():
        logging.getLogger(name).setLevel(level)
    _applied = wanted


class _Collector(logging.Handler):
    def __init__(self, into: list[WorkerLogRecord]) -> None:
        super().__init__(logging.WARNING)
        self._into = into

    def emit(self, record: logging.LogRecord) -> None:
        if len(self._into) < MAX_RECORDS:
            self._into.append(
                WorkerLogRecord(
                    record.name,
                    record.levelno,
                    self.format(record)[:MAX_TEXT],
                    record.pathname,
                    record.lineno,
                    record.created,
                )
            )


@contextmanager
def collected_logs(wanted: WorkerLogging, into: list[WorkerLogRecord]) -> Iterator[None]:
    """Collect the warnings and errors that are logged in this context, if the driver wants to show them."""
    if not wanted.to_driver:
        yield
        return
    collector = _Collector(into)
    logging.getLogger().addHandler(collector)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(collector)


def show_logs(records: Iterable[WorkerLogRecord]) -> None:
    """Log the records in this process, by its own configuration, under the names of their loggers."""
    for each in records:
        own = logging.getLogger(each.name)
        if own.isEnabledFor(each.level):
            # Not `own.log`: it would give the record the file, line and time of this function.
            record = own.makeRecord(
                each.name, each.level, each.filename, each.line, "in a worker: %s", (each.text,), None
            )
            record.created = each.created
            own.handle(record)
