"""The measurements for monitoring systems: one list for each commit. Pure.

    measurements = measure(status, progress, counters)

Values that are not known are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from penstock.io.change_streams.metrics import (
    NAMESPACE_PREFIX,
    OPEN_PARTITIONS,
    REFUSED_PARTITIONS,
    REFUSED_SECONDS,
    REQUESTS,
    WAITING_PARTITIONS,
)
from penstock.io.change_streams.undecodable import UNDECODABLE
from penstock.io.staging.metrics import DEAD_LETTERS, NAMESPACE
from penstock.io.staging.refused import REFUSED
from penstock.measurement import Measurement
from penstock.telemetry.status import PipelineStatus, newest_changes

_STAGING = NAMESPACE.removeprefix(NAMESPACE_PREFIX)
_GAUGES = frozenset((OPEN_PARTITIONS, WAITING_PARTITIONS, REFUSED_PARTITIONS, REFUSED_SECONDS))

TABLE_IDLE_SECONDS = 600.0
"""After this time without a change, a table has no lag: the last one says nothing about now."""


def measure(
    now: PipelineStatus, progress: Any, counters: Iterable[tuple[str, str, int]]
) -> list[Measurement]:
    """Return the measurements as of the last commit.

    `counters` are committed: (namespace, name, value). Each counter of a source or a sink has the label `component`,
    the rest of its namespace. `progress` is the runner's; what another runner does not report is left out.
    """
    # The names are an interface: dashboards and alarms of users refer to them (`docs/telemetry.md`).
    measurements = [
        Measurement(
            "penstock_epochs", now.epochs, "Epochs committed in the life of the checkpoint.", counts=True
        )
    ]
    times = (
        ("penstock_last_commit_timestamp_seconds", now.committed_at, "Time of the last commit."),
        ("penstock_watermark_timestamp_seconds", now.watermark, "Lowest output watermark."),
        ("penstock_watermark_lag_seconds", now.lag, "How far the watermark is behind the driver's clock."),
    )
    measurements += [Measurement(name, value, text, "s") for name, value, text in times if value is not None]
    measurements += [
        Measurement(
            "penstock_complete_until_timestamp_seconds",
            at,
            "The target has every change before this time.",
            "s",
            labels=(("sink", step),),
        )
        for step, at in now.complete.items()
        if at is not None
    ]
    measurements += [
        Measurement("penstock_partitions", count, "Partitions of the sources.", labels=(("state", state),))
        for state, count in (("open", now.open), ("waiting", now.waiting))
        if count is not None
    ]
    measurements += [
        Measurement("penstock_parked_tables", len(now.parked), "Tables that their targets have refused."),
        Measurement(
            "penstock_parked_bytes",
            sum(each.size for each in now.parked),
            "Size of the changes of these tables.",
            "By",
        ),
    ]
    measurements += [
        Measurement(
            "penstock_refused_partitions",
            now.counters.get(REFUSED_PARTITIONS, 0),
            "Partitions that are refused.",
        ),
        Measurement(
            "penstock_longest_refusal_seconds",
            now.counters.get(REFUSED_SECONDS, 0),
            "How long the service has refused the first of them.",
            "s",
        ),
    ]
    sums: dict[tuple[str, str], int] = {}
    for namespace, name, value in counters:
        # Summed over the transforms of one kind: a metric of Beam belongs to a step, and names of steps are users'
        # names.
        if namespace.startswith(NAMESPACE_PREFIX) and name not in _GAUGES:
            key = (name, namespace.removeprefix(NAMESPACE_PREFIX))
            sums[key] = sums.get(key, 0) + value
    # Counters of error outputs begin with 0: Prometheus' `increase` does not see the step with which a counter appears.
    for name, component in list(sums):
        if name == REQUESTS:
            sums.setdefault((UNDECODABLE, component), 0)
        elif component == _STAGING:
            sums.setdefault((REFUSED, component), 0)
            sums.setdefault((DEAD_LETTERS, component), 0)
    measurements += [
        Measurement(f"penstock_{name}", value, _help(name), counts=True, labels=(("component", component),))
        for (name, component), value in sorted(sums.items())
    ]
    return measurements + _of_the_runner(progress)


KeyT = TypeVar("KeyT")


@dataclass(slots=True)
class TableLags(Generic[KeyT]):
    """The lag of each table, from the commits of a pipeline in their order. Times are in seconds.

    A table's lag is how old its newest change was when it was committed. So it says nothing while the table does not
    change, and is left out then.
    """

    _newest: Mapping[KeyT, float] = field(default_factory=dict)
    _lags: dict[KeyT, tuple[float, float]] = field(default_factory=dict)
    _committed_at: float | None = None
    _started: bool = False

    def add(self, committed_at: float | None, newest: Mapping[KeyT, float]) -> None:
        """Add a commit, and the time of the newest change of each table as of it."""
        for key, time in newest.items():
            # What the first record has may be old: the driver that committed it ended some time ago.
            if committed_at is not None and self._started and time != self._newest.get(key):
                self._lags[key] = committed_at, committed_at - time
        self._newest, self._committed_at, self._started = newest, committed_at, True

    def recent(self) -> dict[KeyT, float]:
        """Return the lag of each table that changed within `TABLE_IDLE_SECONDS` before the last commit."""
        now = self._committed_at
        return {
            key: lag
            for key, (at, lag) in self._lags.items()
            if now is not None and now - at < TABLE_IDLE_SECONDS
        }


def measure_tables(
    lags: TableLags[tuple[str, str]], committed_at: float | None, counters: Iterable[tuple[str, str, int]]
) -> list[Measurement]:
    """Add a commit to the lags, and return the measurements after it, from the same counters as `measure`."""
    newest = newest_changes(counters)
    lags.add(committed_at, newest)
    kinds = (
        (
            "penstock_table_change_timestamp_seconds",
            newest,
            "Commit time of the table's newest change that is committed.",
        ),
        (
            "penstock_table_lag_seconds",
            lags.recent(),
            "Age of the table's newest change when it was committed.",
        ),
    )
    return [
        Measurement(name, value, text, "s", labels=_table(key))
        for name, values, text in kinds
        for key, value in sorted(values.items())
    ]


def _table(key: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(zip(("component", "table"), key, strict=True))


def start_time(seconds: float) -> Measurement:
    """Return the measurement of the time at which this driver started, in seconds since 1970."""
    return Measurement("penstock_start_timestamp_seconds", seconds, "Start of this driver.", "s")


def _of_the_runner(progress: Any) -> list[Measurement]:
    # `getattr`, because only the runner of Penstock reports these; a pipeline may run on another one.
    timings = getattr(progress, "epoch_seconds", None) or {}
    measurements = [
        Measurement(
            "penstock_epoch_seconds", seconds, "The last epoch's phases.", "s", labels=(("phase", timing),)
        )
        for timing, seconds in sorted(timings.items())
    ]
    for name, attribute, text, unit in (
        ("penstock_state_bytes", "state_bytes", "Size of the state runs that the last record names.", "By"),
        ("penstock_publications", "publications", "Publications that the last record holds.", "1"),
    ):
        value = getattr(progress, attribute, None)
        if value is not None:
            measurements.append(Measurement(name, value, text, unit))
    residuals = len(tuple(progress.residuals))
    return [
        *measurements,
        Measurement("penstock_residuals", residuals, "Restrictions that are still to be read."),
    ]


def _help(name: str) -> str:
    return f"{name.replace('_', ' ').capitalize()}, as committed."
