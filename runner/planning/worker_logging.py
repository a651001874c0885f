"""Log levels of a pipeline's workers, and whether the driver shows their records. Plain data, sent with a plan."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions, WorkerOptions

from penstock.errors import UsageError


@dataclass(frozen=True, slots=True)
class WorkerLogging:
    """Log levels of the workers.

    `level` is the root logger's, `overrides` are levels of other loggers, by name. Both apply to the standard
    error of a worker. With `to_driver`, the driver also shows warnings and errors: on a cluster the standard error of
    a worker is in a file of another machine.
    """

    level: int = logging.WARNING
    overrides: Mapping[str, int] = field(default_factory=dict)
    to_driver: bool = False


def worker_logging(options: PipelineOptions, *, to_driver: bool) -> WorkerLogging:
    """Return the levels that the options ask for. The default is the level of the driver's root logger.

    The command line hides records of libraries below ERROR, but not Penstock's own. So warnings of Penstock are
    shown if the driver shows them, such as a signal that is ignored or a row that cannot be read.

    Raises:
        UsageError: a level is neither a name that `logging` knows nor a number.
    """
    chosen = options.view_as(WorkerOptions)
    default = chosen.default_sdk_harness_log_level
    given = chosen.sdk_harness_log_level_overrides or {}
    overrides = {name: _level(level) for name, level in given.items()}
    if default is not None:
        return WorkerLogging(_level(default), overrides, to_driver)
    level, own = logging.getLogger().getEffectiveLevel(), logging.getLogger(_OURS).getEffectiveLevel()
    if own <= logging.WARNING < level:
        overrides = {_OURS: logging.WARNING, **overrides}
    return WorkerLogging(level, overrides, to_driver)


_OURS = "penstock"
"""The parent of the loggers of all our modules."""


_LEVELS = {
    # `logging.getLevelNamesMapping` exists since Python 3.11.
    **{
        name: getattr(logging, name)
        for name in ("CRITICAL", "FATAL", "ERROR", "WARN", "WARNING", "INFO", "DEBUG")
    },
    "NOTSET": logging.NOTSET,
}


def _level(given: Any) -> int:
    text = str(given).strip().upper()
    known = _LEVELS
    if text.isdecimal():
        return int(text)
    if text not in known:
        raise UsageError(
            f"--default_sdk_harness_log_level and --sdk_harness_log_level_overrides take {', '.join(known)} or a "
            f"number, not {given!r}"
        )
    return known[text]
