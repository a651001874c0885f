"""The progress of a running pipeline: one line for people, one JSON object for programs. Pure.

All numbers are as of the last commit. The epoch that runs may still fail and be repeated, so it does not count.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from typing import Any, Protocol

from penstock.compat import UTC
from penstock.io.change_streams.frontier import Partitioned, Scan, Slowest, TableMove
from penstock.io.change_streams.metrics import (
    CHANGES,
    LINEAGE,
    NAMESPACE_PREFIX,
    RECORDS,
    REFUSED_PARTITIONS,
    REFUSED_SECONDS,
)
from penstock.io.staging.metrics import DEAD_LETTERS
from penstock.parked import ParkedTable
from penstock.table_times import NAMESPACE_PREFIX as TABLES_PREFIX

# Beam's end of time is later, and no commit time of a source is.
_YEAR_9999_US = 253_370_764_800_000_000
_SAME_TIME_SECONDS = 1.0
"""Two clocks that differ by less than this are shown as equal."""
_SHOWN = (RECORDS, CHANGES, *LINEAGE, REFUSED_PARTITIONS, REFUSED_SECONDS, DEAD_LETTERS)
_LONG_SECONDS = 10.0
"""From this lag on the progress line names the partition that holds the watermark."""


# Protocols, and not the runner's classes: the telemetry of a pipeline is also shown on runners that have no progress.
class ResidualView(Protocol):
    """The remaining work of one source element, as the runner reports it."""

    @property
    def restriction(self) -> Any: ...


class ReadProgress(Protocol):
    """The report of `PySparkRunner`'s result about the last commit. Times are microseconds since 1970."""

    @property
    def epochs(self) -> int: ...
    @property
    def committed_us(self) -> int | None: ...
    @property
    def watermark_us(self) -> int | None: ...
    @property
    def residuals(self) -> Iterable[ResidualView]: ...


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """The state of a running pipeline at one time.

    `at`, `committed_at` and `watermark` are seconds since 1970; None means that nothing is committed yet, or that no
    source has reported a watermark. It is None too if `input_read`: all input is read, so no time bounds it. `epochs`
    counts the committed epochs since the first start. `open` and `waiting` count partitions; they are None if no source
    has partitions. `counters` are counters and gauges. `slowest` is the partition that holds the watermark; None if no
    source tells it. `scans` are the tables whose snapshot is not finished. `complete` is by step that publishes until
    when its target is complete; None: not known. `newest_changes` is by table the commit time of
    its newest change (see `penstock.table_times`). `parked` are the tables that their targets have refused.
    `table_moves` are the tables that joined what the sources read, or left it, in the order of time.
    """

    at: float
    epochs: int
    committed_at: float | None
    watermark: float | None
    open: int | None
    waiting: int | None
    counters: Mapping[str, int]
    slowest: Slowest | None = None
    input_read: bool = False
    scans: tuple[Scan, ...] = ()
    complete: Mapping[str, float | None] = field(default_factory=dict)
    newest_changes: Mapping[str, float] = field(default_factory=dict)
    parked: tuple[ParkedTable, ...] = ()
    table_moves: tuple[TableMove, ...] = ()

    @property
    def lag(self) -> float | None:
        """Seconds that the watermark is behind `at`; negative if this computer's clock is behind the source's."""
        return None if self.watermark is None else self.at - self.watermark

    @property
    def changes(self) -> int:
        """Changes since the first start; records, if a source counts no changes in them."""
        return self.counters.get(CHANGES, self.counters.get(RECORDS, 0))

    @property
    def dead_letters(self) -> int:
        """Dead letters since the first start, also those that a replay has processed since."""
        return self.counters.get(DEAD_LETTERS, 0)

    @property
    def all_complete_until(self) -> float | None:
        """Until when every target is complete, in seconds since 1970; None if that is not known of all of them."""
        known = [at for at in self.complete.values() if at is not None]
        return min(known, default=None) if len(known) == len(self.complete) else None


def pipeline_status(
    at: float, progress: ReadProgress, counters: Iterable[tuple[str, str, int]]
) -> PipelineStatus:
    """Return the status at time `at`, in seconds. `counters` are committed: (namespace, name, value).

    They are counters, and gauges of those names that are shown.
    """
    counters = list(counters)
    # Several residuals of one source may name a partition that moves from one to the other, so count a union.
    partitions = list(filter(None, (_partitions(residual.restriction) for residual in progress.residuals)))
    readable, waiting = (pair[0] for pair in partitions), (pair[1] for pair in partitions)
    return PipelineStatus(
        at=at,
        epochs=progress.epochs,
        committed_at=_seconds(progress.committed_us),
        watermark=_seconds(_finite_us(progress.watermark_us)),
        open=len(frozenset().union(*readable)) if partitions else None,
        waiting=len(frozenset().union(*waiting)) if partitions else None,
        counters=_sums(counters),
        slowest=_slowest(progress.residuals),
        scans=_of_restrictions("scans", progress),
        table_moves=tuple(sorted(_of_restrictions("table_moves", progress), key=lambda move: move.at)),
        input_read=progress.watermark_us is not None and progress.watermark_us >= _YEAR_9999_US,
        # Only the runner of Penstock reports these.
        complete={step: _seconds(us) for step, us in getattr(progress, "complete_us", {}).items()},
        newest_changes={table: time for (_, table), time in sorted(newest_changes(counters).items())},
        parked=tuple(getattr(progress, "parked", ())),
    )


