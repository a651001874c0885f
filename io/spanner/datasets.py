"""A table of Spanner as a dataset, for the source and the sink. Pure."""

from __future__ import annotations

from penstock.datasets import Dataset


def spanner_dataset(
    project: str, instance: str, database: str, table: str, columns: tuple[str, ...] = ()
) -> Dataset:
    """Return a table by OpenLineage's names. `table` has its schema in front, unless that is the default one."""
    return Dataset(f"spanner://{project}:{instance}", f"{database}.{table}", columns)
