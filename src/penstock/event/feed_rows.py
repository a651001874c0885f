"""The rows of an event in the change feed of its table, without Arrow. Pure.

`penstock.event.change_feed` describes the columns, and makes Arrow of the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from penstock.errors import UnwritableError, UsageError
from penstock.event.model import ChangeEvent, Image, Op

Layout = Literal["events", "table"]
"""What sinks write of a change: one row with its images, or the rows of the change feed of its table."""

FEED_COLUMNS = ("_change_type", "_commit_version", "_commit_timestamp", "_not_sent")
"""The columns after the columns of the table."""

_INSERTS = (Op.CREATE, Op.READ)
_WITHOUT_ROW = (Op.MESSAGE, Op.SCHEMA)


class FeedRow(NamedTuple):
    """A row: the columns that were sent, with the source's values, and the names of those that were not."""

    image: Image
    change_type: str
    not_sent: list[str]


def has_feed_row(event: ChangeEvent) -> bool:
    """Return whether an event has rows: a message and a change of the columns have none."""
    return event.op not in _WITHOUT_ROW


def feed_rows(event: ChangeEvent) -> Iterator[FeedRow]:
    """Yield the rows of an event in their order: two for an update whose old values were sent, otherwise at most one.

    Raises:
        UnwritableError: a change of Bigtable deletes cells or changes aggregates, which no row can show.
    """
    _check_cells(event)

    def row(image: Image | None, change_type: str) -> FeedRow:
        sent = image or {}
        return FeedRow(sent, change_type, [name for name in event.schema.names if name not in sent])

    if event.op in _INSERTS:
        yield row(event.after, "insert")
    elif event.op is Op.UPDATE:
        if event.before is not None:
            yield row(event.before, "update_preimage")
        yield row(event.after, "update_postimage")
    elif event.op is Op.DELETE:
        yield row(event.key if event.before is None else event.before, "delete")
    elif event.op is Op.TRUNCATE:
        yield FeedRow({}, "truncate", [])


def check_feed_event(event: ChangeEvent) -> None:
    """Check that rows can show an event, without their values.

    Raises:
        UnwritableError: a change of Bigtable deletes cells or changes aggregates, or the columns of the table are not
            known.
    """
    _check_cells(event)
    known = set(event.schema.names)
    for image in (event.before, event.after):
        if image is not None and (unknown := image.keys() - known):
            raise UnwritableError(
                f"the source does not know the type of the column {', '.join(sorted(unknown))} of "
                f"{event.source.qualified_table}, so the table has no such column: use the layout events"
            )


def check_feed_names(names: Iterable[str], table: str) -> None:
    """Check that no column of a table, of which these are the names, has a name of the change feed.

    Raises:
        UsageError: a column has; the message says what to do.
    """
    taken = {name.lower() for name in names} & set(FEED_COLUMNS)
    if taken:
        raise UsageError(
            f"{table} has the column {', '.join(sorted(taken))}, a name that the change feed uses: rename the column "
            "before the sink, or read the changes in the other layout (layout=events; Spanner and PostgreSQL as data "
            "sources of Spark: without the option table)"
        )


def _check_cells(event: ChangeEvent) -> None:
    other = next((cell.mod for cell in event.cells if cell.mod != "SET_CELL"), None)
    if other is not None:
        raise UnwritableError(
            f"a change of {event.source.qualified_table} has a {other}, which no row of a change feed can show: use "
            "the layout events"
        )
