"""The change feed of PostgreSQL's log without events in between: the rows are those that are made of events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from penstock.errors import UnwritableError
from penstock.event.arrow import _plain
from penstock.event.change_feed import change_feed_schema
from penstock.io.postgres.arrow_rows import TablesInArrow
from penstock.io.postgres.events import EventConverter
from penstock.io.postgres.record import ChangeKind, LogRecord
from penstock.io.spark.arrow_json import json_of_rows
from penstock.io.spark.json_rows import json_schema
from penstock.io.staging.row_refused import RowRefusedError
from penstock.spark.postgres import _MIN_ROWS, _RowsOfTable
from penstock.spark.rows import batches
from tests.golden.postgres.history import as_logged
from tests.golden.postgres.test_arrow_rows import COLUMNS, TRANSACTION, histories, insert, table


def group(records: Sequence[LogRecord]) -> _RowsOfTable:
    convert = EventConverter("", "history", "changes")
    of = records[0].table
    assert of is not None
    return _RowsOfTable(of, records, convert, TablesInArrow(convert))


_FROM_EVENTS = ("tags", "counts", "small")


def without_lists(few: Sequence[LogRecord], of: Any) -> tuple[list[LogRecord], Any]:
    """Return the records and their table without the columns whose JSON is always made of events."""
    kept = [number for number, column in enumerate(of.columns) if column.name not in _FROM_EVENTS]
    short = msgspec.structs.replace(of, columns=tuple(of.columns[number] for number in kept))

    def row(values: Any) -> Any:
        return values and tuple(values[number] for number in kept)

    return [
        msgspec.structs.replace(each, table=short, new=row(each.new), old=row(each.old)) for each in few
    ], short


def feed(events: Sequence[Any], of: Any, layout: str = "table") -> list[str] | str:
    """Return the rows as texts, or the error that they are."""
    schema = EventConverter().source_and_schema(of)[1]
    shape = change_feed_schema(schema, "t") if layout == "table" else json_schema()
    try:
        found = list(batches([events], shape))
    except (UnwritableError, RowRefusedError) as error:
        return str(error)
    # As text: NaN equals itself, and the types of values count. Dates are numbers: Python has not all of them.
    return [
        repr(row)
        for batch in found
        for row in zip(*(_plain(column).to_pylist() for column in batch.columns), strict=True)
    ]


@pytest.mark.long_cases("events", seconds=5)
@pytest.mark.parametrize("layout", ["table", "events"])
@settings(max_examples=60)
@given(histories())
def test_the_feed_of_the_log_equals_the_feed_of_its_events(layout: str, history: Any) -> None:
    of, few = history
    if layout == "events":
        few, of = without_lists(few, of)
    many = [record for record in few for _ in range(_MIN_ROWS)]
    expected = feed(list(group(many)), of, layout)
    assert feed(group(many), of, layout) == expected
    if not any(record.kind is ChangeKind.READ for record in many):
        parts = as_logged(many)
        assert [row for part in parts for row in feed(group(part), of, layout)] == (
            [row for part in parts for row in feed(list(group(part)), of, layout)]
        )


def test_inserts_and_whole_old_rows_become_no_events() -> None:
    (inserted,) = as_logged([insert(table("d"), number) for number in range(_MIN_ROWS)])
    assert group(inserted).change_rows() is not None
    assert inserted._records is None, "records were made"
    row = ("1", *[None] * (len(COLUMNS) - 1))
    updates = [
        LogRecord(ChangeKind.UPDATE, 0, TRANSACTION, n, n, False, table("f"), row, row, True)
        for n in range(_MIN_ROWS)
    ]
    assert group(updates).change_rows() is not None
    assert len(feed(group(updates), updates[0].table)) == 2 * _MIN_ROWS


def test_an_old_row_with_its_key_only_takes_the_way_of_events() -> None:
    new, old = (("1", *[None] * (len(COLUMNS) - 1)), ("2", *[None] * (len(COLUMNS) - 1)))
    updates = [
        LogRecord(ChangeKind.UPDATE, 0, TRANSACTION, n, n, False, table("d"), new, old, False)
        for n in range(_MIN_ROWS)
    ]
    assert group(updates).change_rows() is None


def test_keys_of_deletions_and_texts_with_quotes_have_the_json_of_events() -> None:
    rest = [None] * (len(COLUMNS) - 2)
    for kind, new, old in (("DELETE", None, ("1", None, *rest)), ("INSERT", ("1", 'a"b\n', *rest), None)):
        record = LogRecord(ChangeKind(kind), 0, TRANSACTION, 1, 1, False, table("d"), new, old, False)
        many, of = without_lists([record] * _MIN_ROWS, record.table)
        made = group(many).change_rows()
        assert made is not None
        assert json_of_rows(made) is not None, "the rows were made of events"
        assert feed(group(many), of, "events") == feed(list(group(many)), of, "events")
