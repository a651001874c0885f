"""Parked tables: tables whose target has refused changes, and the requests of people about them. Pure.

The changes of a parked table are in files of its sink, which the commit record names. The other tables go on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.compat import StrEnum

__all__ = ["ParkedTable", "TableAction", "TableRequest", "matching"]


@dataclass(frozen=True, slots=True)
class ParkedTable:
    """The changes of one table that its target does not have yet.

    - `name` is the table in the target, `source` the table of the source with its schema.
    - `reason` says why the target refused the table; it shows no values of rows.
    - `since_us` is when the table was parked, in microseconds since 1970. With `name` it identifies the parking.
    - `changes` and `size` (bytes) are of all its files.
    - `resuming`: the changes are being published now, oldest first.
    - `refilling`: in place of the changes, a TRUNCATE is published in this epoch. No record has it.
    - `files` are the files, as the sink has encoded them.
    - `complete_us`: the target has every change of the table before this time; 0 if that is not known. The runner sets
      it.
    """

    name: str
    source: str
    reason: str
    since_us: int
    changes: int
    size: int
    resuming: bool
    files: bytes
    complete_us: int = 0
    refilling: bool = False


class TableAction(StrEnum):
    """An action on a parked table, after which the table goes on.

    RESUME publishes its changes, SKIP drops them. REFILL drops them too and empties the table in the target; the person
    who asks for it has all rows read again afterwards.
    """

    REFILL = "refill"
    RESUME = "resume"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class TableRequest:
    """A request about one parking. It has no effect on a later parking of the same table, so a repeat does no harm.

    `step` is the step of the sink that publishes.
    """

    step: str
    name: str
    since_us: int
    action: TableAction

    def is_about(self, table: ParkedTable) -> bool:
        """Return whether the request is about this parking of this table."""
        return (self.name, self.since_us) == (table.name, table.since_us)


def matching(tables: Iterable[ParkedTable], name: str) -> list[ParkedTable]:
    """Return the tables that have a name in the target or in the source."""
    return [each for each in tables if name in (each.name, each.source)]
