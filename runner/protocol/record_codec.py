"""The bytes of a commit record, and of the side file with its long lists.

A record is one text file: a header line `penstock-record <format> <sha256 of the body>`, then the body as
canonical JSON (sorted keys, no spaces, bytes in base64). Equal records have equal bytes, and the digest in
the header identifies the record.

If the lists of a state (residuals, Publications, …) are long, they are in a *side file*. The record names that file
with its size and SHA-256. Such a record has another format number, so that an older version refuses it
instead of reading empty lists. A record with parked tables has another one too: an older version would delete their
files.

Decoding is forward compatible within a format: fields that a newer version added are ignored. A change that an
older version must not ignore raises the format number, and the older version refuses the record.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from penstock.attempt import DriverToken
from penstock.parked import ParkedTable
from penstock.runner.protocol.errors import CheckpointError
from penstock.runner.protocol.record import (
    CommitRecord,
    EarliestTimers,
    EpochState,
    ParkedPublications,
    Publication,
    Residual,
    SideFile,
    StateRun,
    WatermarkKey,
    WatermarkKind,
)

FORMAT = 2
"""Format of the record's bytes. 2: the runner's state has typed fields."""

SIDE_FORMAT = 3
"""Format of a record whose lists are in a side file; otherwise as `FORMAT`. A reader refuses all other formats."""

PARKED_FORMAT = 4
"""Format of a record with parked tables, whether its lists are in a side file or not; otherwise as `FORMAT`."""

INLINE_BYTES = 512 << 10
"""If a record would be larger than this, its lists go to a side file.

