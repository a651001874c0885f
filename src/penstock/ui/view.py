"""The facts about a job that the pages show: plain values, and the rules that derive one from the other. Pure.

A fact that a checkpoint does not have is never guessed: its place has a note that says what would be needed.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.io.change_streams.metrics import LINEAGE, REFUSED_PARTITIONS, REFUSED_SECONDS
from penstock.parked import ParkedTable
from penstock.telemetry.lineage import PartitionSpan
from penstock.telemetry.measurements import TableLags
from penstock.telemetry.state import SILENT_SECONDS, Condition, JobState
from penstock.telemetry.status import PipelineStatus, rate, span
from penstock.ui.drawings import time_text

BEHIND_SECONDS = 60.0
"""From this lag on a job that runs is marked as behind."""
PACE_SECONDS = 60.0
"""Time before now whose commits give the pace."""

_LEVELS = {
    Condition.UNREADABLE: "bad",
    Condition.FAILED: "bad",
    Condition.KILLED: "bad",
    Condition.SILENT: "warn",
    Condition.RUNNING: "ok",
    Condition.DRAINING: "ok",
}


@dataclass(frozen=True, slots=True)
class Sink:
    """One target as of the last commit. `complete` is in seconds since 1970; None: not known.

    `waiting`: publications that the next epoch runs. `counts` are counters by name.
    """

    step: str
    complete: float | None
    waiting: int
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a service to the driver at time `at`, in seconds since 1970: the gauge `name`.

    `about` are the values of the gauge's labels, such as the name of a slot. `unit` is a UCUM code.
    """

    at: float
    name: str
    text: str
    about: str
    value: float
    unit: str

    @property
    def shown(self) -> str:
        """The value with its unit."""
        if self.unit == "By":
            return f"{self.value:,.0f} bytes"
        if self.name.endswith("_timestamp_seconds"):
            return time_text(self.value)
        if self.unit == "s":
            return span(self.value)
        return f"{self.value:,.0f}"


@dataclass(frozen=True, slots=True)
class Table:
    """One table of a source as of the last commit.

    `changed_at`: commit time of its newest change, in seconds since 1970. `lag`: how old that change was when it was
    committed, in seconds; None if the table has not changed for a while.
    """

    name: str
    changed_at: float
    lag: float | None


@dataclass(frozen=True, slots=True)
class LetterGroup:
    """Dead letters of one table, attempt and reason. `replayed` of them are in files that a replay has taken."""

    table: str
    attempt: int
    reason: str
    letters: int
    replayed: int


@dataclass(frozen=True, slots=True)
class Command:
    """A command line, and what it does."""

    text: str
    line: str


