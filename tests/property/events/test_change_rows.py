"""Events become rows that Parquet and Avro files hold: what is read back is what the source sent."""

from __future__ import annotations

import io
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.event import ChangeEvent, Interval, Kind
from penstock.event.change_rows import change_rows
from penstock.event.coder import encode_event
from penstock.event.plain_types import interval_text, plain_images, time_text
from penstock.io.columnar.avro import AvroRows, avro_name
from penstock.io.columnar.avro_reader import change_rows_of_avro
from penstock.io.columnar.check import unfit
from penstock.io.columnar.parquet import ParquetRows
from penstock.io.staging.blocks import RecordBlock
from tests.property.events.strategies import VALUES, row_events
from tests.unit.formats.events import event_of, schema_of

MICROS = st.integers(0, 10**15).map(lambda micros: micros * 1000)
KNOWN = VALUES | {
    Kind.TIMESTAMP: MICROS,
    Kind.LOCAL_TIMESTAMP: MICROS,
    Kind.DATE: st.integers(-700_000, 2_900_000),
}
EVENTS = row_events(known=KNOWN, timestamps=MICROS)


def blocks(*events: ChangeEvent) -> list[RecordBlock]:
    return [RecordBlock.of([(0, encode_event(event)) for event in events])]


def plain(value: Any) -> Any:
    """Make two values comparable that hold the same: times as integers, decimals without their scale, NaN as text."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items() if each is not None}
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, Decimal):
        return value.normalize()
    if isinstance(value, float):
        return repr(value)
    return value


def as_integers(table: pa.Table) -> pa.Table:
    def cast(type_: pa.DataType) -> pa.DataType:
        if pa.types.is_timestamp(type_):
            return pa.int64()
        if pa.types.is_date(type_):
            return pa.int32()
        if pa.types.is_list(type_):
            return pa.list_(cast(type_.value_type))
        if pa.types.is_struct(type_):
            return pa.struct([(field.name, cast(field.type)) for field in type_])
        return type_

    return table.cast(pa.schema([(field.name, cast(field.type)) for field in table.schema]))


def expected(event: ChangeEvent, image: dict[str, Any] | None) -> Any:
    converted = plain_images(event.schema)(image)
    if converted is None:
        return None

    def walk(type_: Any, value: Any) -> Any:
        if value is None:
            return None
        if type_.kind in (Kind.TIMESTAMP, Kind.LOCAL_TIMESTAMP):
            return value // 1000
        if type_.kind is Kind.ARRAY:
            return [walk(type_.element, each) for each in value]
        if type_.kind is Kind.STRUCT and type_.fields:
            types = {field.name: field.type for field in type_.fields}
            return {name: walk(types[name], each) for name, each in value.items()}
        return value

    types = {column.name: column.type for column in event.schema}
    return {name: walk(types[name], value) for name, value in converted.items()}


@settings(max_examples=40, deadline=None)
@given(EVENTS)
def test_a_parquet_file_has_the_values_of_the_event(event: ChangeEvent) -> None:
    if unfit([event]):
        return
    (content,) = ParquetRows().content(blocks(event))
    (row,) = as_integers(pyarrow.parquet.read_table(io.BytesIO(content))).to_pylist()
    assert row["op"] == event.op
    assert row["timestamp"] == event.timestamp // 1000
    for name in ("key", "before", "after"):
        if name in row:
            assert plain(row[name]) == plain(expected(event, getattr(event, name))), name
    assert row["metadata"]["not_sent"] == list(event.unavailable)


@settings(max_examples=40, deadline=None)
@given(EVENTS)
def test_an_avro_file_has_the_same_rows_as_a_parquet_file(event: ChangeEvent) -> None:
    if unfit([event]):
        return
    (content,) = AvroRows().content(blocks(event))
    rows, other = change_rows_of_avro(content), change_rows([event], event.schema)
    assert rows.schema == other.schema
    assert plain(as_integers(rows).to_pylist()) == plain(as_integers(other).to_pylist())
    # Other readers find the names that Avro allows.
    (row,) = fastavro.reader(io.BytesIO(content))
    for name in ("key", "before", "after"):
        if row.get(name) is not None:
            assert set(row[name]) == {avro_name(column) for column in other.schema.field(name).type.names}


def test_times_beyond_those_of_python_are_read_from_avro() -> None:
    schema = schema_of({"k": Kind.INT64}, at=Kind.LOCAL_TIMESTAMP, day=Kind.DATE)
    event = event_of(schema, after={"k": 1, "at": 9 * 10**21, "day": 4_000_000})
    (content,) = AvroRows().content(blocks(event))
    assert change_rows_of_avro(content) == change_rows([event], schema)


def test_a_timestamp_with_nanoseconds_does_not_fit_and_the_message_names_only_the_column() -> None:
    schema = schema_of({"k": Kind.INT64}, at=Kind.TIMESTAMP)
    event = event_of(schema, after={"k": 1, "at": 1_234_567_891})
    assert "column at" in unfit([event])
    assert "1234567891" not in unfit([event])
    with pytest.raises(ValueError, match="column at"):
        change_rows([event], schema)


def test_times_and_intervals_as_text() -> None:
    assert time_text(0) == "00:00:00"
    assert time_text(((23 * 60 + 59) * 60 + 58) * 10**9 + 1_500) == "23:59:58.0000015"
    assert interval_text(Interval(14, -3, -4_500_000_000)) == "P14M-3DT-4.5S"
    assert interval_text(Interval()) == "PT0S"
