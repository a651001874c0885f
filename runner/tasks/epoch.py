"""The values that the driver sends to the tasks of an epoch, and that the tasks send back.

They are plain values, and Spark pickles them. Only processes of one run of the program exchange them, so their form
may change between versions. The content of a checkpoint is in `protocol/record.py`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP

from penstock.attempt import Attempt
from penstock.runner.protocol.record import (
    EarliestTimers,
    Publication,
    Residual,
    StateRun,
    WatermarkKey,
)
from penstock.runner.tasks.worker_logs import WorkerLogRecord
from penstock.runner.tasks.worker_warnings import WorkerWarning

BEGINNING_US = MIN_TIMESTAMP.micros
"""Beam's first timestamp: the watermark of a step before its first report. No element is late against it."""

MAX_US = MAX_TIMESTAMP.micros
"""Beam's last timestamp: the watermark of a step that gets no more elements."""


QUIET_BYTES = 1 << 20
"""Encoded bytes that a task reads at most in a quiet epoch: its output goes through the driver."""


@dataclass(frozen=True, slots=True)
class TestStreamBlock:
    """Encoded elements that a TestStream emits from `step` in this epoch, one after the other in `block`."""

    __test__ = False  # pytest collects classes whose names begin with "Test"

    step: str
    block: bytes


@dataclass(frozen=True, slots=True)
class TaskInput:
    """The input with which the tasks of one partition start the epoch.

    `impulses` are the steps of Impulses that fire now. `publications` run before anything else.
    """

    impulses: tuple[str, ...] = ()
    residuals: tuple[Residual, ...] = ()
    publications: tuple[Publication, ...] = ()
    test_stream: tuple[TestStreamBlock, ...] = ()

    def for_steps(self, steps: Collection[str]) -> TaskInput:
        """Return the part for these steps, the steps of one level."""
        return TaskInput(
            tuple(step for step in self.impulses if step in steps),
            tuple(residual for residual in self.residuals if residual.transform in steps),
            tuple(publication for publication in self.publications if publication.transform in steps),
            tuple(block for block in self.test_stream if block.step in steps),
        )


@dataclass(frozen=True, slots=True)
class StepState:
    """The entries of the last record for one stateful step: its state runs, and its earliest timers by key groups."""

    runs: tuple[StateRun, ...] = ()
    timers: tuple[EarliestTimers, ...] = ()


@dataclass(frozen=True, slots=True)
class EpochLimits:
    """The limits at which a reading task ends its part of an epoch: `seconds`, `max_records`, `max_bytes` (encoded).

    A task stops at whichever limit it reaches first; one that has read nothing stops after `idle_seconds`. The limits
    are per task, not per epoch. `may_end_early`: readers end when they have emitted records and have no more at hand.
    `quiet_seconds`: how long a task that has read nothing waits if data at any other task ends its wait at once; 0: not
    longer than `idle_seconds`. `is_quiet`: the last epochs have read nothing, so this one probably reads nothing either
    (see `quiet_levels`). `catches_up`: `seconds` is longer than the user asked for, because readers are behind.
    """

    seconds: float
    max_records: int
    max_bytes: int
    idle_seconds: float = math.inf
    may_end_early: bool = True
    quiet_seconds: float = 0.0
    is_quiet: bool = False
    catches_up: bool = False


@dataclass(frozen=True, slots=True)
class EpochInput:
    """The input of an epoch, equal for all its tasks. Times are microseconds since 1970.

    - `attempt`: the driver's try of the epoch. Each task attempt replaces the nonce by its own.
    - `inputs`: one per partition.
    - `owners`: by input, the process that holds its open streams or connections (`TaskReport.process` of the last
      epoch); "" if none does. Empty if no input has an owner.
    - `watermarks`: of the last record.
    - `state`: by the name of the stateful step.
    - `waiting_residuals_us`: by step, the lowest watermark of its residuals that are not yet due. They are in none
      of the `inputs`, but they hold the step's output watermark.
    - `earliest_window_end_us`: by step that reads with side inputs, the last timestamp of the earliest window in
      which it still reads. Side inputs of that window must be kept.
    - `state_folder`: where state runs are stored; empty in batch.
    - `staging`: the folder or URL that sinks are offered for staged files; None if there is none that all tasks reach.
    - `committed_nonces`: nonces of the tasks whose work the last record holds, if this driver ran them.
    - `test_clock_us`: the processing time, if a TestStream controls it.
    - `set_back_us`: by how much the wall clock was set back since the last commit; 0 if it was not.
    """

    attempt: Attempt
    partitions: int
    limits: EpochLimits
    inputs: tuple[TaskInput, ...]
    watermarks: Mapping[WatermarkKey, int]
    state: Mapping[str, StepState]
    waiting_residuals_us: Mapping[str, int] = field(default_factory=dict)
    earliest_window_end_us: Mapping[str, int] = field(default_factory=dict)
    state_folder: str = ""
    staging: str | None = None
    owners: tuple[str, ...] = ()
    committed_nonces: frozenset[str] = frozenset()
    test_clock_us: int | None = None
    set_back_us: int = 0

    def now_us(self) -> int:
        """Return the processing time."""
        # The wall clock, because the record keeps times of timers: a monotonic clock means nothing in another process.
        return time.time_ns() // 1000 if self.test_clock_us is None else self.test_clock_us

    def watermark_us(self, key: WatermarkKey) -> int:
        """Return a watermark of the last record; `BEGINNING_US` if the record has none."""
        return self.watermarks.get(key, BEGINNING_US)


