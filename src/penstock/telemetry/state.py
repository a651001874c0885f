"""The state of a job that its checkpoint folder shows. Pure.

The driver is not asked, because a page or a command that reads a folder must not disturb the job. The state follows
from the last record, from the note that a driver leaves when it ends, and from the age of the last commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.compat import StrEnum
from penstock.telemetry.status import span

SILENT_SECONDS = 30.0
"""A stream commits about once a second. After this time without a commit no driver seems to run."""


class Condition(StrEnum):
    """The state of a job in one or two words."""

    UNREADABLE = "unreadable"
    NOT_BEGUN = "not begun"
    RUNNING = "running"
    DRAINING = "draining"
    SILENT = "silent"
    """No commit for `SILENT_SECONDS`, and no note of an end: killed, or in a long epoch."""
    KILLED = "killed"
    STOPPED = "stopped"
    CANCELLED = "cancelled"
    FAILED = "failed"
    DONE = "done"
    DRAINED = "drained"

    @property
    def runs(self) -> bool:
        """Whether a driver runs, or may run."""
        return self in (Condition.RUNNING, Condition.DRAINING, Condition.SILENT)

    @property
    def ended(self) -> bool:
        """Whether the pipeline has ended and does not continue."""
        return self in (Condition.DONE, Condition.DRAINED)


_BY_NAME = {str(each): each for each in Condition}


@dataclass(frozen=True, slots=True)
class JobState:
    """The condition of a job, and the state in words with its reason."""

    condition: Condition
    text: str


def job_state(
    record: Any, requested: Sequence[str], now: float, ended: Any = None, gone: str = ""
) -> JobState:
    """Return the state of a job at time `now`, in seconds.

    Args:
        record: its last commit record; None if there is none.
        requested: what its driver was asked for and has not obeyed yet.
        ended: the note of its last driver, with `state` and `reason`; None if that has left none.
        gone: the process of its last driver, if that was on this machine and no longer exists; otherwise empty.
    """
    if record is None:
        return JobState(Condition.NOT_BEGUN, "not begun: the checkpoint has no record")
    if record.state.done:
        condition = Condition.DRAINED if record.state.draining else Condition.DONE
        return JobState(condition, str(condition))
    if ended is not None:
        word = str(ended.state).lower()
        condition = _BY_NAME.get(word, Condition.STOPPED)
        if ended.reason:
            return JobState(condition, f"{word}: {ended.reason}")
        return JobState(condition, f"{word} with a checkpoint: the same command that started it continues it")
    if gone:
        text = f"killed: {gone} no longer exists; the same command that started the job continues it"
        return JobState(Condition.KILLED, text)
    age = now - record.committed_us / 1e6
    condition = Condition.DRAINING if record.state.draining else Condition.RUNNING
    words = [str(condition)]
    if age > SILENT_SECONDS:
        condition = Condition.SILENT
        words = [f"no commit for {span(age)}: killed, or in a long epoch"]
    return JobState(condition, ", ".join([*words, *(f"{each} requested" for each in requested)]))
