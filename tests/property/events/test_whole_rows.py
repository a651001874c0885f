"""Whole rows in Arrow are the rows of a table that events make, and become these events again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.event import ChangeEvent, Kind, Op, Source, TableSchema, Version
from penstock.event.change_rows import change_rows
from penstock.event.replica import fold
from penstock.io.columnar.arrow_rows import rows_of_arrow
from penstock.io.columnar.table_rows import KEY, current_rows
from penstock.io.columnar.whole_rows import OP, WholeRows, are_whole, newest, rows_of_changes, rows_of_events
from tests.property.events.strategies import row_events
from tests.property.events.test_change_rows import KNOWN, MICROS, plain
from tests.unit.formats.events import schema_of

SCHEMA = schema_of({"id": Kind.INT64, "code": Kind.STRING}, name=Kind.STRING, any=Kind.DECIMAL)
SOURCE = Source("postgresql", "s", "shop", "public", "orders")
CODES = st.sampled_from(["a", "é b", 'c"', "d\\", "\n", "\x7f", "\u2028", ""])


@st.composite
def changes(draw: st.DrawFn) -> list[ChangeEvent]:
    """Return whole changes of a few rows, in any order of their versions, some of which are equal."""
    return draw(st.lists(change(CODES), min_size=1, max_size=12))


@st.composite
def change(draw: st.DrawFn, codes: st.SearchStrategy[str]) -> ChangeEvent:
    key = {"code": draw(codes), "id": draw(st.integers(0, 1))}
    op = draw(st.sampled_from([Op.CREATE, Op.UPDATE, Op.DELETE, Op.READ]))
    order = draw(st.integers(1, 5))
    after = {**key, "name": draw(st.none() | st.text(max_size=2)), "any": draw(KNOWN[Kind.DECIMAL])}
    return ChangeEvent(
        SOURCE,
        op,
        order * 1000,
        key,
        None,
        None if op is Op.DELETE else after,
        Version(order, "7", "3", draw(st.integers(0, 1))),
        KEYED,
    )


KEYED = TableSchema(
    tuple(
        type(column)(column.name, column.type, None, {"code": 1, "id": 2}.get(column.name))
        for column in SCHEMA.columns
    )
)


def by_key(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {row[KEY]: plain(row) for row in rows}


@settings(max_examples=200)
@given(changes())
def test_the_newest_rows_are_those_that_the_events_make(events: list[ChangeEvent]) -> None:
    rows = rows_of_events(events, KEYED)
    assert rows is not None
    (folded,) = fold(events).values()
    made = rows_of_arrow(newest(rows).drop_columns([OP]))
    assert by_key(made) == by_key(current_rows(folded, lambda keys: [], None, frozenset(KEYED.names)))
    assert len(made) == len(by_key(made))


@pytest.mark.long(seconds=5)
@settings(max_examples=200)
@given(row_events(known=KNOWN, timestamps=MICROS, whole_rows=True))
def test_rows_are_equal_from_change_rows_and_from_events_and_become_the_events(event: ChangeEvent) -> None:
    # As sources have it. Hypothesis mixes the columns.
    key = {column.name: (event.key or {})[column.name] for column in event.schema.key_columns}
    event = msgspec.structs.replace(event, key=key)
    rows = rows_of_events([event], event.schema)
    if not are_whole(event.schema):
        assert rows is None
        return
    from_changes = rows_of_changes(change_rows([event], event.schema), event.schema)
    assert rows is not None
    # Texts that JSON escapes have no form in Arrow.
    assert from_changes is None or from_changes.equals(rows)
    (again,) = WholeRows(event.source, (), [(event.schema, rows)])
    assert (again.op, again.timestamp, again.version) == (event.op, event.timestamp, event.version)
    assert plain(again.key) == plain(event.key)
    assert (again.after is None) == (event.after is None)
    assert plain(again.after or {}) == plain(event.after or {})
    assert again.unavailable == () or event.op is Op.DELETE


@given(CODES)
def test_a_key_in_arrow_has_the_text_of_the_key_or_none(code: str) -> None:
    key = {"code": code, "id": 2**40}
    event = ChangeEvent(SOURCE, Op.DELETE, 1000, key, None, None, Version(1), KEYED)
    rows, made = rows_of_changes(change_rows([event], KEYED), KEYED), rows_of_events([event], KEYED)
    assert made is not None
    assert (rows is None) == any(mark in code for mark in '"\\\n')
    assert rows is None or rows.equals(made)