Records of most pipelines are far below this, so on object stores their commits need no second put.
"""

MAX_RECORD_BYTES = 1 << 20
"""Maximum size of a record. Without its lists a record grows only with the number of steps: about 500 bytes a step."""

_MAGIC = "penstock-record"

Json = Any
"""A value that JSON can hold."""

_T = TypeVar("_T")


def encode_record(record: CommitRecord) -> bytes:
    """Return the record's bytes; equal records give equal bytes."""
    # Canonical JSON, so that equal records have equal bytes and the same digest.
    body = json.dumps(_pack(record), sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")
    record_format = PARKED_FORMAT if record.state.parked else SIDE_FORMAT if record.side_file else FORMAT
    return f"{_MAGIC} {record_format} {hashlib.sha256(body).hexdigest()}\n".encode("ascii") + body


def without_lists(state: EpochState) -> EpochState:
    """Return the part of a state that is always in the record, because it does not grow with the data."""
    empty: dict[str, Any] = dict.fromkeys(_LISTS, ())
    return replace(state, **empty)


def has_lists(state: EpochState) -> bool:
    """Return whether any of the lists that may be in a side file has an entry."""
    return state != without_lists(state)


def inline_bytes(state: EpochState) -> int:
    """Return a lower bound for the size of a record with the lists of this state, without encoding them."""
    residuals = sum(len(each.element) for each in (*state.residuals, *state.ended))
    parked = sum(len(each.table.files) for each in state.parked)
    publications = sum(len(each.element) for each in state.publications)
    return residuals + publications + parked + sum(map(len, state.metrics))


def encode_side_file(state: EpochState) -> bytes:
    """Return the content of a side file: the lists of a state, one JSON text `[list, row]` in each line."""
    # Line by line, so that the driver never holds all rows as JSON objects: a fan-out may have 100 MB.
    written = io.BytesIO()
    for name, (pack, _) in _LISTS.items():
        for each in getattr(state, name):
            written.write(json.dumps([name, pack(each)], separators=(",", ":")).encode("ascii") + b"\n")
    return written.getvalue()


def side_file_of(name: str, data: bytes) -> SideFile:
    """Return the entry with which a record names a side file that has this content."""
    return SideFile(name, len(data), hashlib.sha256(data).hexdigest())


def with_side_file(record: CommitRecord, data: bytes, *, source: str = "the side file") -> CommitRecord:
    """Add the lists of the side file to a decoded record. `data` is the content of the side file.

    Raises:
        CheckpointError: the content does not have the size and SHA-256 that the record names.
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
    # Check the header first: a record of another format must not be reported as damaged.
    digest = record_digest(data, source=source)
    body = data.partition(b"\n")[2]
    if hashlib.sha256(body).hexdigest() != digest:
        raise CheckpointError(_damaged(source, "its checksum does not match"))
    try:
        return _unpack(json.loads(body))
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(_damaged(source, f"{type(error).__name__} while reading it")) from error


def record_digest(data: bytes, *, source: str = "the record") -> str:
    """Return the digest from a record's header, which identifies these bytes. The body is not verified.

    Raises:
        CheckpointError: not a record, or of another format.
    """
    words = data.partition(b"\n")[0].decode("ascii", "replace").split(" ")
    if len(words) != 3 or words[0] != _MAGIC or not words[1].isdigit():
        raise CheckpointError(_damaged(source, "it does not begin like a commit record"))
    if not FORMAT <= int(words[1]) <= PARKED_FORMAT:
        raise CheckpointError(
            f"{source} has format {words[1]}, and this version of penstock reads formats {FORMAT} to {PARKED_FORMAT}. "
            f"{_way_out(int(words[1]))}"
        )
    return words[2]


def _way_out(other: int) -> str:
    """Return what to do about a record of another format."""
    if other > PARKED_FORMAT:
        return "Install a newer version of penstock: the one that wrote the record, or a later one"
    return (
        "Drain the pipeline with the version of penstock that wrote the record, then start it with another "
        "--checkpoint_dir and with a source that begins where the drain ended"
    )


def _damaged(source: str, why: str) -> str:
    return (
        f"{source} is damaged: {why}. Restore the checkpoint folder from a backup, or start with an empty "
        "--checkpoint_dir. Do not delete the record: an older one would publish again what was already published"
    )


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
        # Optional, so that records of pipelines without an end do not grow.
        **({"ended": _pack_residuals(state.ended)} if state.ended else {}),
        **({"parked": list(map(_pack_parked, state.parked))} if state.parked else {}),
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
        # Fields that earlier versions did not write have defaults, here and below.
        drivers=tuple(DriverToken(*row[:2]) for row in body.get("drivers", [])),
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
            parked=_rows(body.get("parked", []), _parked),
        ),
        side_file=SideFile(*body["side_file"][:3]) if "side_file" in body else None,
    )


def _pack_residuals(residuals: tuple[Residual, ...]) -> list[list[Json]]:
    return list(map(_pack_residual, residuals))


def _pack_residual(r: Residual) -> list[Json]:
    return [r.transform, r.element_id, _text(r.element), r.watermark_us, r.not_before_us]


def _pack_publication(p: Publication) -> list[Json]:
    return [p.transform, _text(p.element)]


def _pack_parked(p: ParkedPublications) -> list[Json]:
    t = p.table
    counts = [t.since_us, t.changes, t.size, t.resuming, _text(t.files), t.complete_us]
    return [p.transform, t.name, t.source, t.reason, *counts]


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


# Each row is cut to the columns that this version knows: a newer version may have appended others.


def _residual(row: list[Json]) -> Residual:
    transform, element_id, element, watermark_us, not_before_us = row[:5]
    return Residual(transform, element_id, _bytes(element), watermark_us, not_before_us)


def _publication(row: list[Json]) -> Publication:
    transform, element = row[:2]
    return Publication(transform, _bytes(element))


def _parked(row: list[Json]) -> ParkedPublications:
    transform, name, source, reason, since_us, changes, size, resuming, files, complete_us = row[:10]
    table = ParkedTable(name, source, reason, since_us, changes, size, resuming, _bytes(files), complete_us)
    return ParkedPublications(transform, table)


def _state_run(row: list[Json]) -> StateRun:
    return StateRun(*row[:8])


def _timers(row: list[Json]) -> EarliestTimers:
    return EarliestTimers(*row[:6])


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _bytes(text: str) -> bytes:
    # By default Python skips characters that are not base64 and returns other bytes, without an error.
    return base64.b64decode(text, validate=True)


_LISTS: Mapping[str, tuple[Callable[[Any], Json], Callable[[Json], Any]]] = {
    "residuals": (_pack_residual, _residual),
    "publications": (_pack_publication, _publication),
    "state_runs": (_pack_state_run, _state_run),
    "timers": (_pack_timers, _timers),
    "metrics": (_text, _bytes),
    "ended": (_pack_residual, _residual),
    "parked": (_pack_parked, _parked),
}
"""The lists of a state that may grow with the data. For each list: the functions that pack and unpack an entry."""