def _of_restrictions(name: str, progress: ReadProgress) -> tuple[Any, ...]:
    """Return the entries of a property that some restrictions have."""
    return tuple(chain.from_iterable(getattr(each.restriction, name, ()) for each in progress.residuals))


def newest_changes(counters: Iterable[tuple[str, str, int]]) -> dict[tuple[str, str], float]:
    """Return the commit time of the newest change, in seconds, by (component of the source, table)."""
    found: dict[tuple[str, str], float] = {}
    for namespace, table, time_ms in counters:
        if namespace.startswith(TABLES_PREFIX):
            key = (namespace.removeprefix(TABLES_PREFIX), table)
            found[key] = max(time_ms / 1000, found.get(key, 0.0))
    return found


def rate(before: PipelineStatus, now: PipelineStatus) -> float:
    """Return the changes per second between two statuses."""
    seconds = now.at - before.at
    return (now.changes - before.changes) / seconds if seconds > 0 else 0.0


def scan_rate(before: PipelineStatus, now: PipelineStatus) -> float:
    """Return the rows of snapshots per second between two statuses.

    Rows of a table that was finished in between are not counted, because only unfinished tables are known.
    """
    rows = {scan.table: scan.rows for scan in before.scans}
    seconds = now.at - before.at
    # Never negative: a second snapshot of a table begins with 0 rows.
    emitted = sum(max(0, scan.rows - rows.get(scan.table, 0)) for scan in now.scans)
    return emitted / seconds if seconds > 0 else 0.0


def scan_seconds_left(before: PipelineStatus, now: PipelineStatus) -> float | None:
    """Return how long the snapshots still take at this rate; None if a table has no estimate, or nothing is read."""
    if not now.scans or not all(scan.estimate for scan in now.scans):
        return None
    per_second = scan_rate(before, now)
    left = sum(max(0, scan.estimate - scan.rows) for scan in now.scans)
    return left / per_second if per_second else None


