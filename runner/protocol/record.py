"""The commit record: everything the next epoch depends on, as plain values, and its bytes.

A record is one text file: a header line `penstock-record <format> <sha256 of the body>`, then the body as
canonical JSON (sorted keys, no spaces, bytes in base64). Equal records have equal bytes, and the digest in
the header names the record: its successor carries it as `parent`, so records form a chain.

A state with long lists (residuals, Publications, …) has them in a *side file*, which the record names with its size
and SHA-256. Such a record has another format number, because an older version must not take the lists for empty.

Reading is forward compatible within a format: fields that a newer version added are ignored. A change that an
older version must not ignore raises the format number, and the older version refuses the record.

No Beam and no Spark in here: elements are bytes that the runner has encoded.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar, get_args

from penstock.attempt import Driver
from penstock.compat import StrEnum
from penstock.runner.protocol.errors import CheckpointError

FORMAT = 2
"""Format of the record's bytes. 2: the runner's state has typed fields."""

SIDE_FORMAT = 3
"""Format of a record whose lists are in a side file; otherwise as `FORMAT`. A reader refuses all other formats."""

INLINE_BYTES = 512 << 10
"""A record that would be larger has its lists in a side file.

Records of most pipelines are far below this, so on object stores their commits need no second put.
"""

MAX_RECORD_BYTES = 1 << 20
"""No record is larger. Without its lists a record grows with the number of steps only, by some 500 bytes a step."""

KEPT_DRIVERS = 16
"""Drivers that a record names. By them a sink finds out about a copy of the checkpoint (`io/staging/delivery.py`)."""

_MAGIC = "penstock-record"

Json = Any
"""A value that JSON can hold."""

Kind = Literal["initial", "takeover", "epoch"]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Residual:
    """The rest of one element of a splittable DoFn, with which a later epoch continues.

    `element` is the encoded windowed value with its restriction for `transform`; `element_id` was drawn
    when the runner first saw the element, so two equal elements stay two. `watermark_us` holds the output
    watermark; the residual is not due before `not_before_us` (both microseconds since 1970).
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
class StateRun:
    """An immutable sorted file of state, and the part of it that counts.

    Only key groups `first_key_group` to `last_key_group` (both inclusive) of the file count. The file may contain
    more: after a rescaling two entries may name one file, each for a part of its key groups. `name` carries
    (generation, epoch), and if two runs contain the same key, the later name wins. `entries` and `size`
    (bytes) describe the whole file, `checksum` is the CRC-32 of its bytes. `hides` is the size in bytes of
    the values in older runs that this one marks as deleted.
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
    """When the first timer of a stage's key groups is due, per time domain; None: no timer is set.

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
    """Which watermark of a step: of elements that reach a carried step, of its input, or of its output."""

    CARRIED = "carried"
    INPUT = "input"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True, order=True)
class WatermarkKey:
    """Names one watermark in a record.

    - CARRIED: of what reaches a carried step (a splittable DoFn, a post-commit step, a TestStream).
    - INPUT: of a stateful step; elements below it are late.
    - OUTPUT: of a step that reads, or of a grouping.
    """

    kind: WatermarkKind
    step: str

    @classmethod
    def carried(cls, step: str) -> WatermarkKey:
        """The watermark of what reaches a carried step."""
        return cls(WatermarkKind.CARRIED, step)

    @classmethod
    def input(cls, step: str) -> WatermarkKey:
        """The input watermark of a stateful step."""
        return cls(WatermarkKind.INPUT, step)

    @classmethod
    def output(cls, step: str) -> WatermarkKey:
        """The output watermark of a step that reads, or of a grouping."""
        return cls(WatermarkKind.OUTPUT, step)


