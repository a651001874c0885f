"""What the driver tells the tasks of an epoch, and what they tell it back. Plain values, pickled by Spark."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from apache_beam.utils.timestamp import MIN_TIMESTAMP

from penstock.runner.protocol.record import StateRun
from penstock.runner.tasks.worker_warnings import Warned

BEGINNING_US = MIN_TIMESTAMP.micros
"""Beam's first timestamp: the watermark of what has not been heard of, which nothing is late for."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one partition starts the epoch with.

    `impulses` are the steps of Impulses that fire; `residuals` are (step, element id, encoded element,
    watermark in µs); `publications` are (step, encoded element) and run before anything else; `script` are
    (step, encoded elements) of a TestStream.
    """

    impulses: tuple[str, ...] = ()
    residuals: tuple[tuple[str, str, bytes, int], ...] = ()
    publications: tuple[tuple[str, bytes], ...] = ()
    script: tuple[tuple[str, bytes], ...] = ()

    def of(self, steps: Collection[str]) -> Part:
        """What there is for the steps of one level."""
        return Part(
            tuple(step for step in self.impulses if step in steps),
            tuple(residual for residual in self.residuals if residual[0] in steps),
            tuple(publication for publication in self.publications if publication[0] in steps),
            tuple(played for played in self.script if played[0] in steps),
        )


@dataclass(frozen=True, slots=True)
class StateOf:
    """What the record says of one stateful transform: its runs, and the earliest timers by key groups.

    `timers` are (first group, last group, earliest event time, earliest processing time, earliest hold).
    """

    runs: tuple[StateRun, ...] = ()
    timers: tuple[tuple[int, int, int | None, int | None, int | None], ...] = ()


@dataclass(frozen=True, slots=True)
class EpochInput:
    """The epoch as all its tasks see it. Times in µs, `seconds` of reading at most.

    `watermarks` are those of the last record, by the names below; `waiting` is the lowest watermark of each
    step's residuals that are not due and so in no part; `open_windows` is the last timestamp of the earliest window
    in which each step that has side inputs still reads; `folder` is where state runs live, empty in batch.
    `committed` are the nonces of the tasks whose work the last record holds, as far as this driver ran them;
    `clock_us` is the processing time where a TestStream says what it is.
    """

    job: str
    generation: int
    number: int
    partitions: int
    seconds: float
    max_records: int
    max_bytes: int
    parts: tuple[Part, ...]
    watermarks: Mapping[str, int]
    state: Mapping[str, StateOf]
    waiting: Mapping[str, int] = field(default_factory=dict)
    open_windows: Mapping[str, int] = field(default_factory=dict)
    folder: str = ""
    committed: frozenset[str] = frozenset()
    clock_us: int | None = None

    def now_us(self) -> int:
        """The processing time."""
        return time.time_ns() // 1000 if self.clock_us is None else self.clock_us


@dataclass(frozen=True, slots=True)
class Left:
    """A residual: what is left of a read."""

    step: str
    element_id: str
    element: bytes
    watermark_us: int
    delay_us: int


@dataclass(frozen=True, slots=True)
class Failure:
    """A user's exception, or ours, in a task: `error` itself if it pickles, else its text."""

    summary: str
    trace: str
    where: str
    error: bytes | None


@dataclass(slots=True)
class TaskReport:
    """What one task attempt tells the driver.

    `arrived` are (step, encoded element) that the record must carry; `timers` as in `StateOf`, for the
    task's key groups; `watermarks` by name, for this partition; `taken` are (level, partition, nonce) of the
    producers that it took its input from. `nonce` is the attempt's own.
    """

    nonce: str = ""
    left: list[Left] = field(default_factory=list)
    arrived: list[tuple[str, bytes]] = field(default_factory=list)
    runs: dict[str, tuple[StateRun, ...]] = field(default_factory=dict)
    timers: dict[str, tuple[int, int, int | None, int | None, int | None]] = field(default_factory=dict)
    watermarks: dict[str, int] = field(default_factory=dict)
    metrics: list[bytes] = field(default_factory=list)
    taken: list[tuple[int, int, str]] = field(default_factory=list)
    dropped: int = 0
    warnings: list[Warned] = field(default_factory=list)
    problem: str = ""
    failure: Failure | None = None


def cut_name(step: str) -> str:
    """Name of the watermark of what reaches a carried step."""
    return "cut " + step


def input_name(state: str) -> str:
    """Name of the input watermark of a stateful transform, by which lateness is judged."""
    return "in " + state


def output_name(step: str) -> str:
    """Name of the output watermark of a step that reads, or of a grouping."""
    return "out " + step
