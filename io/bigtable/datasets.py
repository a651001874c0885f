"""A table of Bigtable as a dataset, for the source and the sink. Pure.

OpenLineage has no rule for Bigtable. The name has the form of its rule for Spanner.
"""

from __future__ import annotations

from penstock.datasets import Dataset


def bigtable_dataset(project: str, instance: str, table: str) -> Dataset:
    """Return a table. It has no columns: a cell belongs to a column family."""
    return Dataset(f"bigtable://{project}:{instance}", table)
