"""Rows of a snapshot have the form of records of the change stream, wherever messages are cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.cloud.spanner_v1.types import result_set

from penstock.errors import DecodeError
from penstock.event import Op
from penstock.io.spanner.events import EventConverter
from penstock.io.spanner.initial_scan.frontier import Table
from penstock.io.spanner.initial_scan.rows import MAX_ROWS, READ, RowReader

PartialResultSet = result_set.PartialResultSet.pb()
INT64, FLOAT64, STRING, ARRAY, JSON, BYTES, BOOL, NUMERIC = 2, 3, 6, 8, 11, 7, 1, 10


def message(
    columns: list[tuple[str, Any]] | None = None, values: tuple[Any, ...] = (), **options: Any
) -> Any:
    """Return a PartialResultSet; a column is (name, type code) or (name, (ARRAY, type code of the elements))."""
    found = PartialResultSet(**options)
    for name, code in columns or ():
        field = found.metadata.row_type.fields.add(name=name)
        field.type_.code = code if isinstance(code, int) else code[0]
        if not isinstance(code, int):
            field.type_.array_element_type.code = code[1]
    for value in values:
        fill(found.values.add(), value)
    return found


def fill(target: Any, value: Any) -> None:
    match value:
        case None:
            target.null_value = 0
        case bool():
            target.bool_value = value
        case float():
            target.number_value = value
        case str():
            target.string_value = value
        case list():
            target.list_value.SetInParent()
            for each in value:
                fill(target.list_value.values.add(), each)


def table(*columns: str, key_size: int = 1) -> Table:
    return Table("T", columns, tuple(range(1, len(columns) + 1)), key_size)


def mods(reader: RowReader, *messages: Any) -> list[Any]:
    found = [
        mod for each in messages for rows in reader.feed(each.SerializeToString()) for mod in rows.record.mods
    ]
    reader.finish()
    return found


def test_values_have_the_json_of_a_change_stream() -> None:
    columns = [("Id", INT64), ("F", FLOAT64), ("S", STRING), ("B", BOOL), ("A", (ARRAY, STRING)), ("J", JSON)]
    row = ("9007199254740993", 0.1, 'a "quoted"\n\u1234', True, ["x", None], '{"a":1}')
    reader = RowReader(table(*(name for name, _ in columns)), 7)
    (mod,) = mods(reader, message(columns, row))
    assert mod.keys == '{"Id":"9007199254740993"}'
    assert json.loads(mod.new_values) == dict(zip("FSBAJ", row[1:], strict=True))
    assert mod.old_values == "{}"


@pytest.mark.parametrize("value", ["NaN", "-Infinity", -0.0, 5e-324, None])
def test_special_floating_point_numbers_keep_their_form(value: Any) -> None:
    reader = RowReader(table("Id", "F"), 7)
    (mod,) = mods(reader, message([("Id", INT64), ("F", FLOAT64)], ("1", value)))
    found = json.loads(mod.new_values)["F"]
    assert repr(found) == repr(value)


@pytest.mark.parametrize("length", [0, 125, 126, 127, 128, 129, 20_000])
@pytest.mark.parametrize("code", [STRING, BYTES])
def test_strings_of_every_length_are_read_whole(length: int, code: int) -> None:
    reader = RowReader(table("Id", "S"), 7)
    (mod,) = mods(reader, message([("Id", INT64), ("S", code)], ("1", "x" * length)))
    assert json.loads(mod.new_values) == {"S": "x" * length}


def test_rows_may_be_cut_anywhere_between_messages() -> None:
    columns = [("Id", INT64), ("S", STRING)]
    reader = RowReader(table("Id", "S"), 7)
    found = mods(
        reader,
        message(columns, ("1",)),
        message(values=("one", "2", "tw"), chunked_value=True),
        message(),
        message(values=("o", "3"), chunked_value=True),
        message(values=("0", "thirty")),
    )
    assert [(json.loads(m.keys)["Id"], json.loads(m.new_values)["S"]) for m in found] == [
        ("1", "one"),
        ("2", "two"),
        ("30", "thirty"),
    ]


def test_a_read_that_ends_within_a_row_is_an_error() -> None:
    reader = RowReader(table("Id", "S"), 7)
    reader.feed(message([("Id", INT64), ("S", STRING)], ("1",)).SerializeToString())
    with pytest.raises(DecodeError, match="middle of a row"):
        reader.finish()


def test_other_columns_than_asked_for_are_an_error() -> None:
    with pytest.raises(DecodeError, match="other columns"):
        RowReader(table("Id", "S"), 7).feed(message([("Id", INT64), ("Z", STRING)]).SerializeToString())


def test_the_last_key_is_that_of_the_last_row_of_each_record() -> None:
    values = tuple(text for n in range(MAX_ROWS + 2) for text in (str(n), f"b{n}"))
    reader = RowReader(table("A", "B", key_size=2), 7)
    found = reader.feed(message([("A", INT64), ("B", STRING)], values).SerializeToString())
    assert [len(rows.record.mods) for rows in found] == [MAX_ROWS, 2]
    assert [rows.last_key for rows in found] == [f'["{n}","b{n}"]' for n in (MAX_ROWS - 1, MAX_ROWS + 1)]
    assert {mod.new_values for rows in found for mod in rows.record.mods} == {"{}"}


def test_a_row_becomes_a_read_event_whose_id_does_not_depend_on_its_record() -> None:
    columns = [("Id", INT64), ("N", NUMERIC)]
    row = message(columns, ("1", "0.50", "2", None))
    alone = message(columns, ("2", None))
    records = [
        RowReader(table("Id", "N"), 7, "NEW_ROW").feed(each.SerializeToString())[0].record
        for each in (row, alone)
    ]
    assert records[0].mod_type == READ
    first, second = EventConverter()(records[0])
    (again,) = EventConverter()(records[1])
    assert (first.op, first.timestamp, first.transaction) == (Op.READ, 7, None)
    assert first.key == {"Id": 1}
    assert first.before is None
    assert str(first.after["N"]) == "0.50"
    assert second.after == {"Id": 2, "N": None}
    assert second.id == again.id != first.id
    assert first.source.capture == "NEW_ROW"
