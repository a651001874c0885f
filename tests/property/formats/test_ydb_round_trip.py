"""Parsing a YDB record returns the original event, limited to the parts that the mode includes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.event import ChangeEvent, ColumnType, Image, Interval, Kind, Op
from penstock.transforms.formats.capture import Mode
from penstock.transforms.formats.ydb import YdbFormat
from penstock.transforms.formats.ydb_parse import YdbParser
from penstock.transforms.formats.ydb_position import virtual_timestamp
from penstock.transforms.formats.ydb_types import column_type, type_mapping
from tests.property.events.strategies import VALUES, row_events

MICROS = st.integers(-62135596800 * 10**6, 253402300800 * 10**6 - 1).map(lambda micros: micros * 1000)
IN_YDB = VALUES | {Kind.TIMESTAMP: MICROS, Kind.LOCAL_TIMESTAMP: MICROS}


def carried(event: ChangeEvent, mode: Mode) -> dict[str, Any]:
    """Return the parts of an event that a mode includes."""
    key: Image = event.key or {}
    old = mode in ("OLD_IMAGE", "NEW_AND_OLD_IMAGES") and event.op in (Op.UPDATE, Op.DELETE)
    new = mode in ("UPDATES", "NEW_IMAGE", "NEW_AND_OLD_IMAGES")
    after = None if event.op is Op.DELETE else event.after if new else key
    if event.op is Op.READ and mode == "OLD_IMAGE":
        after = event.after
    created = event.op is Op.CREATE and mode == "NEW_AND_OLD_IMAGES"
    op = event.op if event.op in (Op.DELETE, Op.READ) else Op.CREATE if created else Op.UPDATE
    return {"op": op, "key": key, "before": event.before if old else None, "after": after}


def parsed(event: ChangeEvent, mode: Mode, **options: Any) -> ChangeEvent:
    format_ = YdbFormat(
        "feed",
        mode=mode,
        extended_dates=True,
        virtual_timestamps=options.get("format") != "DEBEZIUM_JSON",
        **options,
    )
    at = virtual_timestamp(event)
    snapshot = (at.step, at.tx_id) if event.op is Op.READ else None
    parse = YdbParser(event.schema, event.source, mode=mode, extended_dates=True, snapshot=snapshot)
    (record,) = format_(event)
    result = parse(record.key, record.value or b"")
    assert isinstance(result, ChangeEvent)
    assert (result.version.order, int(result.version.transaction)) == (at.step, at.tx_id)
    return result


@settings(max_examples=30, deadline=None)
@given(row_events(known=IN_YDB))
def test_updates_give_the_event_back(event: ChangeEvent) -> None:
    expected = carried(event, "UPDATES")
    result = parsed(event, "UPDATES")
    assert {name: getattr(result, name) for name in expected} == expected


@pytest.mark.parametrize("flavour", ["JSON", "DEBEZIUM_JSON"])
@pytest.mark.parametrize("mode", ["KEYS_ONLY", "NEW_IMAGE", "OLD_IMAGE", "NEW_AND_OLD_IMAGES"])
@settings(max_examples=30, deadline=None)
@given(event=row_events(known=IN_YDB, whole_rows=True))
def test_images_give_the_event_back(mode: Mode, flavour: str, event: ChangeEvent) -> None:
    expected = carried(event, mode)
    result = parsed(event, mode, format=flavour)
    assert {name: getattr(result, name) for name in expected} == expected


@settings(max_examples=30, deadline=None)
@given(row_events(known=IN_YDB, whole_rows=True))
def test_a_record_that_was_parsed_is_formatted_to_the_same_bytes(event: ChangeEvent) -> None:
    format_ = YdbFormat("feed", mode="NEW_AND_OLD_IMAGES", extended_dates=True, virtual_timestamps=True)
    (record,) = format_(event)
    source = msgspec.structs.replace(event.source, system="ydb")
    result = YdbParser(event.schema, source, mode="NEW_AND_OLD_IMAGES", extended_dates=True)(
        None, record.value or b""
    )
    assert isinstance(result, ChangeEvent)
    (again,) = format_(result)
    assert (again.key, again.value) == (record.key, record.value)


YDB_TYPES = {
    "Date": st.integers(0, 49672),
    "Datetime": st.integers(0, 4291747199).map(lambda seconds: seconds * 10**9),
    "Timestamp": st.integers(0, 4291747200 * 10**6 - 1).map(lambda micros: micros * 1000),
    "Interval": st.integers(-(2**53), 2**53).map(lambda micros: Interval(nanoseconds=micros * 1000)),
    "DyNumber": VALUES[Kind.DECIMAL],
}


@pytest.mark.parametrize("name", YDB_TYPES)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_values_of_ydbs_own_types_survive(name: str, data: st.DataObject) -> None:
    mapping = type_mapping(column_type(name))
    assert isinstance(column_type(name), ColumnType)
    assert mapping.show is not None
    value = data.draw(YDB_TYPES[name])
    assert mapping.parse(msgspec.json.encode(mapping.show(value))) == value