@dataclass(frozen=True, slots=True)
class JobView:
    """One job at time `at`, in seconds since 1970.

    `key` names it in links. `samples` are statuses in the order of time, the last one as of now. `notes` say by section
    why a part is missing. `oldest_letter` is the event time of the oldest dead letter that no replay has taken, in
    seconds and rounded down to the hour. `job_file` is empty if only the checkpoint is known.
    """

    at: float
    key: str
    folder: str
    state: JobState
    name: str = ""
    job: str = ""
    job_file: str = ""
    reads: tuple[str, ...] = ()
    driver: str = ""
    record: int | None = None
    generation: int | None = None
    samples: tuple[PipelineStatus, ...] = ()
    sinks: tuple[Sink, ...] = ()
    partitions: tuple[PartitionSpan, ...] = ()
    letters: tuple[LetterGroup, ...] = ()
    oldest_letter: float | None = None
    undecoded: int = 0
    answers: tuple[Answer, ...] = ()
    configuration: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    has_signals: bool = False
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def condition(self) -> Condition:
        return self.state.condition

    @property
    def now(self) -> PipelineStatus | None:
        """The last status."""
        return self.samples[-1] if self.samples else None

    @property
    def lag(self) -> float | None:
        """Seconds that the watermark is behind; None if no driver runs, and if no source has a watermark."""
        return self.now.lag if self.now and self.condition.runs else None

    @property
    def pace(self) -> float | None:
        """Changes per second in the last minute; None if no driver runs, and with too few commits to tell."""
        ran = [each for each in self.while_it_ran if each.at >= self.at - PACE_SECONDS]
        return rate(ran[0], ran[-1]) if len(ran) > 1 and self.condition.runs else None

    @property
    def seen_until(self) -> float:
        """The time up to which the checkpoint says something: now, or the last commit of a job that does not run."""
        committed = self.now.committed_at if self.now else None
        return self.at if self.condition.runs or committed is None else committed

    @property
    def while_it_ran(self) -> list[PipelineStatus]:
        """The samples from when the job ran: hours of silence after its end would squeeze the rest of a chart."""
        return [
            each
            for each in self.samples
            if each.committed_at is None or each.at - each.committed_at < SILENT_SECONDS
        ]

    @property
    def is_behind(self) -> bool:
        """Whether the job runs and its watermark is far behind."""
        return self.lag is not None and self.lag >= BEHIND_SECONDS

    @property
    def level(self) -> str:
        """``bad``, ``warn``, ``ok`` or ``ended``: how soon a person should look at it."""
        level = _LEVELS.get(self.condition, "ended")
        return "warn" if level == "ok" and self.warnings else level

    @property
    def label(self) -> str:
        """The condition in a word, for a badge; a job that runs and is far behind is ``behind``."""
        return "behind" if self.condition is Condition.RUNNING and self.is_behind else str(self.condition)

    @property
    def warnings(self) -> list[str]:
        """Sentences that a person should read, the worst first."""
        found = [self.state.text] if _LEVELS.get(self.condition) in ("bad", "warn") else []
        if self.is_behind and self.now and self.lag is not None:
            held = f", held by {self.now.slowest}" if self.now.slowest else ""
            if self.now.scans:
                held = f": not finished are snapshots of {counted_noun(len(self.now.scans), 'table')}"
            found.append(f"the watermark is {span(self.lag)} behind{held}")
        found += list(map(self.text_of_parked, self.now.parked)) if self.now else []
        found += self._of_the_status(self.now) if self.now and self.condition.runs else []
        waiting = sum(each.letters - each.replayed for each in self.letters)
        if waiting or self.undecoded:
            oldest = f", the oldest {span(self.letter_age)} ago" if self.letter_age is not None else ""
            count = counted_noun(waiting or self.undecoded, "change")
            found.append(f"{count} could not be processed{oldest}: see the dead letters")
        return found

    @property
    def letter_age(self) -> float | None:
        """Seconds since the oldest dead letter that no replay has taken; None if none waits."""
        return None if self.oldest_letter is None else max(0.0, self.at - self.oldest_letter)

    @property
    def tables(self) -> list[Table]:
        """The tables that have changed, the slowest first."""
        lags: TableLags[str] = TableLags()
        for sample in self.samples:
            lags.add(sample.committed_at, sample.newest_changes)
        recent = lags.recent()
        newest = self.now.newest_changes if self.now else {}
        found = [Table(name, changed_at, recent.get(name)) for name, changed_at in newest.items()]
        return sorted(found, key=lambda table: (-(table.lag or 0.0), table.name))

    def text_of_parked(self, table: ParkedTable) -> str:
        """Say why a table is parked, and what to do."""
        waiting = f"{counted_noun(table.changes, 'change')} ({table.size:,} bytes)"
        if table.resuming:
            return f"{table.source} is resuming: {waiting} are still to be written to {table.name}"
        parked_for = span(max(0.0, self.at - table.since_us / 1e6))
        return (
            f"{table.source} is parked for {parked_for}, {waiting} wait: {table.reason.rstrip('.')}. Correct it, then: "
            f"penstock tables {shlex.quote(self.job_file or self.folder)} resume {shlex.quote(table.source)}"
        )

    def _of_the_status(self, now: PipelineStatus) -> list[str]:
        found = []
        if refused := now.counters.get(REFUSED_PARTITIONS, 0):
            seconds = now.counters.get(REFUSED_SECONDS, 0)
            found.append(
                f"the service refuses {counted_noun(refused, 'partition')}, the first for {span(seconds)}"
            )
        if now.lag is not None and now.lag < -1.0:
            found.append(
                f"the watermark is {span(-now.lag)} ahead of this computer's clock: one of the clocks is wrong"
            )
        return found

    @property
    def lineage_counts(self) -> str:
        """Splits, merges and moves since the first start, in words; empty if no source has partitions."""
        counts = {} if self.now is None else self.now.counters
        return (
            ", ".join(f"{counts.get(name, 0)} {name}" for name in LINEAGE)
            if any(map(counts.get, LINEAGE))
            else ""
        )

    @property
    def commands(self) -> list[Command]:
        """The command lines for this job. The page itself changes nothing."""
        if self.condition is Condition.UNREADABLE:
            return []
        job = shlex.quote(self.job_file or self.folder)
        found = []
        if self.condition.runs:
            found += [
                Command("Stop it at its next checkpoint", f"penstock stop {job}"),
                Command("Drain it: everything is published, and it cannot continue", f"penstock drain {job}"),
            ]
        if not self.condition.ended and self.condition is not Condition.RUNNING:
            line = f"penstock run {job}" if self.job_file else ""
            found.append(Command("Continue it: the command that started it", line))
        if self.has_signals and self.condition.runs:
            found.append(Command("Read a table again", f"penstock snapshot {job} --table 'SCHEMA.TABLE'"))
        if self.letters and self.job_file:
            found.append(Command("Process the dead letters again", f"penstock dead-letters replay {job}"))
        return [*found, Command("Show it in a terminal", f"penstock status {job}")]


def by_urgency(jobs: Sequence[JobView]) -> list[JobView]:
    """Return the jobs, those that need a person first; of equal ones the slowest first."""
    levels = ("bad", "warn", "ok", "ended")
    return sorted(jobs, key=lambda job: (levels.index(job.level), -(job.lag or 0.0), job.name, job.folder))


def counted(jobs: Sequence[JobView]) -> list[tuple[str, str, int]]:
    """Return (level, label, count) of each label, in the order of `jobs`."""
    counts: dict[tuple[str, str], int] = {}
    for job in jobs:
        counts[job.level, job.label] = counts.get((job.level, job.label), 0) + 1
    return [(level, label, count) for (level, label), count in counts.items()]


def counted_noun(count: int, noun: str) -> str:
    """Return a count with its noun."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def sink_of(step: Any) -> Sink:
    """Return the sink of the runner's view of a step."""
    complete = None if step.complete_us is None else step.complete_us / 1e6
    return Sink(step.step, complete, step.waiting, dict(step.counters))
