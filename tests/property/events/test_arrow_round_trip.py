"""Events become Arrow batches and come back equal; what Arrow cannot hold raises."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.event import (
    NO_COLUMNS,
    CellChange,
    ChangeEvent,
    ColumnType,
    Interval,
    Kind,
    Message,
    Op,
    Source,
    Transaction,
    Version,
)
from penstock.event.arrow import arrow_batches, arrow_type, events_of_batch
from tests.property.events.strategies import VALUES, row_events
from tests.unit.formats.events import event_of, schema_of

NANOS = st.integers(-(2**63) + 1, 2**63 - 1)
MICROS = st.integers(-62135596800 * 10**6, 253402300800 * 10**6 - 1).map(lambda micros: micros * 1000)


def with_timestamps(values: st.SearchStrategy[int]) -> dict[Kind, st.SearchStrategy[Any]]:
    return VALUES | {Kind.TIMESTAMP: values, Kind.LOCAL_TIMESTAMP: values}


def returned(events: list[ChangeEvent], **options: Any) -> list[ChangeEvent]:
    return [event for batch in arrow_batches(events, **options) for event in events_of_batch(batch)]


@settings(max_examples=50, deadline=None)
@given(st.lists(row_events(known=with_timestamps(NANOS)), max_size=4), st.integers(1, 3))
def test_events_survive_with_nanoseconds(events: list[ChangeEvent], batch_size: int) -> None:
    result = returned(events, batch_size=batch_size)
    assert result == events
    assert [list(event.after or ()) for event in result] == [list(event.after or ()) for event in events]


@settings(max_examples=30, deadline=None)
@given(row_events(known=with_timestamps(MICROS), timestamps=st.integers(0, 2**53).map(lambda us: us * 1000)))
def test_events_survive_with_microseconds_of_every_year(event: ChangeEvent) -> None:
    assert returned([event], timestamp_unit="us") == [event]


def test_not_sent_null_and_empty_stay_different() -> None:
    schema = schema_of({"k": Kind.INT64}, v=Kind.STRING)
    events = [event_of(schema, after=after) for after in ({"k": 1}, {"k": 1, "v": None}, {"k": 1, "v": ""})]
    (batch,) = arrow_batches(events)
    assert events_of_batch(batch) == events
    assert batch.column("after").field("v").to_pylist() == [None, None, ""]
    assert batch.column("after_sent").to_pylist() == [["k"], ["k", "v"], ["k", "v"]]


def test_messages_cells_and_nan_survive() -> None:
    cells = (CellChange("SET_CELL", "cf", b"q", 5, None, b""), CellChange("ADD_TO_CELL", "cf", b"n", 0, 9, 4))
    event = ChangeEvent(
        Source("bigtable"),
        Op.MESSAGE,
        5,
        None,
        None,
        None,
        Version(5),
        NO_COLUMNS,
        Transaction("", origin="c"),
        Message("p", b"\x00"),
        cells,
        "me",
    )
    assert returned([event]) == [event]
    schema = schema_of({"k": Kind.INT64}, f=Kind.FLOAT64)
    (result,) = returned([event_of(schema, after={"k": 1, "f": float("nan")})])
    assert str((result.after or {})["f"]) == "nan"


def test_a_batch_holds_one_source_and_one_schema() -> None:
    schema = schema_of({"k": Kind.INT64})
    one, other = (event_of(schema, after={"k": 1}, source=Source("x", table=name)) for name in "ab")
    assert [batch.num_rows for batch in arrow_batches([one, one, other, one])] == [2, 1, 1]


@pytest.mark.parametrize(
    ("type_", "arrow"),
    [
        (ColumnType(Kind.DECIMAL, precision=38, scale=9), pa.decimal128(38, 9)),
        (ColumnType(Kind.DECIMAL, precision=76, scale=9), pa.decimal256(76, 9)),
        (ColumnType(Kind.DECIMAL), pa.string()),
        (ColumnType(Kind.TIMESTAMP), pa.timestamp("ns", "UTC")),
        (ColumnType(Kind.LOCAL_TIMESTAMP), pa.timestamp("ns")),
        (ColumnType(Kind.ARRAY, element=ColumnType(Kind.DATE)), pa.list_(pa.date32())),
        (ColumnType(Kind.UUID), pa.string()),
    ],
)
def test_each_type_has_its_arrow_type(type_: ColumnType, arrow: pa.DataType) -> None:
    assert arrow_type(type_) == arrow


@pytest.mark.parametrize(
    ("type_", "value", "options"),
    [
        (ColumnType(Kind.DECIMAL, precision=5, scale=2), Decimal("1.234"), {}),
        (ColumnType(Kind.DECIMAL, precision=5, scale=2), Decimal("NaN"), {}),
        (ColumnType(Kind.TIMESTAMP), 2**63, {}),
        (ColumnType(Kind.TIMESTAMP), float("inf"), {}),
        (ColumnType(Kind.DATE), float("inf"), {}),
        (ColumnType(Kind.TIMESTAMP), 1, {"timestamp_unit": "us"}),
        (ColumnType(Kind.INTERVAL), Interval(2**31), {}),
        (ColumnType(Kind.INT8), 128, {}),
    ],
)
def test_a_value_that_arrow_cannot_hold_is_named_by_its_column(
    type_: ColumnType, value: Any, options: Any
) -> None:
    event = event_of(schema_of({"k": Kind.INT64}, v=type_), after={"k": 1, "v": value})
    with pytest.raises(ValueError, match="column v of Orders has a value that Arrow's"):
        list(arrow_batches([event], **options))


def test_a_column_that_the_schema_lacks_and_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="column later of Orders is not in the schema"):
        list(arrow_batches([event_of(schema_of({"k": Kind.INT64}), after={"k": 1, "later": 2})]))
    with pytest.raises(UsageError, match="timestamp_unit is ns or us"):
        list(arrow_batches([], timestamp_unit="ms"))  # type: ignore[arg-type]
