"""Beam's warning about a fallback coder, once per pipeline.

Beam logs "Using fallback deterministic coder for type …" once per coder instance (`coders/coder_impl.py`, read in
Beam 2.77). Each stage of each worker process has its own instance, so one step would cause dozens of equal lines in
the logs of the workers. Here the log record becomes a Python warning: tasks report warnings to the driver, which
shows each one once (see `worker_warnings.py`).
"""

from __future__ import annotations

import logging
import warnings

_LOGGER = "apache_beam.coders.coder_impl"


class _AsWarning(logging.Filter):
    """Turns log records of warnings into Python warnings, and drops the records."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING:
            return True
        # Beam's coders are compiled, so the record has the location of some caller. Equal warnings need one location.
        warnings.warn_explicit(record.getMessage().strip(), UserWarning, record.name, 1)
        return False


_as_warning = _AsWarning()


def forward_coder_warnings() -> None:
    """Turn warnings that Beam's coders log in this process into Python warnings. Repeated calls change nothing."""
    logging.getLogger(_LOGGER).addFilter(_as_warning)  # the same filter is added only once
