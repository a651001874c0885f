"""A consumer of DynamoDB Streams that replays the records holds the rows of the events, whatever their types."""

from __future__ import annotations

import json
from base64 import b64decode
from decimal import Decimal
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.event import ChangeEvent, ColumnType, Kind
from penstock.transforms.formats.dynamodb import DynamoDbFormat
from tests.property.events.strategies import VALUES, row_events

IN_DYNAMODB = VALUES | {
    Kind.DECIMAL: st.decimals(-(10**20), 10**20, places=9),
    Kind.FLOAT64: st.floats(-1e100, 1e100).filter(lambda value: value == 0 or abs(value) > 1e-100),
    Kind.FLOAT32: st.floats(-(2.0**100), 2.0**100, width=32),
}
DATES = {Kind.DATE, Kind.TIME, Kind.TIMESTAMP, Kind.LOCAL_TIMESTAMP, Kind.INTERVAL}


def taken(attribute: dict[str, Any]) -> Any:
    """Return the value of an attribute, as a consumer that knows no schema reads it."""
    ((kind, held),) = attribute.items()
    if kind == "L":
        return [taken(each) for each in held]
    if kind == "M":
        return {name: taken(each) for name, each in held.items()}
    readers = {"N": Decimal, "B": b64decode, "NULL": lambda _: None}
    return readers[kind](held) if kind in readers else held


def expected(type_: ColumnType, value: Any) -> Any:
    if value is None:
        return None
    if type_.kind is Kind.ARRAY and type_.element:
        return [expected(type_.element, each) for each in value]
    if type_.kind is Kind.STRUCT:
        types = {field.name: field.type for field in type_.fields}
        return {name: expected(types[name], each) for name, each in value.items()}
    return Decimal(repr(value)) if isinstance(value, float) else value


def without_dates(type_: ColumnType) -> bool:
    inner = [type_.element] if type_.element else [field.type for field in type_.fields]
    return type_.kind not in DATES and all(map(without_dates, inner))


@settings(max_examples=80, deadline=None)
@given(row_events(known=IN_DYNAMODB, accept=without_dates, whole_rows=True))
def test_the_images_hold_every_value(event: ChangeEvent) -> None:
    (record,) = DynamoDbFormat()(event)
    change = json.loads(record.value or b"")["dynamodb"]
    types = {column.name: column.type for column in event.schema}
    for name, image in {"Keys": event.key, "OldImage": event.before, "NewImage": event.after}.items():
        shown = change.get(name)
        assert (shown is None) == (image is None)
        if image is not None:
            assert {column: taken(value) for column, value in shown.items()} == {
                column: expected(types[column], value) for column, value in image.items()
            }
