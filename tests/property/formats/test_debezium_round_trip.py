"""A Debezium record that is parsed gives the event back, with and without embedded schemas."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.event import ChangeEvent, ColumnType, Kind
from penstock.transforms.formats.debezium import DebeziumFormat
from penstock.transforms.parsers.debezium import DebeziumParser
from tests.property.events.strategies import VALUES, row_events
from tests.property.formats.test_binary_round_trip import KNOWN

PRECISE = {"time_precision_mode": "nanoseconds", "interval_handling_mode": "string"}


def joined(event: ChangeEvent, parse: DebeziumParser, **options: bool) -> ChangeEvent:
    format_ = DebeziumFormat("srv", **options, **PRECISE)  # type: ignore[arg-type]
    (result,) = [
        each for record in format_(event) for each in parse(record.key, record.value, record.headers)
    ]
    return result


@settings(max_examples=60, deadline=None)
@given(row_events(known=KNOWN))
def test_records_without_schemas_give_the_event_back(event: ChangeEvent) -> None:
    result = joined(event, DebeziumParser(event.schema, **PRECISE))
    # A number, a date or an array that was not sent has no placeholder and is left out, so it is not sent either.
    assert result == event


@settings(max_examples=60, deadline=None)
@given(row_events(known=KNOWN))
def test_records_with_schemas_give_the_values_back(event: ChangeEvent) -> None:
    result = joined(event, DebeziumParser(**PRECISE), schemas_enable=True)
    assert (result.op, result.source, result.version, result.transaction) == (
        event.op,
        event.source,
        event.version,
        event.transaction,
    )
    assert (result.key, result.before, result.after) == (event.key, event.before, event.after)
    assert result.schema.names == event.schema.names
    assert [column.name for column in result.schema.key_columns] == list(event.key or ())


@pytest.mark.parametrize("mode", ["adaptive", "connect", "isostring", "microseconds"])
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_each_time_precision_mode_gives_back_what_it_holds(mode: str, data: st.DataObject) -> None:
    times = [ColumnType(kind) for kind in (Kind.DATE, Kind.TIME, Kind.LOCAL_TIMESTAMP, Kind.TIMESTAMP)]
    whole = VALUES | {
        kind: VALUES[kind].map(lambda value: value // 10**9 * 10**9)
        for kind in (Kind.TIME, Kind.LOCAL_TIMESTAMP)
    }
    event = data.draw(row_events(known=whole, accept=lambda type_: type_ in times))
    (record, *_) = DebeziumFormat("srv", time_precision_mode=mode)(event)
    (result,) = DebeziumParser(event.schema, time_precision_mode=mode)(record.key, record.value)
    assert result == event