@dataclass(frozen=True, slots=True)
class EpochState:
    """Where the pipeline stands between two epochs; the next epoch is a function of it.

    - `watermarks` are in microseconds. `observed_watermarks` are those CARRIED watermarks that the last epoch
      started from: if they equal the current ones, another epoch cannot advance any watermark.
    - `fired_impulses` names each Impulse that has fired, with the carried steps that it fed.
    - `schemas` says by step how its elements and state are encoded (see `driver/state_schema.py`).
    - `metrics` are serialized MonitoringInfos. The protocol carries them and does not read them.
    - `draining` stays set once a drain has begun.
    - `test_events_applied` and `test_clock_us` are the position in a TestStream and its processing time.
    - `ended` are elements whose bounded read has ended, each with the last restriction that was stored. A later
      program may read on from their end (see `driver/read_on.py`), so they do not keep the pipeline from being done.
    - `done` says that nothing is left to do, ever. A done state with residuals, Publications or timers is refused.
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
    """One atomic step of the pipeline.

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
    drivers: tuple[Driver, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.generation <= self.number:
            raise ValueError(f"record {self.number} cannot be of generation {self.generation}")
        if self.kind not in get_args(Kind):
            raise ValueError(f"record {self.number} is of the unknown kind {self.kind!r}")


def encode_record(record: CommitRecord) -> bytes:
    """Return the record's bytes; equal records give equal bytes."""
    # Canonical, so that equal records have equal bytes and the same digest.
    body = json.dumps(_pack(record), sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")
    record_format = SIDE_FORMAT if record.side_file else FORMAT
    return f"{_MAGIC} {record_format} {hashlib.sha256(body).hexdigest()}\n".encode("ascii") + body


def without_lists(state: EpochState) -> EpochState:
    """Return the part of a state that is always in the record: what does not grow with the data."""
    empty: dict[str, Any] = dict.fromkeys(_LISTS, ())
    return replace(state, **empty)


def has_lists(state: EpochState) -> bool:
    """Return whether any of the lists that may be in a side file has an entry."""
    return state != without_lists(state)


def inline_bytes(state: EpochState) -> int:
    """Return a lower bound for the size of a record with the lists of this state, without encoding them."""
    residuals = sum(len(each.element) for each in (*state.residuals, *state.ended))
    return residuals + sum(len(each.element) for each in state.publications) + sum(map(len, state.metrics))


def encode_side_file(state: EpochState) -> bytes:
    """Return the content of a side file: the lists of a state, one JSON text `[list, row]` in each line."""
    # Line by line, so that the driver never holds all rows as JSON objects: a fan-out may have 100 MB.
    written = io.BytesIO()
    for name, (pack, _) in _LISTS.items():
        for each in getattr(state, name):
            written.write(json.dumps([name, pack(each)], separators=(",", ":")).encode("ascii") + b"\n")
    return written.getvalue()


def side_file_of(name: str, data: bytes) -> SideFile:
    """Return how a record names a side file with this content."""
    return SideFile(name, len(data), hashlib.sha256(data).hexdigest())


def with_side_file(record: CommitRecord, data: bytes, *, source: str = "the side file") -> CommitRecord:
    """Return a decoded record with the lists that are in its side file, of which `data` are the bytes.

    Raises:
        CheckpointError: the bytes are not those that the record names.
    """
    named = record.side_file
    if named != (found := side_file_of(named.name if named else "", data)):
        raise CheckpointError(
            _damaged(source, f"it has {found.size} bytes, and record {record.number} names others")
        )
    lists: dict[str, list[Any]] = {name: [] for name in _LISTS}
    for line in io.BytesIO(data):
        name, row = json.loads(line)
        lists[name].append(_LISTS[name][1](row))
    whole: dict[str, Any] = {name: tuple(rows) for name, rows in lists.items()}
    return replace(record, state=replace(record.state, **whole))


def decode_record(data: bytes, *, source: str = "the record") -> CommitRecord:
    """Read a record from its bytes; `source` names it in errors.

    The state of a record with a side file has empty lists: `with_side_file` completes it.

    Raises:
        CheckpointError: not a record, of another format, cut off, or changed.
    """
    # First the header: a record of another format must not be reported as damaged.
    digest = record_digest(data, source=source)
    body = data.partition(b"\n")[2]
    if hashlib.sha256(body).hexdigest() != digest:
        raise CheckpointError(_damaged(source, "its checksum does not fit"))
    try:
        return _unpack(json.loads(body))
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(_damaged(source, f"{type(error).__name__} while reading it")) from error


def record_digest(data: bytes, *, source: str = "the record") -> str:
    """Return the digest in a record's header: the name of exactly these bytes (the body is not looked at).

    Raises:
        CheckpointError: not a record, or of another format.
    """
    words = data.partition(b"\n")[0].decode("ascii", "replace").split(" ")
    if len(words) != 3 or words[0] != _MAGIC or not words[1].isdigit():
        raise CheckpointError(_damaged(source, "it does not begin like a commit record"))
    if int(words[1]) not in (FORMAT, SIDE_FORMAT):
        raise CheckpointError(
            f"{source} has format {words[1]}, and this version of penstock reads formats {FORMAT} and {SIDE_FORMAT}; "
            "run the pipeline with the version that wrote the record"
        )
    return words[2]


def _damaged(source: str, why: str) -> str:
    return (
        f"{source} is damaged: {why}. Restore the checkpoint folder from a backup, or start with an empty "
        "--checkpoint_dir. Do not delete the record: an older one would publish again what was already published"
    )


def _check_key_groups(first: int, last: int) -> None:
    if not 0 <= first <= last:
        raise ValueError(f"key groups {first} to {last} (inclusive) are not a range")


def _pack(record: CommitRecord) -> dict[str, Json]:
    state = without_lists(record.state) if record.side_file else record.state
    side = record.side_file
    return {
        "number": record.number,
        "generation": record.generation,
        "writer": record.writer,
        "parent": record.parent,
        "committed_us": record.committed_us,
        "kind": record.kind,
        "epochs": record.epochs,
        "drivers": [list(driver) for driver in record.drivers],
        # Rows instead of objects: a record with thousands of residuals would repeat their field names.
        "residuals": _pack_residuals(state.residuals),
        "publications": list(map(_pack_publication, state.publications)),
        "state_runs": list(map(_pack_state_run, state.state_runs)),
        "timers": list(map(_pack_timers, state.timers)),
        "watermarks": _pack_watermarks(state.watermarks),
        "observed_watermarks": _pack_watermarks(state.observed_watermarks),
        "fired_impulses": {name: list(steps) for name, steps in state.fired_impulses.items()},
        "schemas": {name: dict(schema) for name, schema in state.schemas.items()},
        "metrics": [_text(info) for info in state.metrics],
        "draining": state.draining,
        "test_events_applied": state.test_events_applied,
        "test_clock_us": state.test_clock_us,
        "done": state.done,
        # Only if there are any: records of pipelines without an end do not grow.
        **({"ended": _pack_residuals(state.ended)} if state.ended else {}),
        **({"side_file": [side.name, side.size, side.sha256]} if side else {}),
    }


def _unpack(body: Mapping[str, Json]) -> CommitRecord:
    return CommitRecord(
        number=body["number"],
        generation=body["generation"],
        writer=body["writer"],
        parent=body["parent"],
        committed_us=body["committed_us"],
        kind=body["kind"],
        epochs=body["epochs"],
        drivers=tuple(Driver(*row[:2]) for row in body.get("drivers", [])),
        state=EpochState(
            residuals=_rows(body["residuals"], _residual),
            publications=_rows(body["publications"], _publication),
            state_runs=_rows(body["state_runs"], _state_run),
            timers=_rows(body["timers"], _timers),
            watermarks=_unpack_watermarks(body["watermarks"]),
            observed_watermarks=_unpack_watermarks(body["observed_watermarks"]),
            fired_impulses={name: tuple(steps) for name, steps in body["fired_impulses"].items()},
            schemas=body["schemas"],
            metrics=tuple(_bytes(info) for info in body["metrics"]),
            draining=body["draining"],
            test_events_applied=body["test_events_applied"],
            test_clock_us=body["test_clock_us"],
            done=body["done"],
            ended=_rows(body.get("ended", []), _residual),
        ),
        side_file=SideFile(*body["side_file"][:3]) if "side_file" in body else None,
    )


def _pack_residuals(residuals: tuple[Residual, ...]) -> list[list[Json]]:
    return list(map(_pack_residual, residuals))


def _pack_residual(r: Residual) -> list[Json]:
    return [r.transform, r.element_id, _text(r.element), r.watermark_us, r.not_before_us]


def _pack_publication(p: Publication) -> list[Json]:
    return [p.transform, _text(p.element)]


def _pack_state_run(r: StateRun) -> list[Json]:
    return [r.stage, r.name, r.first_key_group, r.last_key_group, r.entries, r.size, r.checksum, r.hides]


def _pack_timers(t: EarliestTimers) -> list[Json]:
    return [t.stage, t.first_key_group, t.last_key_group, t.event_us, t.processing_us, t.hold_us]


def _pack_watermarks(watermarks: Mapping[WatermarkKey, int]) -> dict[str, dict[str, int]]:
    packed: dict[str, dict[str, int]] = {kind.value: {} for kind in WatermarkKind}
    for key, watermark_us in watermarks.items():
        packed[key.kind][key.step] = watermark_us
    return packed


def _unpack_watermarks(packed: Mapping[str, Mapping[str, int]]) -> dict[WatermarkKey, int]:
    return {
        WatermarkKey(kind, step): watermark_us  # kinds that a newer version added are ignored
        for kind in WatermarkKind
        for step, watermark_us in packed[kind].items()
    }


def _rows(rows: list[list[Json]], make: Callable[[list[Json]], _T]) -> tuple[_T, ...]:
    return tuple(make(row) for row in rows)


def _residual(row: list[Json]) -> Residual:
    transform, element_id, element, watermark_us, not_before_us = row[:5]
    return Residual(transform, element_id, _bytes(element), watermark_us, not_before_us)


def _publication(row: list[Json]) -> Publication:
    transform, element = row[:2]
    return Publication(transform, _bytes(element))


def _state_run(row: list[Json]) -> StateRun:
    return StateRun(*row[:8])


def _timers(row: list[Json]) -> EarliestTimers:
    return EarliestTimers(*row[:6])


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


_LISTS: Mapping[str, tuple[Callable[[Any], Json], Callable[[Json], Any]]] = {
    "residuals": (_pack_residual, _residual),
    "publications": (_pack_publication, _publication),
    "state_runs": (_pack_state_run, _state_run),
    "timers": (_pack_timers, _timers),
    "metrics": (_text, _bytes),
    "ended": (_pack_residual, _residual),
}
"""The lists of a state that may grow with the data, each with how its entries are written and read."""
