"""SCHEMA events of random histories of columns, whose changes come in any order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.event import ChangeEvent, Column, ColumnType, Kind, Op, Source, TableSchema, Version
from penstock.event.schema_events import KnownColumns, note_columns

SOURCE = Source("postgresql", "", "shop", "public", "orders", "all")
NAMES = st.lists(st.sampled_from("abc"), unique=True, max_size=3)


def event(version: int, names: list[str]) -> ChangeEvent:
    columns = tuple(Column(name, ColumnType(Kind.INT64)) for name in ("id", *names))
    return ChangeEvent(SOURCE, Op.UPDATE, version, {}, None, {}, Version(version), TableSchema(columns))


@given(history=st.lists(NAMES, min_size=1, max_size=12), data=st.data())
def test_what_is_known_is_the_newest_of_what_came_and_each_event_begins_where_the_last_ended(
    history: list[list[str]], data: st.DataObject
) -> None:
    events = [event(version, names) for version, names in enumerate(history)]
    known: KnownColumns | None = None
    told, newest = None, -1
    for each in data.draw(st.lists(st.sampled_from(events), min_size=1, max_size=30)):
        known, change = note_columns(known, each)
        if change is not None:
            assert each.version.order > newest, "an older change is told"
            assert (change.before and tuple(column.name for column in change.before)) == told
            assert each.schema.names != told, "nothing has changed"
            told = each.schema.names
        newest = max(newest, each.version.order)
        assert told == events[newest].schema.names
        assert known is not None
        assert tuple(column.name for column in known.columns) == told
