"""Whose checkpoint is it? A start asks this before it takes over: does the last driver still run, and what did it run?

    refuse_while_another_runs(checkpoint, checkpoint.last_record())

The protocol needs no answer: the newer take-over wins, and the older driver can do no harm. But two drivers that are
both started again whenever they end, for example by two supervisors, would take the checkpoint from each other without
end. So a start leaves a driver alone that runs, unless it is told to take over.

No clock of another machine is read. The start leaves a ping in the checkpoint folder and waits, by its own clock, until
the driver has deleted it. A driver that is paused or cut off from the folder does not answer, and counts as gone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import datetime

from penstock.compat import UTC
from penstock.runner.protocol.errors import CheckpointError, DriverRunsError
from penstock.runner.protocol.record import CommitRecord
from penstock.runner.store.checkpoint import Checkpoint
from penstock.runner.store.drivers import DriverNotes, Pipeline, Started
from penstock.runner.store.requests import Requests, seconds_between_looks

logger = logging.getLogger(__name__)

SILENT_SECONDS_ON_DISK, SILENT_SECONDS_ON_OBJECT_STORES = 15.0, 30.0
"""Time without an answer after which a driver counts as gone: several times the time between two of its looks."""

_POLLS = 10
"""How often a start looks for the answer in the time in which the driver looks once."""

_QUIET_SECONDS = 2.0
"""A driver on a disk answers within about a second. After this time the user is told what the start waits for."""


def refuse_while_another_runs(
    checkpoint: Checkpoint,
    last: CommitRecord | None,
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Return if no other driver of the pipeline answers.

    It returns at once if the last driver has noted its end, or was killed on this machine. Otherwise that driver is
    asked. A driver of an earlier version of Penstock left no note, and would not answer: it is not asked.

    Raises:
        DriverRunsError: it runs; the message says which process it is and what to do.
        OSError: the checkpoint folder cannot be written.
    """
    if last is None or last.state.done:
        return
    notes = DriverNotes(checkpoint)
    started = notes.started(last.generation)
    if started is None or started.process.is_gone or notes.ended(last.generation) is not None:
        return
    # A driver deletes its pings at its end too, after its note.
    if _answers(checkpoint, last.generation, started, clock, pause) and notes.ended(last.generation) is None:
        raise _runs(checkpoint, started, checkpoint.last_record() or last)


def refuse_another_pipeline(
    checkpoint: Checkpoint, last: CommitRecord | None, pipeline: Pipeline, error: CheckpointError
) -> None:
    """Say so if a checkpoint that does not fit belongs to a pipeline with another name.

    `error` names the steps that do not fit, which mean nothing to a user who has only chosen the wrong folder.

    Raises:
        CheckpointError: it is the checkpoint of another pipeline.
    """
    if (other := _other_pipeline(checkpoint, last, pipeline)) is not None:
        raise CheckpointError(
            f"{checkpoint.folder} is the checkpoint of {other}, and this pipeline is {pipeline.name}: choose another "
            "--checkpoint-dir"
        ) from error


def warn_of_another_pipeline(checkpoint: Checkpoint, last: CommitRecord | None, pipeline: Pipeline) -> None:
    """Warn if a checkpoint that fits belongs to a pipeline with another name: it may be the wrong folder."""
    if (other := _other_pipeline(checkpoint, last, pipeline)) is not None:
        logger.warning(
            "%s is the checkpoint of %s: %s continues from its position, and does not have what that pipeline has "
            "read. If this is not what you want, choose another --checkpoint-dir",
            checkpoint.folder,
            other,
            pipeline.name,
        )


def _other_pipeline(checkpoint: Checkpoint, last: CommitRecord | None, pipeline: Pipeline) -> Pipeline | None:
    """Return the pipeline that the last driver ran, if it has another name."""
    started = None if last is None else DriverNotes(checkpoint).started(last.generation)
    if started is None or not pipeline.name or started.pipeline.name in ("", pipeline.name):
        return None
    return started.pipeline


def _answers(
    checkpoint: Checkpoint,
    generation: int,
    started: Started,
    clock: Callable[[], float],
    pause: Callable[[float], None],
) -> bool:
    requests, look = Requests(checkpoint), seconds_between_looks(checkpoint)
    patience = SILENT_SECONDS_ON_DISK if checkpoint.lists_cheaply else SILENT_SECONDS_ON_OBJECT_STORES
    ping, began, told = requests.ping(generation), clock(), False
    try:
        while not requests.is_answered(ping):
            waited = clock() - began
            if waited >= patience:
                logger.warning(
                    "%s, which ran this pipeline last, has not answered for %.0f s: this driver takes over",
                    started.process,
                    patience,
                )
                return False
            if waited >= _QUIET_SECONDS and not told:
                told = True
                logger.info(
                    "waiting for an answer of %s, which ran this pipeline last, for at most %.0f s; --take_over does "
                    "not wait",
                    started.process,
                    patience,
                )
            pause(look / _POLLS)
        return True
    finally:
        requests.withdraw(ping)


def _runs(checkpoint: Checkpoint, started: Started, last: CommitRecord) -> DriverRunsError:
    committed = datetime.fromtimestamp(last.committed_us / 1e6, UTC)
    age = (datetime.now(UTC) - committed).total_seconds()
    what = f" {started.pipeline}" if str(started.pipeline) else " the pipeline of this checkpoint"
    return DriverRunsError(
        f"{started.process} runs{what}: it has answered, and its last commit was {max(0.0, age):.1f} s ago. Nothing "
        f"was changed. To start here, stop it first (penstock stop {checkpoint.folder}), or take over from it with "
        "--take-over"
    )
