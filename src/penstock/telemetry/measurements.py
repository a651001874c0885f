"""The measurements for monitoring systems: one list for each commit. Pure.

    measurements = measure(status, progress, counters)

Names follow Prometheus, without the suffix `_total` of counters. Values that are not known are left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from penstock.io.change_streams.metrics import (
    NAMESPACE_PREFIX,
    OPEN_PARTITIONS,
    REFUSED_PARTITIONS,
    REFUSED_SECONDS,
    REQUESTS,
    WAITING_PARTITIONS,
)
from penstock.io.change_streams.undecodable import UNDECODABLE
from penstock.io.staging.metrics import NAMESPACE
from penstock.io.staging.refused import REFUSED
from penstock.telemetry.status import PipelineStatus

_STAGING = NAMESPACE.removeprefix(NAMESPACE_PREFIX)
_GAUGES = frozenset((OPEN_PARTITIONS, WAITING_PARTITIONS, REFUSED_PARTITIONS, REFUSED_SECONDS))


@dataclass(frozen=True, slots=True)
class Measurement:
    """One value. `counts`: it never falls in the life of the checkpoint. `unit` is a UCUM code."""

    name: str
    value: float
    help: str
    unit: str = "1"
    counts: bool = False
    labels: tuple[tuple[str, str], ...] = ()


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
    measurements += [
        Measurement(f"penstock_{name}", value, _help(name), counts=True, labels=(("component", component),))
        for (name, component), value in sorted(sums.items())
    ]
    return measurements + _of_the_runner(progress)


def _of_the_runner(progress: Any) -> list[Measurement]:
    # `getattr`, because only the runner of Penstock reports these; a pipeline may run on another one.
    timings = getattr(progress, "epoch_seconds", None) or {}
    measurements = [
        Measurement(
            "penstock_epoch_seconds", seconds, "The last epoch's phases.", "s", labels=(("phase", timing),)
        )
        for timing, seconds in sorted(timings.items())
    ]
    for name, field, text, unit in (
        ("penstock_state_bytes", "state_bytes", "Size of the state runs that the last record names.", "By"),
        ("penstock_publications", "publications", "Publications that the last record holds.", "1"),
    ):
        value = getattr(progress, field, None)
        if value is not None:
            measurements.append(Measurement(name, value, text, unit))
    residuals = len(tuple(progress.residuals))
    return [
        *measurements,
        Measurement("penstock_residuals", residuals, "Restrictions that are still to be read."),
    ]


def _help(name: str) -> str:
    return f"{name.replace('_', ' ').capitalize()}, as committed."
