"""How far a running pipeline is, as one line for people or one JSON object for programs. Pure.

The numbers are those of the last commit, never of an epoch that may still be thrown away.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

LINEAGE = ("splits", "merges", "moves")
COUNTED = ("records", "mods", *LINEAGE)
"""Counters that sources keep, in a namespace `penstock.io.<system>`."""


class Residual(Protocol):
    """What the runner shows of one source element at rest."""

    @property
    def restriction(self) -> Any: ...


class Progress(Protocol):
    """What `PySparkRunner`'s result says of the last commit. `committed_at` is in seconds since 1970."""

    @property
    def epoch(self) -> int: ...
    @property
    def committed_at(self) -> float | None: ...
    @property
    def watermark_us(self) -> int | None: ...
    @property
    def residuals(self) -> Iterable[Residual]: ...


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One look at a running pipeline.

    `at` and `committed_at` are seconds since 1970, `watermark` likewise (None: no source has said anything
    yet). `epoch` is the number of the last commit record. Partitions are None for a source without any.
    """

    at: float
    epoch: int
    committed_at: float | None
    watermark: float | None
    open: int | None
    waiting: int | None
    counters: Mapping[str, int]

    @property
    def lag(self) -> float | None:
        """Seconds that the watermark is behind `at`; never negative, since commit clocks may run ahead."""
        return None if self.watermark is None else max(0.0, self.at - self.watermark)

    @property
    def changes(self) -> int:
        """Changed rows since the pipeline's first start; records, where a source counts no rows."""
        return self.counters.get("mods", self.counters.get("records", 0))


def look(at: float, progress: Progress, counters: Iterable[tuple[str, str, int]]) -> Snapshot:
    """Return what `progress` and the committed counters (namespace, name, value) say at time `at`."""
    partitions = [_partitions(residual.restriction) for residual in progress.residuals]
    told = [pair for pair in partitions if pair is not None]
    return Snapshot(
        at=at,
        epoch=progress.epoch,
        committed_at=progress.committed_at,
        watermark=None if progress.watermark_us is None else progress.watermark_us / 1e6,
        open=sum(pair[0] for pair in told) if told else None,
        waiting=sum(pair[1] for pair in told) if told else None,
        counters=_sums(counters),
    )


def rate(before: Snapshot, now: Snapshot) -> float:
    """Return changes a second between two looks."""
    seconds = now.at - before.at
    return (now.changes - before.changes) / seconds if seconds > 0 else 0.0


def as_line(before: Snapshot, now: Snapshot) -> str:
    """Return the line that a person watches."""
    parts = [f"{rate(before, now):,.0f}/s", f"{now.changes:,} in all"]
    parts.append("watermark -" if now.lag is None else f"watermark {_span(now.lag)} behind")
    if now.open is not None:
        parts.append(f"partitions {now.open} open, {now.waiting} waiting")
        parts.append(", ".join(f"{now.counters.get(name, 0)} {name}" for name in LINEAGE))
    parts.append(f"epoch {now.epoch}")
    if now.committed_at is not None:
        parts.append(f"checkpoint {_span(max(0.0, now.at - now.committed_at))} ago")
    return " | ".join(parts)


def as_fields(before: Snapshot, now: Snapshot) -> dict[str, Any]:
    """Return the fields of a progress event; absent knowledge is null, times are RFC 3339."""
    return {
        "records_per_second": round(rate(before, now), 1),
        "watermark": _time(now.watermark),
        "watermark_lag_seconds": None if now.lag is None else round(now.lag, 3),
        "open_partitions": now.open,
        "waiting_partitions": now.waiting,
        "epoch": now.epoch,
        "last_checkpoint": _time(now.committed_at),
        **{name: now.counters.get(name, 0) for name in COUNTED},
    }


def as_json(before: Snapshot, now: Snapshot) -> str:
    """Return `as_fields` as one line of JSON."""
    return json.dumps({"time": _time(now.at), "event": "progress", **as_fields(before, now)})


def _partitions(restriction: Any) -> tuple[int, int] | None:
    """Return how many partitions a frontier has open and waiting; None for any other restriction."""
    try:
        return len(restriction.open), len(restriction.waiting)
    except (AttributeError, TypeError):
        return None


def _sums(counters: Iterable[tuple[str, str, int]]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for namespace, name, value in counters:
        if name in COUNTED and namespace.startswith("penstock.io."):
            sums[name] = sums.get(name, 0) + value
    return sums


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
