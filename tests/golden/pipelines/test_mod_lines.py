"""The lines that the pipeline writes, byte for byte. Consumers parse them, so a changed line breaks consumers.

The records are written by hand from Spanner's documentation ("Change streams partitions, records, and queries",
examples of data change records); each golden file is `lines/<name>.jsonl`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.io.spanner.record import ColumnType, DataChangeRecord, Mod
from penstock.transforms.formats.spanner_lines import mod_lines

GOLDEN = Path(__file__).parent / "lines"
COLUMNS = (ColumnType("Id", '{"code":"STRING"}', True, 1), ColumnType("Value", '{"code":"INT64"}', False, 2))


def record(*mods: Mod, **changed: Any) -> DataChangeRecord:
    facts: dict[str, Any] = {
        "commit_timestamp": 1_664_236_933_508_000_123,
        "record_sequence": "00000000",
        "server_transaction_id": "MTg0NDY3MTMyNTUzNjM4NDY=",
        "is_last_record_in_transaction_in_partition": True,
        "table_name": "Singers",
        "column_types": COLUMNS,
        "mods": mods,
        "mod_type": "INSERT",
        "value_capture_type": "OLD_AND_NEW_VALUES",
        "number_of_records_in_transaction": 1,
        "number_of_partitions_in_transaction": 1,
        "transaction_tag": "",
        "is_system_transaction": False,
    }
    return DataChangeRecord(**(facts | changed))


CASES = {
    "insert": record(Mod('{"Id":"a"}', '{"Value":"9007199254740993"}', "{}")),
    "update": record(Mod('{"Id":"a"}', '{"Value":null}', '{"Value":"-1"}'), mod_type="UPDATE"),
    "delete": record(Mod('{"Id":"a"}', "{}", '{"Value":"1"}'), mod_type="DELETE"),
    "two_mods": record(
        Mod('{"Id":"a"}', '{"Value":"1"}', "{}"),
        Mod('{"Id":"b"}', '{"Value":"2"}', "{}"),
        record_sequence="00000003",
        is_last_record_in_transaction_in_partition=False,
        number_of_records_in_transaction=4,
        number_of_partitions_in_transaction=2,
        transaction_tag='app="Grüße"\nline',
    ),
    "named_schema": record(Mod('{"Id":"ü\\n"}', '{"Value":"1"}', "{}"), table_name="sales.Größen"),
    "whole_second": record(Mod('{"Id":"a"}', "{}", "{}"), commit_timestamp=1_664_236_933_000_000_000),
    "sides_sent_as_null": record(Mod('{"Id":"a"}', "", ""), is_system_transaction=True),
    "spread_over_lines": record(Mod('{\n  "Id": "a"\r\n}', '{"Value":"1"}', "{}")),
}


@pytest.mark.parametrize("name", CASES)
def test_lines_are_those_of_the_golden_file(name: str) -> None:
    golden = (GOLDEN / f"{name}.jsonl").read_text("utf-8")
    assert "".join(each.line + "\n" for each in mod_lines(CASES[name])) == golden


def test_no_golden_file_is_left_over() -> None:
    assert {file.stem for file in GOLDEN.glob("*.jsonl")} == set(CASES)


texts = st.text(st.characters(exclude_categories=["Cs"]))
sides = st.dictionaries(texts, st.none() | texts | st.booleans() | st.lists(texts), max_size=3)


@given(st.lists(st.tuples(sides, sides, sides), max_size=3), texts, st.none() | st.integers(1, 4))
def test_every_line_is_one_line_of_json_that_gives_the_sides_back(
    mods: list[tuple[Any, Any, Any]], tag: str, indent: int | None
) -> None:
    sent = [Mod(*(json.dumps(side, indent=indent) for side in mod)) for mod in mods]
    lines = list(mod_lines(record(*sent, transaction_tag=tag)))
    assert len(lines) == len(mods)
    for index, (line, mod) in enumerate(zip(lines, mods, strict=True)):
        assert "\n" not in line.line
        assert "\r" not in line.line
        parsed = json.loads(line.line)
        assert (parsed["keys"], parsed["new_values"], parsed["old_values"]) == mod
        assert (parsed["mod_index"], parsed["number_of_mods"]) == (index, len(mods))
        assert parsed["transaction_tag"] == tag
