"""Refuses two tables of a source that would be written into one table of the target. Pure."""

from __future__ import annotations

from collections.abc import Hashable

from penstock.errors import ServiceError
from penstock.event.model import Source


class TableSources:
    """The table of the source that each table of a target has. Grows with the number of tables."""

    def __init__(self, error: type[ServiceError]) -> None:
        """`error`: the sink's error class."""
        self._error = error
        self._known: dict[Hashable, tuple[str, ...]] = {}

    def check(self, table: Hashable, source: Source) -> None:
        """Note that events of `source` go to `table` of the target.

        Raises:
            the error class given: events of another table of the source go there too.
        """
        identity = (source.system, source.server, source.database, source.schema, source.table)
        known = self._known.setdefault(table, identity)
        if known != identity:
            raise self._error(
                f"two tables of the source would be one table of the target: {'.'.join(filter(None, known[2:]))} and "
                f"{'.'.join(filter(None, identity[2:]))}. Use table='{{schema}}_{{table}}' or '{{database}}_{{table}}'"
            )
