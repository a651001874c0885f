"""Records of PostgreSQL-dialect databases, which arrive as JSON, are decoded as the others are."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from google.cloud.spanner_v1.types import result_set

from penstock.errors import DecodeError
from penstock.io.spanner.decode import Decoder
from penstock.io.spanner.decode_json import decode_json
from penstock.io.spanner.record import (
    ChildPartition,
    ChildPartitionsRecord,
    ColumnType,
    DamagedRecord,
    DataChangeRecord,
    HeartbeatRecord,
    Mod,
)

PartialResultSet = result_set.PartialResultSet.pb()
JSON, BYTES = 11, 7
DATA = {
    "commit_timestamp": "2026-01-01T00:00:00.10515+00:00",
    "record_sequence": "00000003",
    "server_transaction_id": "tx",
    "is_last_record_in_transaction_in_partition": True,
    "table_name": "sales.Orders",
    "column_types": [
        {"name": "Id", "type": {"code": "INT64"}, "is_primary_key": True, "ordinal_position": 1},
        {
            "name": "Price",
            "type": {"type_annotation": "PG_NUMERIC", "code": "NUMERIC"},
            "is_primary_key": False,
            "ordinal_position": 2,
        },
    ],
    "mods": [{"keys": {"Id": "9007199254740993"}, "new_values": {"Price": "NaN"}, "old_values": {}}],
    "mod_type": "UPDATE",
    "value_capture_type": "NEW_VALUES",
    "number_of_records_in_transaction": 2,
    "number_of_partitions_in_transaction": 1,
    "transaction_tag": "tag",
    "is_system_transaction": False,
}


def row(**changed: Any) -> str:
    return json.dumps({"data_change_record": {**DATA, **changed}})


def message(*rows: str, code: int = JSON, chunked: bool = False, metadata: bool = True) -> bytes:
    answer = PartialResultSet(chunked_value=chunked)
    if metadata:
        answer.metadata.row_type.fields.add(name="read_json_changes").type_.code = code
    for each in rows:
        answer.values.add().string_value = each
    return bytes(answer.SerializeToString())


def test_a_data_change_record_keeps_the_text_of_its_rows() -> None:
    record = decode_json(row())
    assert isinstance(record, DataChangeRecord)
    assert record.commit_timestamp == 1767225600_105150000
    assert record.column_types == (
        ColumnType("Id", '{"code":"INT64"}', True, 1),
        ColumnType("Price", '{"code":"NUMERIC","type_annotation":"PG_NUMERIC"}', False, 2),
    )
    assert list(record.mods) == [Mod('{"Id": "9007199254740993"}', '{"Price": "NaN"}', "{}")]
    assert (record.table_name, record.mod_type, record.transaction_tag) == ("sales.Orders", "UPDATE", "tag")
    assert (record.number_of_records_in_transaction, record.record_sequence) == (2, "00000003")


def test_a_missing_side_and_a_null_side_differ() -> None:
    record = decode_json(row(mods=[{"keys": {"Id": "1"}, "old_values": None}]))
    assert isinstance(record, DataChangeRecord)
    assert list(record.mods) == [Mod('{"Id": "1"}', "{}", "")]


def test_heartbeats_and_children_are_decoded() -> None:
    beat = {"heartbeat_record": {"timestamp": "2026-01-01T00:00:00Z"}}
    assert decode_json(json.dumps(beat)) == HeartbeatRecord(1767225600_000000000)
    child = {"token": "m", "parent_partition_tokens": ["a", "b"]}
    children = {
        "child_partitions_record": {
            "start_timestamp": "2026-01-01T00:00:00.5+00:00",
            "record_sequence": "00000001",
            "child_partitions": [child, {"token": "n", "parent_partition_tokens": []}],
        }
    }
    assert decode_json(json.dumps(children)) == ChildPartitionsRecord(
        1767225600_500000000,
        "00000001",
        (ChildPartition("m", frozenset("ab")), ChildPartition("n", frozenset())),
    )


@pytest.mark.parametrize("text", ["{}", '{"another_record": {}}', '{"data_change_record": null}'])
def test_an_unknown_kind_of_record_is_refused(text: str) -> None:
    with pytest.raises(DecodeError, match="neither data, heartbeat nor child partitions"):
        decode_json(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1]",
        '{"heartbeat_record": {"timestamp": 1}}',
        row(commit_timestamp="yesterday"),
        row(record_sequence=1),
    ],
)
def test_a_row_that_cannot_be_placed_is_refused_without_its_values(text: str) -> None:
    with pytest.raises(DecodeError, match="does not have its documented form") as error:
        decode_json(text)
    assert "yesterday" not in str(error.value)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"mods": "a secret"}, r"Expected `array`, got `str` - at `\$.mods`"),
        ({"mods": [["a secret"]]}, r"at `\$.mods\[0\]`"),
        ({"column_types": [{}]}, "missing required field `name`"),
        ({"number_of_records_in_transaction": "many secrets"}, "Expected `int`"),
    ],
)
def test_a_damaged_record_keeps_its_place_and_its_bytes(changed: dict[str, Any], reason: str) -> None:
    record = decode_json(row(**changed))
    assert isinstance(record, DamagedRecord)
    assert (record.commit_timestamp, record.server_transaction_id, record.record_sequence) == (
        1767225600_105150000,
        "tx",
        "00000003",
    )
    assert json.loads(record.data) == {**DATA, **changed}
    assert re.search(reason, record.reason)
    assert "secret" not in record.reason


@pytest.mark.parametrize("cut", range(1, 40, 7))
def test_a_chunked_row_is_returned_when_it_is_complete(cut: int) -> None:
    text, decoder = row(), Decoder()
    assert decoder.feed(message(row(), text[:cut], chunked=True)) == [decode_json(text)]
    assert decoder.feed(message(metadata=False)) == [], "a message without values carries only a resume token"
    assert decoder.feed(message(text[cut : cut + 5], chunked=True, metadata=False)) == []
    assert decoder.feed(message(text[cut + 5 :], row(), metadata=False)) == [decode_json(text)] * 2
    decoder.finish()


def test_a_query_that_ends_in_mid_row_is_an_error() -> None:
    decoder = Decoder()
    decoder.feed(message(row()[:9], chunked=True))
    with pytest.raises(DecodeError, match="in the middle of a row"):
        decoder.finish()
