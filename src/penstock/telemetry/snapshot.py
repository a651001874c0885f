"""How far a running pipeline is, as one line for people or one JSON object for programs. Pure.

The numbers are those of the last commit, never of an epoch that may still be thrown away.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from penstock.io.change_streams.frontier import Partitioned
from penstock.io.change_streams.metrics import CHANGES, LINEAGE, NAMESPACE_PREFIX, RECORDS

_YEAR_9999_US = 253_370_764_800_000_000
_SAME_TIME_SECONDS = 1.0
_SHOWN = (RECORDS, CHANGES, *LINEAGE)


class Residual(Protocol):
    """What the runner shows of one source element at rest."""

    @property
    def restriction(self) -> Any: ...


class Progress(Protocol):
    """What `PySparkRunner`'s result says of the last commit; times in microseconds since 1970."""

    @property
    def epochs(self) -> int: ...
    @property
    def committed_us(self) -> int | None: ...
    @property
    def watermark_us(self) -> int | None: ...
    @property
    def residuals(self) -> Iterable[Residual]: ...


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One look at a running pipeline.

    `at`, `committed_at` and `watermark` are seconds since 1970; None: nothing is committed yet, or no source
    has said anything. `epochs` is how many the pipeline has committed since its first start. Partitions are
    None for a source without any.
    """

    at: float
    epochs: int
    committed_at: float | None
    watermark: float | None
    open: int | None
    waiting: int | None
    counters: Mapping[str, int]

    @property
    def lag(self) -> float | None:
        """Seconds that the watermark is behind `at`; negative if this computer's clock is behind the source's."""
        return None if self.watermark is None else self.at - self.watermark

    @property
    def changes(self) -> int:
        """Changes since the first start; records, if a source counts no changes in them."""
        return self.counters.get(CHANGES, self.counters.get(RECORDS, 0))


def take_snapshot(at: float, progress: Progress, counters: Iterable[tuple[str, str, int]]) -> Snapshot:
    """Return what `progress` and the committed counters (namespace, name, value) say at time `at`."""
    parts = [part for residual in progress.residuals if (part := _partitions(residual.restriction))]
    return Snapshot(
        at=at,
        epochs=progress.epochs,
        committed_at=_seconds(progress.committed_us),
        watermark=_seconds(_moment(progress.watermark_us)),
        open=len(set().union(*(part[0] for part in parts))) if parts else None,
        waiting=len(set().union(*(part[1] for part in parts))) if parts else None,
        counters=_sums(counters),
    )


def rate(before: Snapshot, now: Snapshot) -> float:
    """Return changes a second between two looks."""
    seconds = now.at - before.at
    return (now.changes - before.changes) / seconds if seconds > 0 else 0.0


def as_line(before: Snapshot, now: Snapshot) -> str:
    """Return the line that a person watches."""
    parts = [f"{rate(before, now):,.0f}/s", f"{now.changes:,} in all"]
    parts.append("watermark -" if now.lag is None else f"watermark {_distance(now.lag)}")
    if now.open is not None:
        parts.append(f"partitions {now.open} open, {now.waiting} waiting")
        parts.append(", ".join(f"{now.counters.get(name, 0)} {name}" for name in LINEAGE))
    parts.append(f"{now.epochs} epochs")
    if now.committed_at is not None:
        parts.append(f"checkpoint {_distance(now.at - now.committed_at, 'ago')}")
    return " | ".join(parts)


def as_fields(before: Snapshot, now: Snapshot) -> dict[str, Any]:
    """Return the fields of a progress event; absent knowledge is null, times are RFC 3339."""
    return {
        "changes_per_second": round(rate(before, now), 1),
        "watermark": _time(now.watermark),
        "watermark_lag_seconds": None if now.lag is None else round(now.lag, 3),
        "open_partitions": now.open,
        "waiting_partitions": now.waiting,
        "epochs": now.epochs,
        "last_checkpoint": _time(now.committed_at),
        "changes": now.changes,
        **{name: now.counters.get(name, 0) for name in (RECORDS, *LINEAGE)},
    }


def as_json(before: Snapshot, now: Snapshot) -> str:
    """Return `as_fields` as one line of JSON."""
    return json.dumps({"time": _time(now.at), "event": "progress", **as_fields(before, now)})


def _partitions(restriction: Any) -> tuple[frozenset[Any], frozenset[Any]] | None:
    """Return the partitions that a restriction reports as readable and as waiting; None if it reports none."""
    if not isinstance(restriction, Partitioned):
        return None
    return frozenset(restriction.readable), frozenset(restriction.waiting)


def _moment(watermark_us: int | None) -> int | None:
    """Return a watermark that is a moment; Beam's lowest and highest mean "nothing said" and "all said"."""
    return watermark_us if watermark_us is not None and 0 < watermark_us < _YEAR_9999_US else None


def _seconds(micros: int | None) -> float | None:
    return None if micros is None else micros / 1e6


def _sums(counters: Iterable[tuple[str, str, int]]) -> dict[str, int]:
    """Add up the counters of all sources that are shown, by name."""
    sums: dict[str, int] = {}
    for namespace, name, value in counters:
        if name in _SHOWN and namespace.startswith(NAMESPACE_PREFIX):
            sums[name] = sums.get(name, 0) + value
    return sums


def _distance(seconds: float, behind: str = "behind") -> str:
    """Return how far a time is behind the clock of this computer, or ahead of it by more than clocks differ."""
    if seconds > -_SAME_TIME_SECONDS:
        return f"{_span(max(0.0, seconds))} {behind}"
    return f"{_span(-seconds)} ahead of this computer's clock"


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _time(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
