"""The error for an event that a target can never hold, before its commit. Pure."""

from __future__ import annotations

from penstock.event.model import ChangeEvent
from penstock.io.staging.delivery import RowRefusedError


def row_refused(event: ChangeEvent, target: str, reason: str) -> RowRefusedError:
    """Return the error for an event that a target can never hold."""
    table = event.source.qualified_table
    return RowRefusedError(
        f"{target} cannot hold the {event.op} of a row of {table or event.source.system} at position {event.id}: "
        f"{reason}. Nothing of its epoch was written. Leave the table out (without_tables={table}) or the column "
        "(without_columns); or give the sink an error output (with_exception_handling), and it continues without the "
        "row. Then start the pipeline again"
    )