def _percent(scan: Scan) -> int | None:
    """Return how much of a table was read. An estimate may be too low, so at most 99: the table is not finished."""
    return min(99, 100 * scan.rows // scan.estimate) if scan.estimate else None


def _snapshot_in_words(before: PipelineStatus, now: PipelineStatus) -> list[str]:
    if not now.scans:
        return []
    # Tables that have begun; before the first row, the table that comes first. A line has no room for all of them.
    read = [scan for scan in now.scans if scan.rows] or list(now.scans[:1])
    words = []
    for scan in read:
        of = f" of about {scan.estimate:,}" if scan.estimate else ""
        percent = f" ({_percent(scan)} %)" if scan.estimate else ""
        words.append(f"{scan.table} {scan.rows:,}{of} rows{percent}")
    if more := len(now.scans) - len(read):
        words.append(f"{more} more {'table' if more == 1 else 'tables'}")
    left = scan_seconds_left(before, now)
    if left is not None:
        words.append(f"{span(left)} left")
    return [f"snapshot {', '.join(words)}"]


def _snapshot_fields(before: PipelineStatus, now: PipelineStatus) -> dict[str, Any] | None:
    if not now.scans:
        return None
    left = scan_seconds_left(before, now)
    return {
        "tables": [
            {
                "table": scan.table,
                "rows": scan.rows,
                "estimated_rows": scan.estimate or None,
                "percent": _percent(scan),
            }
            for scan in now.scans
        ],
        "rows_per_second": round(scan_rate(before, now), 1),
        "seconds_left": None if left is None else round(left),
    }


def as_line(before: PipelineStatus, now: PipelineStatus) -> str:
    """Return the progress line for people; it has the rate since `before`."""
    texts = [f"{rate(before, now):,.0f} changes/s", f"{now.changes:,} in all"]
    texts += _snapshot_in_words(before, now)
    if now.input_read:
        texts.append("all input is read")
    else:
        texts.append("watermark -" if now.lag is None else f"watermark {_distance(now.lag)}")
    # Below this lag another partition holds the watermark in each line, which says nothing.
    if now.slowest is not None and now.lag is not None and now.lag >= _LONG_SECONDS:
        texts[-1] += f", held by {now.slowest}"
    if refused := now.counters.get(REFUSED_PARTITIONS, 0):
        seconds = now.counters.get(REFUSED_SECONDS, 0)
        texts.append(f"the service has refused {refused} partitions, the first for {span(seconds)}")
    if now.open is not None:
        texts.append(f"partitions {now.open} open, {now.waiting} waiting")
        texts.append(", ".join(f"{now.counters.get(name, 0)} {name}" for name in LINEAGE))
    if now.parked:
        texts.append(f"{len(now.parked)} {'table' if len(now.parked) == 1 else 'tables'} parked")
    texts.append(f"{now.epochs} epochs")
    if now.committed_at is not None:
        texts.append(f"checkpoint {_distance(now.at - now.committed_at, 'ago')}")
    return " | ".join(texts)


def as_fields(before: PipelineStatus, now: PipelineStatus) -> dict[str, Any]:
    """Return the fields of a progress event. Unknown values are None, times are RFC 3339."""
    # Programs of users read these names (`docs/telemetry.md`), so they stay when the code uses other words.
    return {
        "changes_per_second": round(rate(before, now), 1),
        "snapshot": _snapshot_fields(before, now),
        "watermark": "end" if now.input_read else _time(now.watermark),
        "complete_until": {step: _time(at) for step, at in now.complete.items()},
        "newest_changes": {table: _time(at) for table, at in now.newest_changes.items()},
        "parked_tables": list(map(parked_fields, now.parked)),
        "moved_tables": list(map(move_fields, now.table_moves)),
        "watermark_lag_seconds": None if now.lag is None else round(now.lag, 3),
        "open_partitions": now.open,
        "waiting_partitions": now.waiting,
        "slowest_partition": None if now.slowest is None else now.slowest.name,
        "slowest_partition_waits_for": [] if now.slowest is None else list(now.slowest.waits_for),
        REFUSED_PARTITIONS: now.counters.get(REFUSED_PARTITIONS, 0),
        REFUSED_SECONDS: now.counters.get(REFUSED_SECONDS, 0),
        "epochs": now.epochs,
        "last_checkpoint": _time(now.committed_at),
        "changes": now.changes,
        DEAD_LETTERS: now.dead_letters,
        **{name: now.counters.get(name, 0) for name in (RECORDS, *LINEAGE)},
    }


def parked_fields(table: ParkedTable) -> dict[str, Any]:
    """Return the fields of a parked table."""
    return {
        "table": table.name,
        "source": table.source,
        "reason": table.reason,
        "since": _time(_seconds(table.since_us)),
        "complete_until": _time(_seconds(table.complete_us or None)),
        "changes": table.changes,
        "bytes": table.size,
        "resuming": table.resuming,
    }


def move_fields(move: TableMove) -> dict[str, Any]:
    """Return the fields of a table that joined or left."""
    return {
        "table": move.table,
        "event": "joined" if move.joined else "left",
        "at": _time(_seconds(move.at // 1000)),
    }


def as_json(before: PipelineStatus, now: PipelineStatus) -> str:
    """Return `as_fields` as one line of JSON."""
    return json.dumps({"time": _time(now.at), "event": "progress", **as_fields(before, now)})


def _partitions(restriction: Any) -> tuple[frozenset[Any], frozenset[Any]] | None:
    """Return the partitions that a restriction reports as readable and as waiting; None if it reports none."""
    if not isinstance(restriction, Partitioned):
        return None
    return frozenset(restriction.readable), frozenset(restriction.waiting)


def _slowest(residuals: Iterable[ResidualView]) -> Slowest | None:
    """Return the slowest partition of all residuals; of several, one that is being read."""
    candidates = (getattr(residual.restriction, "slowest", None) for residual in residuals)
    known = (partition for partition in candidates if partition is not None)
    # One that waits for its parents is held by them, so it is not the cause of the lag.
    return min(known, key=lambda partition: (partition.timestamp, bool(partition.waits_for)), default=None)


def _finite_us(watermark_us: int | None) -> int | None:
    """Return the watermark, or None for Beam's lowest ("none reported") and highest (`PipelineStatus.input_read`)."""
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
    """Return in words how far a time is behind the clock of this computer, or ahead of it."""
    if seconds > -_SAME_TIME_SECONDS:
        return f"{span(max(0.0, seconds))} {behind}"
    return f"{span(-seconds)} ahead of this computer's clock"


def span(seconds: float) -> str:
    """Return a time span in words: seconds, minutes or hours."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _time(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    # Always three digits, so that texts of times sort as the times do.
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