@dataclass(frozen=True, slots=True)
class ResidualReport:
    """A residual that a task reports. `delay_us` is the delay that the DoFn asked for, in µs from now."""

    step: str
    element_id: str
    element: bytes
    watermark_us: int
    delay_us: int


@dataclass(frozen=True, slots=True)
class CarriedElement:
    """An encoded element that reached a carried step (a splittable DoFn or a post-commit step).

    The next record stores it: as a residual, or as a Publication.
    """

    step: str
    element: bytes


@dataclass(frozen=True, slots=True)
class ProducerAttempt:
    """The attempt of a task one level above from which a task took its input."""

    level: int
    partition: int
    nonce: str


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception in a task: `error` is the pickled exception, or None if it does not pickle.

    `summary` is its type and text, `trace` the worker's traceback, `where` the step and element.
    """

    summary: str
    trace: str
    where: str
    error: bytes | None


@dataclass(slots=True)
class TaskReport:
    """The report of one task attempt to the driver.

    - `nonce`: the attempt's own. `process`: where it ran; "" if that does not matter.
    - `input_index`: which input of the epoch it ran; at a level below 0 its partition.
    - `residuals`, `carried`: the elements that the next record must store.
    - `runs`, `timers`: by step, only for the key groups of the task.
    - `watermarks`: of this partition.
    - `metrics`: serialized `MonitoringInfo`s.
    - `inputs`: the attempts from which the task took its input.
    - `has_finalizers`: user code registered bundle finalizers. The process of the task keeps them until it learns of
      the commit.
    - `records_read`: number of changes that the reading stages have claimed, or of elements that they have written.
    - `is_behind`: a reading stage has left data at its source that it could have read now.
    - `publishing_seconds`, `reading_seconds`, `working_seconds`: how long the task ran Publications, read, and did
      everything else except waiting for input.
    - `dropped`: number of elements that came too late for their window.
    - `problem`: why the input of the task does not come from one consistent run of the epoch; '' if it does.
    """

    nonce: str = ""
    level: int = 0
    process: str = ""
    input_index: int = 0
    residuals: list[ResidualReport] = field(default_factory=list)
    carried: list[CarriedElement] = field(default_factory=list)
    runs: dict[str, tuple[StateRun, ...]] = field(default_factory=dict)
    timers: dict[str, EarliestTimers] = field(default_factory=dict)
    watermarks: dict[WatermarkKey, int] = field(default_factory=dict)
    metrics: list[bytes] = field(default_factory=list)
    inputs: list[ProducerAttempt] = field(default_factory=list)
    has_finalizers: bool = False
    records_read: int = 0
    is_behind: bool = False
    publishing_seconds: float = 0.0
    reading_seconds: float = 0.0
    working_seconds: float = 0.0
    dropped: int = 0
    warnings: list[WorkerWarning] = field(default_factory=list)
    logs: list[WorkerLogRecord] = field(default_factory=list)
    problem: str = ""
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class ProducerReport:
    """The report of a task attempt to each task that it sends data to, after the last DATA frame (a REPORT frame).

    `frame_counts` says by edge how many DATA frames it sent to that task; `watermarks` are the output watermarks
    of its stages by stage index. A task that `failed` sends no watermarks, and its consumers do no work.
    """

    failed: bool
    frame_counts: Mapping[int, int]
    watermarks: Mapping[int, int]
