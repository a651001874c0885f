"""The metrics of Beam that tell the newest change of each table: their names, and the limit of their number. Pure.

A source sets a gauge for each table of which a bundle has emitted changes: namespace ``penstock.tables.<component>``,
name the table, value the commit time of its newest change in milliseconds since 1970.

A commit record stores metrics for the life of the checkpoint, and a monitoring system stores each table as a series. A
database may have ten thousand tables. So the first `MOST_TABLES` by name have a gauge, and all others share one with
the name `OTHER`. Worker and driver apply the same rule. It needs no memory of what was chosen before: if a worker that
knows fewer tables names one too many, the driver moves it to `OTHER`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

NAMESPACE_PREFIX = "penstock.tables."

MOST_TABLES = 50
OTHER = "(other)"


def named_tables(tables: Iterable[str]) -> frozenset[str]:
    """Return the tables that have their own gauge: at most `MOST_TABLES`, the first by name."""
    return frozenset(sorted(set(tables) - {OTHER})[:MOST_TABLES])


def limited(times: Mapping[str, int]) -> dict[str, int]:
    """Return times by table with at most `MOST_TABLES` names and `OTHER`, which gets the newest time of the others."""
    named = named_tables(times)
    found: dict[str, int] = {}
    for table, time in times.items():
        name = table if table in named else OTHER
        found[name] = max(time, found.get(name, time))
    return found
