"""The table of a changefeed as its records describe it. Pure."""

from __future__ import annotations

from functools import lru_cache

from penstock.io.ydb.decode import changed_table
from penstock.io.ydb.record import Table


class Tables:
    """The table as schema changes describe it; before the first one, as YDB described it last."""

    def __init__(self, described: Table) -> None:
        self.described = described
        # A table per schema change, shared by all partitions; a method's own cache would keep `self`.
        self._changed = lru_cache(maxsize=64)(lambda schema: changed_table(self.described, schema))

    def at(self, schema: str) -> Table:
        """Return the table at a `Position.schema`."""
        return self._changed(schema) if schema else self.described
