"""One value for monitoring systems. Pure.

`penstock.telemetry` makes most of them from the commits of a pipeline. A transform that knows something which only a
request tells, such as the log that a database keeps for the pipeline, has a method `measure` without arguments. It
returns a list of `Measurement`s. The driver calls it about every half minute, in a separate thread. If it raises, its
values are missing until it answers again.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Measurement:
    """One value. `counts`: it never falls in the life of the checkpoint. `unit` is a UCUM code.

    Names follow Prometheus, without the suffix `_total` of counters. `labels` are pairs of a name and a text.
    """

    name: str
    value: float
    help: str
    unit: str = "1"
    counts: bool = False
    labels: tuple[tuple[str, str], ...] = ()
