"""The attempt that the running code belongs to. Pure: imports neither Beam nor Spark.

An epoch may be tried more than once, and Spark may run one task of it more than once. Every such run is an
`Attempt`. Sinks put the attempt into the names of the files that they stage, so that two attempts never write the
same file. `penstock.publish` exports what sinks need. `running_attempt`, `at_watermark` and
`offering_staging` are for runners and tests.
"""

from __future__ import annotations

import os
import uuid
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from penstock.compat import UTC
from penstock.thread_value import ThreadValue

__all__ = [
    "Attempt",
    "DriverToken",
    "at_watermark",
    "current_attempt",
    "current_staging",
    "current_watermark_us",
    "offering_staging",
    "running_attempt",
]


TOKEN_DIGITS = 15
"""Hexadecimal digits of a driver's token: a number of 60 bits, because a ledger may store only a positive integer."""


class DriverToken(NamedTuple):
    """One driver in the history of a checkpoint: its generation, and a token that no other driver has.

    Two copies of a checkpoint may have drivers of one generation. Their tokens differ.
    """

    generation: int
    token: str


@dataclass(frozen=True, slots=True, order=True)
class Attempt:
    """One try of one epoch, or of one task of it. Names made from all four fields never collide.

    `job` is the name that a checkpoint gets when it is created; job names sort by creation time. (`generation`,
    `epoch`) rises with every commit. `nonce` differs for each try of each task. `drivers` are the last drivers of the
    checkpoint, oldest first; the last one of them runs this attempt.
    """

    job: str
    generation: int
    epoch: int
    nonce: str
    drivers: tuple[DriverToken, ...] = field(default=(), compare=False, repr=False)


_attempt, _watermark_us, _staging = ThreadValue[Attempt](), ThreadValue[int](), ThreadValue[str]()


def current_attempt() -> Attempt:
    """Return the attempt that runs in this thread.

    Outside `PySparkRunner` it is one attempt per process; its job name sorts by the start time of the process.
    """
    return _process_attempt if _attempt.value is None else _attempt.value


def running_attempt(attempt: Attempt) -> AbstractContextManager[None]:
    """Make `attempt` the current one for this thread (for runners and tests)."""
    return _attempt.set_to(attempt)


def current_watermark_us() -> int | None:
    """Return the input watermark of the step whose timer fires in this thread, in µs since 1970.

    Every element below it has arrived. None if the runner does not report it (only `PySparkRunner` does).
    """
    return _watermark_us.value


def at_watermark(watermark_us: int) -> AbstractContextManager[None]:
    """Make `watermark_us` the input watermark for this thread (for runners and tests)."""
    return _watermark_us.set_to(watermark_us)


def current_staging() -> str | None:
    """Return the folder or URL that the runner offers to sinks for staged files; None if it offers none.

    Files there live as long as the checkpoint, and only the user of the pipeline may read them.
    """
    return _staging.value


def offering_staging(location: str | None) -> AbstractContextManager[None]:
    """Offer `location` to sinks in this thread (for runners and tests)."""
    return _staging.set_to(location)


def _new_process_attempt() -> Attempt:
    started = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
    return Attempt(job=f"local-{started}", generation=0, epoch=0, nonce=uuid.uuid4().hex[:12])


def _renew_process_attempt() -> None:
    global _process_attempt
    _process_attempt = _new_process_attempt()


_process_attempt = _new_process_attempt()
# Renew it in a forked child: otherwise worker and parent would share a nonce, and would stage files of the same name.
os.register_at_fork(after_in_child=_renew_process_attempt)
