"""The commit record: everything that the next epoch depends on, as plain values.

Records form a chain: each one has the digest of the record before it as `parent`. `record_codec` turns a record into
bytes and back.

No Beam and no Spark in here: elements are bytes that the runner has encoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from penstock.attempt import DriverToken
from penstock.compat import StrEnum
from penstock.parked import ParkedTable

KEPT_DRIVERS = 16
"""Number of drivers that a record lists, the newest ones.

A sink compares this list with its own, and so detects that the checkpoint was copied (`io/staging/delivery.py`).
"""

Kind = Literal["initial", "takeover", "epoch"]


@dataclass(frozen=True, slots=True)
class Residual:
    """The unread rest of one element of a splittable DoFn. A later epoch continues with it.

    `element` is the encoded windowed value with its restriction, as `transform` reads it. The runner chose
    `element_id` when it first saw the element, so two equal elements remain distinct. `watermark_us` holds the output
    watermark. The residual is not due before `not_before_us`. Both times are microseconds since 1970.
    """

    transform: str
    element_id: str
    element: bytes
    watermark_us: int
    not_before_us: int


@dataclass(frozen=True, slots=True)
class Publication:
    """One encoded element that reached the post-commit step `transform`, to be run by the next epoch."""

    transform: str
    element: bytes


@dataclass(frozen=True, slots=True)
class ParkedPublications:
    """The publications of the post-commit step `transform` that are parked, for one table."""

    transform: str
    table: ParkedTable


@dataclass(frozen=True, slots=True)
class StateRun:
    """An immutable sorted file of state, and the range of its key groups that this entry uses.

    The entry uses key groups `first_key_group` to `last_key_group` (both inclusive). The file may contain
    more: after a rescaling two entries may name one file, each for a part of its key groups. `name` contains
    (generation, epoch). If two runs contain the same key, the run with the higher (generation, epoch) wins. `entries`
    and `size` (bytes) describe the whole file, `checksum` is the CRC-32 of its bytes. `hides` is the size in bytes of
    the values in older runs that this run marks as deleted.
    """

    stage: str
    name: str
    first_key_group: int
    last_key_group: int
    entries: int
    size: int
    checksum: int
    hides: int = 0

    def __post_init__(self) -> None:
        _check_key_groups(self.first_key_group, self.last_key_group)


@dataclass(frozen=True, slots=True)
class EarliestTimers:
    """The times at which the first timers of a stage's key groups are due, by time domain; None: no timer is set.

    `hold_us` is the earliest watermark hold of these key groups. Key groups are inclusive; times are microseconds
    since 1970.
    """

    stage: str
    first_key_group: int
    last_key_group: int
    event_us: int | None = None
    processing_us: int | None = None
    hold_us: int | None = None

    def __post_init__(self) -> None:
        _check_key_groups(self.first_key_group, self.last_key_group)

    @property
    def pending(self) -> bool:
        """Whether any timer is set."""
        return self.event_us is not None or self.processing_us is not None


class WatermarkKind(StrEnum):
    """The watermarks that a record stores for steps; see `WatermarkKey`."""

    CARRIED = "carried"
    INPUT = "input"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True, order=True)
class WatermarkKey:
    """The key of one watermark in a record.

    - CARRIED: the watermark of the elements that reach a carried step. A carried step (a splittable DoFn, a
      post-commit step, a TestStream) gets its elements from the record, at the start of the next epoch.
    - INPUT: the input watermark of a stateful step. Elements below it are late.
    - OUTPUT: the output watermark of a step that reads, or of a GroupByKey.
    """

    kind: WatermarkKind
    step: str

    @classmethod
    def carried(cls, step: str) -> WatermarkKey:
        """The watermark of the elements that reach a carried step."""
        return cls(WatermarkKind.CARRIED, step)

    @classmethod
    def input(cls, step: str) -> WatermarkKey:
        """The input watermark of a stateful step."""
        return cls(WatermarkKind.INPUT, step)

    @classmethod
    def output(cls, step: str) -> WatermarkKey:
        """The output watermark of a step that reads, or of a GroupByKey."""
        return cls(WatermarkKind.OUTPUT, step)


@dataclass(frozen=True, slots=True)
class EpochState:
    """The state of the pipeline between two epochs. The next epoch is a function of it and of the data that it reads.

    - `watermarks` are in microseconds. `observed_watermarks` are the CARRIED watermarks from which the last epoch
      started: if they equal the current ones, another epoch cannot advance any watermark.
    - `fired_impulses` names each Impulse that has fired, with the carried steps that it fed.
    - `schemas` says by step how its elements and state are encoded (see `driver/state_schema.py`).
    - `metrics` are serialized MonitoringInfos. The protocol carries them and does not read them.
    - `draining` stays set once a drain has begun.
    - `test_events_applied` and `test_clock_us` are the position in a TestStream and its processing time.
    - `ended` are elements whose bounded read has ended, each with the last restriction that was stored. A program
      that is started later may read on from this end (see `driver/read_on.py`). They do not prevent `done`.
    - `parked` are publications that a target has refused. They wait for a request, and no epoch runs because of them.
    - `done`: the pipeline has finished, and no further epoch runs. A done state with residuals, Publications, timers or
      parked tables is rejected.
    """

    residuals: tuple[Residual, ...] = ()
    publications: tuple[Publication, ...] = ()
    state_runs: tuple[StateRun, ...] = ()
    timers: tuple[EarliestTimers, ...] = ()
    watermarks: Mapping[WatermarkKey, int] = field(default_factory=dict)
    observed_watermarks: Mapping[WatermarkKey, int] = field(default_factory=dict)
    fired_impulses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    schemas: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    metrics: tuple[bytes, ...] = ()
    draining: bool = False
    test_events_applied: int = 0
    test_clock_us: int = 0
    done: bool = False
    ended: tuple[Residual, ...] = ()
    parked: tuple[ParkedPublications, ...] = ()

    def __post_init__(self) -> None:
        if self.done and self.outstanding:
            raise ValueError(f"a state with {self.outstanding} is not done; run another epoch before DONE")

    @property
    def outstanding(self) -> str:
        """Say what keeps the pipeline from being done, as '2 residuals, 1 timers'; '' when nothing does."""
        counts = {
            "residuals": len(self.residuals),
            "publications": len(self.publications),
            "timers": sum(timers.pending for timers in self.timers),
            "parked tables": len(self.parked),
        }
        return ", ".join(f"{count} {what}" for what, count in counts.items() if count)


@dataclass(frozen=True, slots=True)
class SideFile:
    """The file with the lists of a state that are too long for the record. `size` is in bytes."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """One atomic commit of the pipeline.

    `number` rises by one from 1. `generation` is the number of the record by which the writing driver took
    over. `writer` names that driver for people (host, process, start) and is unique. `parent` is the digest
    of record `number - 1`, None for the first. `epochs` counts the epochs committed so far in the life of
    the checkpoint. Take-overs do not count: it is 0 until the first epoch is committed. `side_file` is where the lists
    of `state` are stored; None if they are in the record. `drivers` are the last `KEPT_DRIVERS` drivers, oldest first;
    the last one of them wrote the record.
    """

    number: int
    generation: int
    writer: str
    parent: str | None
    committed_us: int
    kind: Kind
    epochs: int
    state: EpochState
    side_file: SideFile | None = None
    drivers: tuple[DriverToken, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.generation <= self.number:
            raise ValueError(f"record {self.number} cannot be of generation {self.generation}")
        if self.kind not in get_args(Kind):
            raise ValueError(f"record {self.number} is of the unknown kind {self.kind!r}")


def _check_key_groups(first: int, last: int) -> None:
    if not 0 <= first <= last:
        raise ValueError(f"key groups {first} to {last} (inclusive) are not a range")
