"""The record or row of a sink for one event, as a value: `penstock run --limit 10 --print` shows it and writes
nothing. Pure.

    sink.preview(event)      # [{"table": "orders", "row": {"id": 7, …}, "types": {"id": "int64", …}}]

Sinks make it with the functions that they write with. They do not ask their target, so the types are the types of a
table that the sink creates. A column that the source did not send is left out: the target keeps its value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from penstock.event.model import ChangeEvent, Op

Written = Mapping[str, Any]
"""One record or row. Values are values of JSON, bytes, `decimal.Decimal`, dates and times of `datetime`, and
`msgspec.Raw` for JSON that is encoded already. A format makes the bytes of `key`, `value` and `data`.
"""

Preview = Callable[[ChangeEvent], list[Written]]
"""Returns what a sink writes for one event. It can be pickled."""


def written_row(event: ChangeEvent, table: str, row: Mapping[str, Any], types: Mapping[str, Any]) -> Written:
    """Return a row of a replica. A column that keeps its value is left out; of a new or deleted row none does."""
    kept = event.unavailable if event.op is Op.UPDATE else ()
    sent = {name: value for name, value in row.items() if name not in kept}
    return {"table": table, "row": sent, "types": {name: types[name] for name in sent if name in types}}


def written_truncate(table: str) -> Written:
    """Return what a replica does for a TRUNCATE: it removes the older rows of the table."""
    return {"table": table, "removed": "all older rows"}


def changes_no_row(event: ChangeEvent) -> bool:
    """Return whether a replica has nothing to write for an event."""
    return event.op in (Op.MESSAGE, Op.SCHEMA)
