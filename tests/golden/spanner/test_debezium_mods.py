"""Data change records become Debezium's JSON without events: the bytes are those of the records made of events."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.io.spanner.events import EventConverter
from penstock.io.spanner.record import ColumnType, DataChangeRecord, Mod, Mods
from penstock.timestamps import format_timestamp
from penstock.transforms.formats.debezium import DebeziumFormat
from penstock.transforms.formats.debezium_mods import ModRecordFormat
from tests.golden.postgres.test_debezium import OPTIONS
from tests.golden.spanner.test_golden import data_of

NAMES = {"server": "p/i", "database": "shop", "stream": "All"}
STREAMS = ("new_row", "new_values", "old_and_new_values")

Lines = list[tuple[str, bytes | None, bytes, int]]


def from_events(records: Sequence[DataChangeRecord], format: DebeziumFormat) -> Lines | str:
    convert = EventConverter(**NAMES)
    try:
        return [
            (record.table_name, made.key, made.value + b"\n", time_us)
            for time_us, record in enumerate(records)
            for event in convert(record)
            for made in format(event)
            if made.value is not None
        ]
    except ValueError as error:
        return str(error)


def from_runs(records: Sequence[DataChangeRecord], format: Any) -> Lines | str:
    try:
        return [
            (run.table, key, line, time_us)
            for run in format.runs(records, list(range(len(records))))
            for key, line, time_us in zip(
                run.keys if run.keys is not None else [None] * len(run.records),
                run.records,
                run.times_us,
                strict=True,
            )
        ]
    except ValueError as error:
        return str(error)


def without_events(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> Any:
        raise AssertionError("a record was made from events")

    monkeypatch.setattr(EventConverter, "__call__", refuse)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("stream", STREAMS)
def test_the_recorded_records_have_the_same_bytes_without_events(stream: str, name: str) -> None:
    format = DebeziumFormat(name, **OPTIONS[name])
    direct = pickle.loads(pickle.dumps(ModRecordFormat(format, **NAMES)))
    records = []
    for record in data_of(stream):
        assert from_runs([record], direct) == from_events([record], format)
        if not isinstance(from_events([record], format), str):
            records.append(record)
    assert len(records) >= 5
    assert from_runs(records, direct) == from_events(records, format)


COLUMNS: dict[str, Any] = {
    "Region": "STRING",
    "Id": "INT64",
    "a näme": "STRING",
    "Price": "NUMERIC",
    "At": "TIMESTAMP",
    "Day": "DATE",
    "Paid": "BOOL",
    "Rate": "FLOAT64",
    "Single": "FLOAT32",
    "Raw": "BYTES",
    "Doc": "JSON",
    "Mark": "UUID",
    "Span": "INTERVAL",
    "Tags": {"code": "ARRAY", "array_element_type": {"code": "STRING"}},
    "Days": {"code": "ARRAY", "array_element_type": {"code": "DATE"}},
}
TYPES = tuple(
    ColumnType(name, json.dumps(type_ if isinstance(type_, dict) else {"code": type_}), place < 2, place + 1)
    for place, (name, type_) in enumerate(COLUMNS.items())
)

texts = st.text(st.characters(exclude_categories=["Cs"]))
integers = st.integers(-(2**63), 2**63 - 1).map(str)
moments = st.integers(-(10**18), 10**18).map(format_timestamp)
odd_moments = st.sampled_from(
    [
        "2026-01-31T12:00:00.120Z",
        "2026-01-31T12:00:00.Z",
        "2026-02-31T12:00:00Z",
        "1-01-01T00:00:00Z",
        "2026-01-31T24:00:00Z",
        "2026-01-31T12:00:00+01:00",
        "soon",
    ]
)
days = st.dates().map(str)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "a näme": texts | st.sampled_from(["null", '":', "\n"]),
    "Price": st.decimals(allow_nan=False, allow_infinity=False, places=9).map(lambda number: f"{number:f}")
    | st.sampled_from(["1", "-0.5", "1_0", "1E3", "NaN", "1.0000000001", ""]),
    "At": moments | moments | odd_moments,
    "Day": days | st.sampled_from(["1-01-01", "2026-02-31"]),
    "Paid": st.booleans(),
    "Rate": st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(["NaN", "-Infinity", 7]),
    "Single": st.floats(width=32, allow_nan=False, allow_infinity=False) | st.sampled_from(["Infinity"]),
    "Raw": st.sampled_from(["", "null", "bnVsbA=="]),
    "Doc": st.dictionaries(texts, st.integers(), max_size=2).map(json.dumps),
    "Mark": st.uuids().map(str),
    "Span": st.sampled_from(["P1Y2M-3DT4H5M-6.789S", "P1D"]),
    "Tags": st.lists(texts | st.none(), max_size=3),
    "Days": st.lists(days | st.none(), max_size=2),
}
plain = st.fixed_dictionaries({name: values | st.none() for name, values in VALUES.items()})
"""New values with all columns."""
partial = st.fixed_dictionaries({}, optional={name: values | st.none() for name, values in VALUES.items()})
keys = st.fixed_dictionaries({"Region": texts, "Id": integers})
sides = st.sampled_from(["", "{}"])


@st.composite
def mods(draw: st.DrawFn) -> Mod:
    new = draw(st.one_of(plain, plain, plain, partial))
    if draw(st.integers(0, 20)) == 0:
        new = new | {"Later": "1"}
    texts_of = [json.dumps(each, ensure_ascii=draw(st.booleans())) for each in (draw(keys), new)]
    if draw(st.integers(0, 20)) == 0:
        texts_of[1] = draw(sides)
    old = draw(st.one_of(sides, sides, sides, partial.map(json.dumps)))
    return Mod(*texts_of, old)


@st.composite
def records(draw: st.DrawFn) -> DataChangeRecord:
    return DataChangeRecord(
        draw(st.integers(0, 2 * 10**18)),
        draw(st.sampled_from(["00000001", "963d1af435fb3e79-0000000a"])),
        draw(st.sampled_from(["tx", '"mod_number":0', '","after":null,"'])),
        draw(st.booleans()),
        draw(st.sampled_from(["Orders", "sales.Orders"])),
        TYPES,
        Mods.of(draw(st.lists(mods(), min_size=0, max_size=4))),
        draw(st.sampled_from(["INSERT", "UPDATE", "UPDATE", "READ", "DELETE"])),
        draw(st.sampled_from(["NEW_ROW", "OLD_AND_NEW_VALUES"])),
        3,
        2,
        draw(st.sampled_from(["", 'a "tag" ,"mod_number":0,'])),
        draw(st.booleans()),
    )


@given(st.lists(records(), min_size=1, max_size=4), st.sampled_from(sorted(OPTIONS)), st.booleans())
def test_lines_of_batches_have_the_same_bytes_without_events(
    batch: list[DataChangeRecord], name: str, keyed: bool
) -> None:
    format = DebeziumFormat(name, **OPTIONS[name])
    expected = from_events(batch, format)
    if not keyed and not isinstance(expected, str):
        expected = [(table, None, line, time_us) for table, _, line, time_us in expected]
    assert from_runs(batch, ModRecordFormat(format, **NAMES, keyed=keyed)) == expected


WHOLE = next(record for record in data_of("new_row") if record.mod_type == "INSERT")


@pytest.mark.parametrize("kind", ["INSERT", "UPDATE", "READ"])
def test_whole_rows_become_lines_without_events(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    direct = ModRecordFormat(DebeziumFormat("shop"), **NAMES)
    record = replace(WHOLE, mod_type=kind, mods=Mods.of([replace_old(mod) for mod in WHOLE.mods]))
    without_events(monkeypatch)
    assert len(from_runs([record] * 3, direct)) == 3 * len(record.mods)


def test_a_name_that_json_escapes_is_shown_from_events() -> None:
    columns = tuple(
        replace(each, name='a "name"') if each.name == "String" else each for each in WHOLE.column_types
    )
    mods = [
        mod._replace(new_values=mod.new_values.replace('"String"', '"a \\"name\\""')) for mod in WHOLE.mods
    ]
    record, format = replace(WHOLE, column_types=columns, mods=Mods.of(mods)), DebeziumFormat("shop")
    lines = from_runs([record], ModRecordFormat(format, **NAMES))
    assert lines == from_events([record], format)
    assert b'"a \\"name\\"":' in lines[0][2]


def replace_old(mod: Mod) -> Mod:
    return mod._replace(old_values="{}")


FIRST = WHOLE.mods[0]
ODD = {
    "two rows of a scan": replace(WHOLE, mod_type="READ", mods=Mods.of([FIRST, FIRST])),
    "a column that is not described": replace(
        WHOLE, mods=Mods.of([FIRST._replace(new_values=FIRST.new_values[:-1] + ',"Later":"1"}')])
    ),
    "a column that was not sent": replace(WHOLE, mods=Mods.of([FIRST._replace(new_values="{}")])),
    "an old row": replace(
        WHOLE, mod_type="UPDATE", mods=Mods.of([FIRST._replace(old_values='{"Bool":false}')])
    ),
    "an old row of an insert": replace(WHOLE, mods=Mods.of([FIRST._replace(old_values='{"Bool":false}')])),
    "a delete": replace(WHOLE, mod_type="DELETE"),
    "zeros at the end of a fraction": replace(
        WHOLE, mods=Mods.of([FIRST._replace(new_values=FIRST.new_values.replace(":05Z", ":05.100Z"))])
    ),
}


@pytest.mark.parametrize("case", ODD)
def test_a_record_between_others_has_the_lines_of_its_events(case: str) -> None:
    assert ODD[case] != WHOLE
    format = DebeziumFormat("shop", skipped_operations="none")
    batch = [WHOLE, ODD[case], ODD[case], WHOLE]
    lines = from_runs(batch, ModRecordFormat(format, **NAMES))
    assert len(lines) >= 4
    assert lines == from_events(batch, format)
