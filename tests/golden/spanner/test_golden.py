"""Golden messages of the real emulator (Google Cloud SDK, June 2025), recorded by `record.py`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from google.cloud.spanner_v1.types import result_set
from google.protobuf.json_format import ParseDict

from penstock.io.spanner import DataChangeRecord
from penstock.io.spanner.decode import Decoder

HERE = Path(__file__).parent
CASES = sorted(path.name.removesuffix(".messages.json") for path in HERE.glob("*.messages.json"))
PartialResultSet = result_set.PartialResultSet.pb()


def decoded(case: str) -> list[Any]:
    decoder = Decoder()
    messages = json.loads((HERE / f"{case}.messages.json").read_text())
    records = [
        record
        for message in messages
        for record in decoder.feed(ParseDict(message, PartialResultSet()).SerializeToString())
    ]
    decoder.finish()
    return records


def data_of(stream: str) -> list[DataChangeRecord]:
    found = [record for case in CASES if case.startswith(f"{stream}-") for record in decoded(case)]
    return sorted(
        (record for record in found if isinstance(record, DataChangeRecord)),
        key=lambda record: (record.commit_timestamp, record.record_sequence),
    )


@pytest.mark.parametrize("case", CASES)
def test_recorded_messages_decode_to_the_recorded_records(case: str) -> None:
    records = [{"kind": type(record).__name__, **asdict(record)} for record in decoded(case)]
    as_json = json.loads(
        json.dumps(records, default=lambda v: sorted(v) if isinstance(v, frozenset) else list(v))
    )
    assert as_json == json.loads((HERE / f"{case}.records.json").read_text())


def test_every_column_type_arrives_with_its_full_value() -> None:
    insert = data_of("old_and_new_values")[0]
    assert (insert.table_name, insert.mod_type) == ("Everything", "INSERT")
    keys, new, old = insert.mods[0].parsed()
    assert (keys, old) == ({"Id": "1"}, {})
    assert new == {
        "Bool": True,
        "Int64": "9223372036854775807",
        "Float64": 0.1,
        "Float32": 0.5,
        "Numeric": "99999999999999999999999999999.999999999",
        "String": "Ünï “quoted” \n \u0001 🌊",
        "Bytes": "AP8=",
        "Date": "2026-02-28",
        "Timestamp": "2026-01-02T03:04:05Z",
        "Json": '{"a":[1,null,"x"]}',
        "Bools": [True, False],
        "Int64s": ["1", "-9223372036854775808"],
        "Float64s": [1.5, -2e300],
        "Numerics": ["0.000000001"],
        "Strings": ["a", ""],
        "BytesList": ["YWJj"],
        "Dates": ["1999-12-31"],
        "Timestamps": ["2026-01-02T03:04:05Z"],
        "Jsons": ["true", '{"k":1}'],
    }
    assert {column.name for column in insert.column_types} == {"Id", *new}
    assert {column.name: column.code for column in insert.column_types if column.code != "ARRAY"} == {
        "Id": "INT64", "Bool": "BOOL", "Int64": "INT64", "Float64": "FLOAT64", "Float32": "FLOAT32",
        "Numeric": "NUMERIC", "String": "STRING", "Bytes": "BYTES", "Date": "DATE", "Timestamp": "TIMESTAMP",
        "Json": "JSON",
    }  # fmt: skip


def test_null_empty_and_missing_values_differ() -> None:
    insert = data_of("old_and_new_values")[0]
    _, nulls, _ = insert.mods[1].parsed()
    assert set(nulls.values()) == {None}
    _, empty, _ = insert.mods[2].parsed()
    assert (empty["String"], empty["Bytes"], empty["Int64s"], empty["Date"]) == ("", "", [], None)
    (update,) = (r for r in data_of("old_and_new_values") if r.mods[0].new_values == '{"Date":"2026-03-01"}')
    assert update.mods[0].parsed() == ({"Id": "3"}, {"Date": "2026-03-01"}, {"Date": None})


def test_key_only_tables_named_schemas_and_quoted_names_arrive() -> None:
    by_table = {record.table_name: record for record in data_of("old_and_new_values")[:3]}
    assert by_table["KeysOnly"].mods[0] == ('{"A":"key","B":"-5"}', "{}", "{}")
    assert [column.is_primary_key for column in by_table["KeysOnly"].column_types] == [True, True]
    assert by_table["Named.Order"].mods[0].parsed() == ({"Id": "1"}, {"From": "here"}, {})


@pytest.mark.parametrize(
    ("stream", "new", "old"),
    [
        ("old_and_new_values", {"Date"}, {"Date"}),
        ("new_values", {"Date"}, set()),
        ("new_row", None, set()),
    ],
)
def test_each_capture_type_sends_its_side_of_an_update(
    stream: str, new: set[str] | None, old: set[str]
) -> None:
    update = data_of(stream)[-1]
    assert (update.mod_type, update.value_capture_type.lower()) == ("UPDATE", stream)
    _, after, before = update.mods[0].parsed()
    columns = {column.name for column in data_of(stream)[0].column_types if not column.is_primary_key}
    assert set(after) == (columns if new is None else new)
    assert set(before) == old
